"""Byte-level tokens and packing, against loops over Python text."""

import random
import re

import numpy as np
import pyarrow as pa
import pytest

import fedeqx.data as data
from fedeqx.data._measure import measure, text_bytes
from fedeqx.data._tokens import TokenSource, token_chunks

TEXTS = ["", "a", "héllo wörld", "", "日本語\n", "\x00\x00", "x" * 40, ""]


def tokens_by_hand(texts):
    tokens = []
    for number, text in enumerate(texts):
        tokens += [256] * (number > 0) + list((text or "").encode())
    return tokens


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["ab"], TEXTS, ["a", None, "b"]])
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_tokens_of_a_group(kind, texts, cut):
    # A slice has an offset into its parent's buffers, which is easily forgotten.
    column = pa.array(["before", *texts, "after"], kind)[1:-1]
    pieces = [column[start : start + cut] for start in range(0, len(column), cut)]
    chunks = list(token_chunks(pieces, TokenSource("text", text_bytes, 256)))
    got = np.concatenate(chunks) if chunks else np.zeros(0)
    assert got.tolist() == tokens_by_hand(texts)


@pytest.mark.parametrize("length", [1, 2, 5, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7, 64, 65, 66, 200])
def test_every_token_but_the_first_is_a_target_once(count, length):
    tokens = np.arange(1, count + 1)
    sequences, mask = data.pack(tokens, length)
    assert sequences.shape == (max(0, -(-(count - 1) // length)), length + 1)
    assert mask.shape == (len(sequences), length)
    assert sequences.dtype == np.int32
    targets = [t for row, real in zip(sequences, mask, strict=True) for t in row[1:][real]]
    inputs = [t for row, real in zip(sequences, mask, strict=True) for t in row[:-1][real]]
    assert targets == list(range(2, count + 1))
    assert inputs == list(range(1, count))
    assert not sequences[:, 1:][~mask].any()


def test_encode_and_decode():
    for text in TEXTS:
        tokens = data.encode_bytes(text)
        assert tokens.tolist() == list(text.encode())
        assert data.decode_bytes(tokens) == text
    assert data.decode_bytes([104, 256, 105, 255]) == "h\ni\N{REPLACEMENT CHARACTER}"
    assert data.BYTE_VOCAB_SIZE == 257 == data.SEPARATOR + 1


def size_by_hand(value):
    match value:
        case None:
            return 0, 0
        case str():
            return len(value.encode()), len(value.encode().split())
        case bytes():
            return len(value), 0
        case bool():
            return 1, 0
        case int() | float():
            return 8, 0
    items = value.values() if isinstance(value, dict) else value
    parts = [size_by_hand(item) for item in items]
    return sum(p[0] for p in parts), sum(p[1] for p in parts)


@pytest.mark.parametrize(
    "values",
    [
        ["a b", " ", "", None, "x", " lead", "trail ", "\ttab\nline", "é è"],
        [b"a b", None, b""],
        [1, None, 3],
        [1.5, None],
        [True, None],
        [[1, 2], None, [], [3]],
        [["a b", "c"], None, [], [None, "d"]],
        [[["a"], []], [[], ["b c", ""]], None],
        [{"x": 1, "y": "a b"}, None, {"x": None, "y": None}],
        [[{"x": b"abc", "y": [1, 2]}], [], None],
        [None, None],
    ],
    ids=str,
)
def test_bytes_and_words_of_any_column(values):
    column = pa.array([values[0], *values, values[0]])[1:-1]
    got_bytes, got_words = measure(pa.record_batch({"c": column}))
    assert list(zip(got_bytes.tolist(), got_words.tolist(), strict=True)) == [
        size_by_hand(value) for value in values
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("skipped", [0, 1, 9])
def test_words_of_texts_of_any_length(kind, skipped):
    chooser = random.Random(0)
    letters = [*map(chr, range(40)), *"abcdef", "\u00e9", "\u3000", "\x85"]
    # Words are counted 64 bytes at a time, in blocks of 65,536.
    lengths = [0, 0, 1, 1, 7, 8, 9, *range(60, 70), 127, 128, 129, 200_000, 0, 65_535, 65_536, 3]
    texts = ["".join(chooser.choices(letters, k=length)) for length in lengths]
    column = pa.array(texts, kind)[skipped:]
    assert measure(pa.record_batch({"c": column}))[1].tolist() == [
        len(re.findall(r"[^\t-\r\x1c-\x20]+", text)) for text in texts[skipped:]
    ]


def test_bytes_of_other_types():
    columns = {
        "view": pa.array(["a b", None], pa.string_view()),
        "dictionary": pa.array(["a b", "c"]).dictionary_encode(),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3, 2), np.float32)),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        "date": pa.array([1, None], pa.date32()),
    }
    got_bytes, got_words = measure(pa.record_batch(columns))
    assert got_bytes.tolist() == [3 + 3 + 4 + 24 + 5 + 4, 0 + 1 + 4 + 24 + 0 + 0]
    assert got_words.tolist() == [2 + 2 + 1, 0 + 1 + 0]
