"""Group ids: text, whole numbers or bytes, kept apart and ordered.

Inside the sort every id is a *key*: one tag byte, then bytes whose order is the id's own order. On
disk a data set whose ids are all of one kind has a plain column of that kind, which any engine
reads; ids of several kinds are written as JSON, in which 7 and "7" differ.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

GroupId: TypeAlias = str | int | bytes

_TAGS = {b"b": "bytes", b"i": "int", b"s": "string"}
_COLUMN_TYPES = {
    "bytes": pa.large_binary(),
    "int": pa.int64(),
    "string": pa.large_string(),
    "mixed": pa.large_string(),
}
_SIGN = 1 << 63


class GroupIdError(ValueError):
    """A value that cannot be a group id; says which kinds can."""


def to_key(group_id: Any) -> bytes:
    """The id's key: keys are equal, and ordered, exactly as ids of one kind are."""
    if isinstance(group_id, str):
        try:
            return b"s" + group_id.encode()
        except UnicodeEncodeError as error:
            raise GroupIdError(
                f"The group id {group_id!r} holds a lone surrogate, which UTF-8 cannot store. "
                "Return the raw bytes as the id, or decode them with errors='replace'."
            ) from error
    if isinstance(group_id, bytes):
        return b"b" + group_id
    if isinstance(group_id, int | np.integer) and not isinstance(group_id, bool):
        number = int(group_id)
        if not -_SIGN <= number < _SIGN:
            raise GroupIdError(
                f"The group id {number} does not fit in 64 bits. Return it as text: str(id)."
            )
        return b"i" + (number + _SIGN).to_bytes(8, "big")
    raise GroupIdError(
        f"{group_id!r} of type {type(group_id).__name__} cannot be a group id: ids are str, int or "
        "bytes. Convert it in the partition function, for example with str(...)."
    )


def from_key(key: bytes) -> GroupId:
    """The id whose key this is."""
    tag, body = key[:1], key[1:]
    if tag == b"s":
        return body.decode()
    if tag == b"b":
        return body
    return int.from_bytes(body, "big") - _SIGN


def column_to_keys(column: pa.Array) -> pa.Array:
    """Keys (large_binary) of an Arrow column of text, whole numbers or binary without nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_integer(kind):
        try:
            numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid as error:
            raise GroupIdError(
                f"A group id of type {kind} does not fit in a signed 64-bit number. Cast the field "
                "to text first."
            ) from error
        shifted = (numbers.view(np.uint64) + np.uint64(_SIGN)).astype(">u8")
        bodies = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(8), len(numbers), [None, pa.py_buffer(shifted.tobytes())]
        )
        return _tagged(b"i", bodies)
    if is_text(kind):
        return _tagged(b"s", column)
    if _is_binary(kind):
        return _tagged(b"b", column)
    raise GroupIdError(
        f"A field of type {kind} cannot be the group id: ids are text, whole numbers or bytes. "
        "Convert it, for example by=lambda example: str(example[...])."
    )


def values_to_keys(values: Sequence[Any]) -> pa.Array:
    """Keys (large_binary) of Python values."""
    return pa.array([to_key(value) for value in values], pa.large_binary())


def tags_of(keys: pa.Array) -> set[str]:
    """The kinds of id that occur among these keys."""
    tags = pc.call_function("binary_slice", [keys], pc.SliceOptions(0, 1)).unique().to_pylist()
    return {_TAGS[tag] for tag in tags}


def kind_of(tags: Iterable[str]) -> str:
    """The kind of a whole data set: `"string"`, `"int"`, `"bytes"` or `"mixed"`."""
    found = set(tags)
    return found.pop() if len(found) == 1 else "mixed"


def column_type(kind: str) -> pa.DataType:
    """The Arrow type of the `group_id` column of a data set of this kind."""
    return _COLUMN_TYPES[kind]


def keys_to_column(keys: pa.Array, kind: str) -> pa.Array:
    """The `group_id` column of these keys."""
    # Sorted keys repeat, so that only the distinct ones pass through Python.
    encoded = keys.dictionary_encode()
    ids = [from_key(key) for key in encoded.dictionary.to_pylist()]
    if kind == "mixed":
        ids = [_to_json(group_id) for group_id in ids]
    return pa.array(ids, column_type(kind)).take(encoded.indices)


def is_text(kind: pa.DataType) -> bool:
    """Whether this is one of Arrow's three types of text."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def from_column(value: Any, kind: str) -> GroupId:
    """The id that one value of the `group_id` column stands for."""
    return _from_json(value) if kind == "mixed" else value


def pair_id(outer: GroupId, inner: GroupId) -> str:
    """An id for two ids together: different pairs have different ones."""
    return f"[{_to_json(outer)}, {_to_json(inner)}]"


def digest(group_id: GroupId, *context: int | str) -> bytes:
    """32 bytes that depend on the id and on the context, and on nothing else."""
    state = hashlib.blake2b(digest_size=32)
    for part in context:
        state.update(f"{type(part).__name__}:{part};".encode())
    state.update(to_key(group_id))
    return state.digest()


def _is_binary(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _tagged(tag: bytes, bodies: pa.Array) -> pa.Array:
    if not _is_binary(bodies.type) or pa.types.is_fixed_size_binary(bodies.type):
        bodies = bodies.cast(pa.large_binary() if is_text(bodies.type) else pa.binary())
    large = bodies.cast(pa.large_binary())
    prefix = pa.scalar(tag, pa.large_binary())
    return pc.call_function(
        "binary_join_element_wise", [prefix, large, pa.scalar(b"", pa.large_binary())]
    )


def _to_json(group_id: GroupId) -> str:
    if isinstance(group_id, bytes):
        return json.dumps({"bytes": group_id.hex()})
    return json.dumps(group_id, ensure_ascii=False)


def _from_json(text: str) -> GroupId:
    value = json.loads(text)
    return bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value
