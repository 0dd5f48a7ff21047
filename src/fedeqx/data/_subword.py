"""Subword tokenizers, by Hugging Face's `tokenizers`."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from ._dataset import GroupedDataset
from ._ids import is_text
from ._layout import TOKENIZER_NAME, DatasetFormatError
from ._tokens import AbstractTokenizer

_SEPARATOR = "<|separator|>"
# Between documents in models that are in use.
_USUAL_SEPARATORS = (_SEPARATOR, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
_UNKNOWN = "[UNK]"


@final
class SubwordTokenizer(AbstractTokenizer):
    """A tokenizer of `tokenizers`: made by `train_tokenizer` and `load_tokenizer`."""

    def __init__(self, serialized: str, *, separator: str | None = None, name: str = "it"):
        """**Arguments:**

        - `serialized`: the content of a `tokenizer.json`.
        - `separator`: the token between documents; see `load_tokenizer`.
        - `name`: how errors name the tokenizer.
        """
        library = _library()
        try:
            self._tokenizer = library.Tokenizer.from_str(serialized)
        except Exception as error:  # The library raises nothing narrower.
            raise DatasetFormatError(f"{name} is not a tokenizer.json ({error}).") from error
        # Settings for models with inputs of one length would cut documents off, or pad them.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # A document that spells a special token must not become it.
        self._tokenizer.encode_special_tokens = True
        candidates = _USUAL_SEPARATORS if separator is None else (separator,)
        found = [word for word in candidates if self._tokenizer.token_to_id(word) is not None]
        if not found:
            raise ValueError(
                f"{name} has none of the tokens {list(candidates)} to put between documents. Give "
                "one that it has: load_tokenizer(..., separator=...)."
            )
        self._word = found[0]
        self._separator: int = self._tokenizer.token_to_id(self._word)
        # Ids may have gaps: all are below this.
        self._vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def __reduce__(self):
        return _restore, (self._tokenizer.to_str(), self._word)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def separator(self) -> int:
        return self._separator

    def encode_column(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        documents = texts.fill_null("").to_pylist()
        encoded = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        ids = [document.ids for document in encoded]
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids)), out=offsets[1:])
        return np.fromiter(itertools.chain(*ids), np.int32, offsets[-1]), offsets

    def decode(self, tokens: np.ndarray | Iterable[int]) -> str:
        return self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)

    def save(self, folder: str | Path) -> dict[str, Any]:
        Path(folder, TOKENIZER_NAME).write_text(self._tokenizer.to_str(pretty=True), "utf-8")
        model = type(self._tokenizer.model).__name__
        return {"kind": "tokenizers", "model": model, "file": TOKENIZER_NAME}

    def __repr__(self) -> str:
        model = type(self._tokenizer.model).__name__
        return f"SubwordTokenizer({model}, {self.vocab_size} tokens, separator={self._word!r})"


def train_tokenizer(
    dataset: GroupedDataset, *, vocab_size: int, kind: str = "bpe", text: str = "text"
) -> SubwordTokenizer:
    """Train a subword tokenizer on the text of a data set, such as that of the training clients.

    The text is read once, in the order of the groups; what is held in memory are its distinct
    words. The same text gives the same tokenizer.

    **Arguments:**

    - `dataset`: the data set, or a part of it.
    - `vocab_size`: how many tokens to make, with the separator. Text of too few different words
        gives fewer.
    - `kind`: `"bpe"`: byte-pair encoding of bytes, which can hold any text ([Sennrich et al.
        2016](https://arxiv.org/abs/1508.07909), on bytes as GPT-2's); at least 257 tokens. Or
        `"wordpiece"`: BERT's pieces of words, in which words with rare characters are unknown.
    - `text`: the column to read.

    **Returns:**

    The tokenizer. Raises `ValueError` where there is no such column, and `ImportError` where the
    package `tokenizers` is missing: install `fedeqx[tokenizers]`.

    !!! Example

        ```python
        tokenizer = fx.data.train_tokenizer(parts["train"], vocab_size=8192)
        cohorts = fx.data.cohorts(parts["train"], tokenizer=tokenizer, ...)
        ```
    """
    if text not in dataset.schema.names or not is_text(dataset.schema.field(text).type):
        raise ValueError(
            f"train_tokenizer(text={text!r}): the data set has no text column of this name; its "
            f"columns are {dataset.schema.names}."
        )
    if kind not in ("bpe", "wordpiece"):
        raise ValueError(f"train_tokenizer(kind={kind!r}): give 'bpe' or 'wordpiece'.")
    least = 257 if kind == "bpe" else 3
    if vocab_size < least:
        raise ValueError(f"train_tokenizer(vocab_size={vocab_size}): give at least {least}.")
    made, trainer = _bytes_bpe(vocab_size) if kind == "bpe" else _word_piece(vocab_size)
    made.train_from_iterator(_texts(dataset, text), trainer=trainer)
    return SubwordTokenizer(made.to_str(), separator=_SEPARATOR)


def _texts(dataset: GroupedDataset, text: str) -> Iterator[list[str]]:
    for group in dataset:
        for batch in group.batches(columns=(text,)):
            yield batch.column(0).fill_null("").to_pylist()


def _bytes_bpe(vocab_size: int) -> tuple[Any, Any]:
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_SEPARATOR],
        # All bytes, seen or not. Sorted: the library gives a set, and its order decides the ids.
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    return tokenizer, trainer


def _word_piece(vocab_size: int) -> tuple[Any, Any]:
    library = _library()
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[_SEPARATOR, _UNKNOWN], show_progress=False
    )
    return tokenizer, trainer


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "Subword tokenizers need the package tokenizers: install fedeqx[tokenizers]."
        ) from error
    return tokenizers


def _restore(serialized: str, separator: str) -> SubwordTokenizer:
    return SubwordTokenizer(serialized, separator=separator)
