"""Tokens of groups: from text through a tokenizer, or from a column of token lists."""

import abc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import pyarrow as pa

from ._group import Group
from ._ids import is_text
from ._layout import TOKENIZER_NAME, DatasetFormatError
from ._measure import text_bytes
from ._text import BYTE_VOCAB_SIZE, SEPARATOR, decode_bytes

# The tokens of a column's values, joined, and where each value's begin (one offset more).
EncodeColumn: TypeAlias = Callable[[pa.Array], tuple[np.ndarray, np.ndarray]]


class AbstractTokenizer(abc.ABC):
    """Turns text into tokens, integers from 0. Documents of a group are joined by `separator`."""

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """How many tokens there are, with the separator: every token is below it."""

    @property
    @abc.abstractmethod
    def separator(self) -> int:
        """The token between the documents of a group."""

    @abc.abstractmethod
    def encode_column(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of many texts.

        **Arguments:**

        - `texts`: an Arrow array of text; a null is the empty text.

        **Returns:**

        All tokens in one array of integers, and int64 offsets [texts + 1]: text k has the tokens
        from offset k to offset k + 1.
        """

    @abc.abstractmethod
    def decode(self, tokens: np.ndarray | Iterable[int]) -> str:
        """The text of some tokens."""

    @abc.abstractmethod
    def save(self, folder: str | Path) -> dict[str, Any]:
        """Write what `load_tokenizer(folder)` needs; returns what the manifest says of it."""

    @final
    def encode(self, text: str) -> np.ndarray:
        """The tokens of one text: int32 [tokens]."""
        return self.encode_column(pa.array([text], pa.large_string()))[0].astype(np.int32)


@final
class ByteTokenizer(AbstractTokenizer):
    """Text as its UTF-8 bytes: 257 tokens with the separator, and no text that it cannot hold."""

    @property
    def vocab_size(self) -> int:
        return BYTE_VOCAB_SIZE

    @property
    def separator(self) -> int:
        return SEPARATOR

    def encode_column(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        return text_bytes(texts)

    def decode(self, tokens: np.ndarray | Iterable[int]) -> str:
        return decode_bytes(tokens)

    def save(self, folder: str | Path) -> dict[str, Any]:
        return {"kind": "bytes"}


class TokenSource(NamedTuple):
    """Where the tokens of a group come from: a column, how to read it, what stands between."""

    column: str
    encode: EncodeColumn
    separator: int | None


def token_source(
    caller: str,
    *,
    schema: pa.Schema,
    manifest: dict[str, Any],
    text: str,
    tokenizer: AbstractTokenizer | None,
    tokens: str | None,
) -> TokenSource:
    """Where tokens come from by the arguments of `cohorts`. Errors name the `caller`."""
    columns = dict(zip(schema.names, map(str, schema.types), strict=True))
    if tokens is None:
        if text not in columns or not is_text(schema.field(text).type):
            lists = [name for name in columns if _is_token_lists(schema.field(name).type)]
            raise ValueError(
                f"{caller}(text={text!r}): the data set has no text column of this name; its "
                f"columns are {columns}."
                + (f" For tokens, give tokens={lists[0]!r}." if lists else "")
            )
        chosen = ByteTokenizer() if tokenizer is None else tokenizer
        return TokenSource(text, chosen.encode_column, chosen.separator)
    if tokenizer is not None:
        raise ValueError(
            f"{caller}(tokenizer=..., tokens={tokens!r}): the column holds tokens already. Give "
            "one of the two."
        )
    if tokens not in columns or not _is_token_lists(schema.field(tokens).type):
        raise ValueError(
            f"{caller}(tokens={tokens!r}): the data set has no column of lists of whole numbers of "
            f"this name; its columns are {columns}."
        )
    told = manifest.get("tokenizer", {})
    return TokenSource(
        tokens, token_lists, told["separator"] if told.get("column") == tokens else None
    )


def token_lists(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a column of lists, as `AbstractTokenizer.encode_column` gives them."""
    values = column.flatten()
    if values.null_count:
        raise ValueError("A token list holds a null. Tokens are whole numbers.")
    if pa.types.is_fixed_size_list(column.type):
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = valid * np.int64(column.type.list_size)
    else:
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if values.type.bit_width > 16:
        try:
            values = values.cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise ValueError(f"A token does not fit in 32 bits ({error}).") from error
    return values.to_numpy(zero_copy_only=False), offsets


def token_chunks(columns: Iterable[pa.Array], source: TokenSource) -> Iterator[np.ndarray]:
    """The tokens of a group's documents, in pieces, with the separator between documents.

    **Arguments:**

    - `columns`: the group's column of text or tokens, batch after batch.
    - `source`: how to read it.

    **Returns:**

    Arrays of integers that make up the group's tokens when joined.
    """
    first = True
    for column in columns:
        data, offsets = source.encode(column)
        if len(offsets) == 1:
            continue
        if source.separator is None:
            yield data
            continue
        kind = np.promote_types(data.dtype, np.min_scalar_type(source.separator))
        tokens = np.full(len(data) + len(offsets) - 1, source.separator, kind)
        is_data = np.ones(len(tokens), bool)
        is_data[offsets[:-1] + np.arange(len(offsets) - 1)] = False
        tokens[is_data] = data
        yield tokens[1:] if first else tokens
        first = False


def group_tokens(
    group: Group,
    *,
    text: str = "text",
    tokenizer: AbstractTokenizer | None = None,
    tokens: str | None = None,
) -> np.ndarray:
    """All tokens of a group, in the order of its examples.

    **Arguments:**

    - `group`: the group, or a part of it.
    - `text`: the column that holds its text.
    - `tokenizer`: what makes tokens of it; by default its bytes are the tokens.
    - `tokens`: a column of token lists, instead of text; no separator stands between them.

    **Returns:**

    int32 [tokens]; `pack` cuts them into sequences.

    !!! Example

        ```python
        sequences = fx.data.pack(fx.data.group_tokens(dataset.group("a")), 64)
        ```
    """
    batches = iter(group.batches())
    first = next(batches, None)
    if first is None:
        return np.zeros(0, np.int32)
    source = token_source(
        "group_tokens",
        schema=first.schema,
        manifest={},
        text=text,
        tokenizer=tokenizer,
        tokens=tokens,
    )
    columns = (batch.column(source.column) for batch in group.batches(columns=(source.column,)))
    chunks = list(token_chunks(columns, source))
    return np.concatenate(chunks).astype(np.int32) if chunks else np.zeros(0, np.int32)


def load_tokenizer(place: str | Path, *, separator: str | None = None) -> AbstractTokenizer:
    """Load a tokenizer from a `tokenizer.json`, or that of a data set that `tokenize` wrote.

    **Arguments:**

    - `place`: the file, of the format of Hugging Face's `tokenizers`, or a folder that has one.
    - `separator`: the token to put between the documents of a group, such as `"</s>"`. By default
        the first of some usual ones that the tokenizer has.

    **Returns:**

    The tokenizer. It adds no tokens of its own to a text, cuts none off, and reads the text of a
    special token as text. Raises `ValueError` where there is no separator, and `ImportError` where
    the package `tokenizers` is missing: install `fedeqx[tokenizers]`.
    """
    from ._subword import SubwordTokenizer

    path = Path(place)
    file = path / TOKENIZER_NAME if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no tokenizer at {file}. Give a tokenizer.json, or a folder that has one."
        )
    try:
        serialized = file.read_text(encoding="utf-8")
    except ValueError as error:
        raise DatasetFormatError(f"{file} is not a tokenizer.json ({error}).") from error
    return SubwordTokenizer(serialized, separator=separator, name=str(file))


def _is_token_lists(kind: pa.DataType) -> bool:
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    return is_list and pa.types.is_integer(kind.value_type)
