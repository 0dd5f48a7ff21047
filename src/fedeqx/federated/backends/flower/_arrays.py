"""Arrays as plain bytes: what travels, what is kept on disk, and the check of what comes in.

Nothing is unpickled, and no size is taken from the sender: an array is accepted only if it is what
the plan lists, to the byte.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array

# What the data of an array is: its elements in C order, little-endian, and nothing else.
RAW = "fedeqx.raw"
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


class ArrayError(ValueError):
    """An array that is not what the plan lists."""


def stored_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of an array's bytes; that of a PRNG key's data for a key."""
    if dtype in _KEYS:
        return np.dtype("uint32")
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def stored_shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an array's bytes: a PRNG key has one more axis, of its data."""
    shape = tuple(entry["shape"])
    if entry["dtype"] not in _KEYS:
        return shape
    impl = _KEYS[entry["dtype"]]
    return (
        *shape,
        *jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape,
    )


def num_bytes(entry: Mapping[str, Any]) -> int:
    """How many bytes an array of the plan has."""
    return math.prod(stored_shape(entry)) * stored_dtype(entry["dtype"]).itemsize


def to_host(x: Any) -> np.ndarray:
    """An array as NumPy; a PRNG key as its data."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def to_bytes(x: Any) -> bytes:
    """An array's elements in C order, little-endian."""
    host = to_host(x)
    if host.dtype.byteorder == ">":
        host = host.astype(host.dtype.newbyteorder("<"))
    return host.tobytes()


def from_bytes(entry: Mapping[str, Any], data: bytes) -> Array:
    """The array that `to_bytes` gave the bytes of; `entry` says its `shape` and `dtype`."""
    wanted = num_bytes(entry)
    if len(data) != wanted:
        raise ArrayError(
            f"{entry['dtype']}{list(entry['shape'])} has {wanted} bytes, but there are {len(data)}"
        )
    host = np.frombuffer(data, stored_dtype(entry["dtype"])).reshape(stored_shape(entry))
    if host.dtype == np.bool_:
        host = np.frombuffer(data, np.uint8).reshape(host.shape)
        if host.size and host.max() > 1:
            raise ArrayError("a bool is neither 0 nor 1")
        host = host.astype(np.bool_)
    return from_host(entry, host)


def from_host(entry: Mapping[str, Any], host: np.ndarray) -> Array:
    """A NumPy array as the array of the plan that it stands for."""
    if entry["dtype"] in _KEYS:
        return jax.random.wrap_key_data(jnp.asarray(host), impl=_KEYS[entry["dtype"]])
    return jnp.asarray(host)


def write_arrays(file: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays to an `.npz`, which needs no pickle to be read."""
    named = {name: _plain(to_host(x)) for name, x in arrays.items()}
    with file.open("wb") as out:
        np.savez(out, **named)  # pyright: ignore[reportArgumentType]


def read_arrays(file: Path, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Array]:
    """The arrays of a file by name, each checked to be what `entries` says."""
    found = {}
    with np.load(file, allow_pickle=False) as stored:
        for name, entry in entries.items():
            if name not in stored:
                raise ArrayError(f"{file} has no array {name!r}; it has {', '.join(stored)}.")
            host = stored[name]
            dtype, shape = stored_dtype(entry["dtype"]), stored_shape(entry)
            if _plain_dtype(dtype) != host.dtype or host.shape != shape:
                raise ArrayError(
                    f"{file}: {name} must be {entry['dtype']}{list(entry['shape'])}, but is "
                    f"{host.dtype}{list(host.shape)}."
                )
            found[name] = from_host(entry, host.view(dtype))
    return found


def _plain_dtype(dtype: np.dtype) -> np.dtype:
    """`.npz` knows NumPy's own dtypes only; others are stored as unsigned integers."""
    return (
        dtype if dtype.kind in "biufc" and dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    )


def _plain(host: np.ndarray) -> np.ndarray:
    return host.view(_plain_dtype(host.dtype))


def combined(how: str, one: Array | None, other: Array) -> Array:
    """Two reduced values as one: `how` is `"sum"`, `"max"` or `"min"`."""
    if one is None:
        return other
    return {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum}[how](one, other)
