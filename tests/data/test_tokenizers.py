"""Tokenizers: trained, loaded, on the fly and to disk; against the library itself and loops."""

import itertools
import json
import pickle
import random
import sys

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

import fedeqx.data as data

WORDS = ["the", "client", "server", "cohört", "日本", "round", "a", "\n", "  ", "😀"]


def rows():
    chooser = random.Random(0)
    return [
        {"g": n % 13, "y": n % 3, "text": " ".join(chooser.choices(WORDS, k=chooser.randrange(12)))}
        for n in range(400)
    ]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("tokens") / "out"
    return data.group(rows(), by="g", out=out, row_group_bytes=900)


@pytest.fixture(scope="module")
def bpe(dataset):
    return data.train_tokenizer(dataset, vocab_size=300)


class Lengths(data.AbstractTokenizer):
    """A tokenizer of one's own: every word is its length, and there are many tokens."""

    @property
    def vocab_size(self):
        return 100_000

    @property
    def separator(self):
        return 99_999

    def encode_column(self, texts):
        lists = [list(map(len, text.split())) for text in texts.to_pylist()]
        offsets = np.cumsum([0, *map(len, lists)])
        return np.asarray([n for tokens in lists for n in tokens], np.int64), offsets

    def decode(self, tokens):
        return " ".join("x" * int(n) for n in tokens)

    def save(self, folder):
        return {"kind": "lengths"}


def documents(group):
    return [example["text"] for example in group]


def joined(lists, separator):
    """Token lists with a separator between them."""
    tokens: list = []
    for number, one in enumerate(lists):
        tokens += [separator] * (number > 0) + list(one)
    return tokens


def trained(cohort, place):
    tokens, mask = cohort.batches["tokens"][place], cohort.batches["mask"][place]
    return list(zip(tokens[..., :-1][mask].tolist(), tokens[..., 1:][mask].tolist(), strict=True))


def make(dataset, **changes):
    settings = {"size": 4, "steps": 200, "batch_size": 2, "sequence_length": 5, "seed": 0}
    return data.cohorts(dataset, **{**settings, **changes})


def assert_same(one, two):
    assert (one.round, one.ids) == (two.round, two.ids)
    np.testing.assert_array_equal(one.batches["tokens"], two.batches["tokens"])
    np.testing.assert_array_equal(one.batches["mask"], two.batches["mask"])
    np.testing.assert_array_equal(one.num_examples, two.num_examples)


def test_bpe_of_bytes_holds_any_text_and_has_the_asked_size(bpe):
    assert bpe.vocab_size == 300
    for text in ["", "the client", "\x00 \r\n\t", "never seen: ÿ ж 🦕", *WORDS]:
        tokens = bpe.encode(text)
        assert tokens.dtype == np.int32
        assert bpe.decode(tokens) == text
        assert ((tokens >= 0) & (tokens < 300)).all()
    assert len(bpe.encode("the client")) < 10


def test_bpe_merges_the_most_frequent_pair(tmp_path):
    texts = ["ab ab ab", "cd", "xab"]
    dataset = data.group([{"g": 0, "text": t} for t in texts], by="g", out=tmp_path / "out")
    tokenizer = data.train_tokenizer(dataset, vocab_size=258)
    assert [len(tokenizer.encode(t)) for t in ("ab", "cd", "abab", "ba")] == [1, 2, 2, 2]


def test_training_again_gives_the_same(dataset, bpe):
    again = data.train_tokenizer(dataset, vocab_size=300)
    assert pickle.dumps(again) == pickle.dumps(bpe)
    part = data.train_tokenizer(dataset.select([0, 1]), vocab_size=300)
    assert pickle.dumps(part) != pickle.dumps(bpe)


def test_word_pieces(dataset):
    tokenizer = data.train_tokenizer(dataset, vocab_size=120, kind="wordpiece")
    assert tokenizer.vocab_size <= 120
    assert tokenizer.decode(tokenizer.encode("the client server")) == "the client server"
    assert len(tokenizer.encode("server")) == 1
    assert tokenizer.decode(tokenizer.encode("the ж")) == "the [UNK]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 256}, "vocab_size=256.*at least 257"),
        ({"vocab_size": 300, "kind": "unigram"}, "kind='unigram'"),
        ({"vocab_size": 300, "text": "y"}, r"text='y'.*\['g', 'y', 'text'\]"),
        ({"vocab_size": 300, "text": "body"}, "text='body'"),
    ],
)
def test_what_cannot_be_trained_is_named(dataset, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.train_tokenizer(dataset, **arguments)


def foreign(tmp_path, special):
    """A tokenizer.json as models have them: it cuts, pads and adds tokens."""
    model = tokenizers.models.WordLevel({"[UNK]": 0, special: 1, "a": 2, "b": 3}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens([special])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{special} $A {special}", special_tokens=[(special, 1)]
    )
    made.enable_truncation(4)
    made.enable_padding(length=6, pad_id=3)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_loaded_tokenizer_neither_cuts_nor_pads_nor_adds(tmp_path):
    tokenizer = data.load_tokenizer(foreign(tmp_path, "<|endoftext|>"))
    assert tokenizer.separator == 1
    assert tokenizer.encode("a b a b a b").tolist() == [2, 3, 2, 3, 2, 3]
    assert tokenizer.encode("a").tolist() == [2]
    assert tokenizer.encode("").tolist() == []
    # The text of a special token stays text.
    assert 1 not in tokenizer.encode("a <|endoftext|> b")
    assert pickle.loads(pickle.dumps(tokenizer)).encode("a <|endoftext|> b").tolist() == (
        tokenizer.encode("a <|endoftext|> b").tolist()
    )


def test_the_separator_is_found_or_given(tmp_path):
    file = foreign(tmp_path, "<|mine|>")
    with pytest.raises(ValueError, match=r"tokenizer\.json has none of.*separator="):
        data.load_tokenizer(file)
    with pytest.raises(ValueError, match=r"none of the tokens \['c'\]"):
        data.load_tokenizer(file, separator="c")
    assert data.load_tokenizer(file, separator="<|mine|>").separator == 1
    assert data.load_tokenizer(file, separator="b").separator == 3


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*tokenizer\.json"):
        data.load_tokenizer(tmp_path)
    for content in (b"{}", b"text", b"\xff\xfe\x00"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(data.DatasetFormatError, match=r"tokenizer\.json is not a tokenizer"):
            data.load_tokenizer(tmp_path)


def test_without_the_package_the_extra_is_named(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"install fedeqx\[tokenizers\]"):
        data.train_tokenizer(dataset, vocab_size=300)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ImportError, match=r"install fedeqx\[tokenizers\]"):
        data.load_tokenizer(tmp_path)
    make(dataset)[0]  # byte-level needs none


def test_every_token_of_a_group_is_trained_on_once_and_none_of_another(dataset, bpe):
    library = tokenizers.Tokenizer.from_str(bpe._tokenizer.to_str())
    own = Lengths()
    for number in range(3):
        for tokenizer, encode in (
            (bpe, lambda text: library.encode(text).ids),
            (own, lambda text: [len(word) for word in text.split()]),
            (data.ByteTokenizer(), lambda text: list(text.encode())),
        ):
            cohort = make(dataset, tokenizer=tokenizer)[number]
            for place, group_id in enumerate(cohort.ids):
                lists = map(encode, documents(dataset.group(group_id)))
                tokens = joined(lists, tokenizer.separator)
                assert trained(cohort, place) == list(itertools.pairwise(tokens))


def test_bytes_are_the_default(dataset):
    assert_same(make(dataset)[2], make(dataset, tokenizer=data.ByteTokenizer())[2])


@pytest.mark.parametrize("name", ["bpe", "bytes", "lengths"])
@pytest.mark.parametrize(
    "settings", [{}, {"steps": 2}, {"steps": 7, "epochs": 3}, {"steps": 40, "epochs": 3}], ids=str
)
def test_tokens_on_disk_give_the_same_cohorts(tmp_path, dataset, bpe, name, settings):
    tokenizer = {"bpe": bpe, "bytes": data.ByteTokenizer(), "lengths": Lengths()}[name]
    tokenized = data.tokenize(
        dataset, tokenizer, out=tmp_path / "tokens", row_group_bytes=700, shard_bytes=3000
    )
    once = make(tokenized, tokens="tokens", **settings)
    for number, cohort in enumerate(make(dataset, tokenizer=tokenizer, rounds=4, **settings)):
        assert_same(once[number], cohort)


def test_a_data_set_of_tokens(tmp_path, dataset, bpe):
    told = []
    tokenized = data.tokenize(
        dataset, bpe, out=tmp_path / "t", column="ids", keep=("y",), progress=told.append
    )
    assert data.verify(tmp_path / "t").ok
    assert list(tokenized.ids()) == list(dataset.ids())
    assert tokenized.schema == pa.schema({"ids": pa.list_(pa.uint16()), "y": pa.int64()})
    assert (told[-1].stage, told[-1].examples, told[-1].total) == ("write", 400, 400)
    for group in tokenized:
        expected = documents(dataset.group(group.id))
        assert [bpe.decode(example["ids"]) for example in group] == expected
        assert [int(e["y"]) for e in group] == [int(e["y"]) for e in dataset.group(group.id)]
    manifest = json.loads((tmp_path / "t" / "manifest.json").read_text())
    assert manifest["tokenizer"] == {
        "kind": "tokenizers",
        "model": "BPE",
        "file": "tokenizer.json",
        "column": "ids",
        "vocab_size": 300,
        "separator": bpe.separator,
    }
    assert manifest["partition"] == dataset.manifest["partition"]
    loaded = data.load_tokenizer(tmp_path / "t")
    assert pickle.dumps(loaded) == pickle.dumps(bpe)
    wide = data.tokenize(dataset, Lengths(), out=tmp_path / "wide")
    assert wide.schema.field("tokens").type == pa.list_(pa.int32())


def test_tokens_of_a_part_and_of_a_selection(tmp_path, dataset, bpe):
    part = dataset.select([3, 5, 8]).split_examples({"a": 0.5, "b": 0.5}, seed=0)["a"]
    tokenized = data.tokenize(part, bpe, out=tmp_path / "part")
    assert data.verify(tmp_path / "part").ok
    assert {g.id: [bpe.decode(e["tokens"]) for e in g] for g in tokenized} == {
        g.id: documents(g) for g in part
    }


def test_ids_of_all_kinds_and_large_groups(tmp_path, bpe):
    ids = ["a", 7, b"\xff", "7"]
    rows = [{"n": n, "text": "the round " * (n % 400)} for n in range(900)]
    dataset = data.group(rows, by=lambda e: ids[e["n"] % 4], out=tmp_path / "out")
    tokenized = data.tokenize(dataset, bpe, out=tmp_path / "t")
    assert list(tokenized.ids()) == list(dataset.ids())
    assert data.verify(tmp_path / "t").ok
    for group in dataset:
        tokens = data.group_tokens(tokenized.group(group.id), tokens="tokens")
        assert bpe.decode(tokens) == "".join(documents(group))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "y"}, "text='y'"),
        ({"keep": ("z",)}, r"keep=\['z'\]"),
        ({"keep": ("y",), "column": "y"}, "column='y'"),
        ({"column": "group_id"}, "column='group_id'"),
        ({"shard_bytes": "much"}, "shard_bytes='much'"),
    ],
)
def test_what_cannot_be_tokenized_is_named_and_leaves_nothing(
    tmp_path, dataset, bpe, arguments, message
):
    with pytest.raises(ValueError, match=message):
        data.tokenize(dataset, bpe, out=tmp_path / "out", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_fails_leaves_nothing(tmp_path, dataset, bpe, monkeypatch):
    monkeypatch.setattr(Lengths, "encode_column", lambda self, texts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        data.tokenize(dataset, Lengths(), out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    data.tokenize(dataset, bpe, out=tmp_path / "out")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        data.tokenize(dataset, bpe, out=tmp_path / "out")
    data.tokenize(dataset, bpe, out=tmp_path / "out", overwrite=True)
    with pytest.raises(ValueError, match="no examples"):
        data.tokenize(dataset.select([]), bpe, out=tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


LISTS = [[5, 6, 7], [], [70_000], None, [8, 9]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.uint64())], ids=str
)
def test_token_lists_of_ones_own(tmp_path, kind):
    table = pa.table({"g": ["a"] * 5, "ids": pa.array(LISTS, kind)})
    dataset = data.group(table, by="g", out=tmp_path / "out")
    cohort = make(dataset, size=1, tokens="ids")[0]
    assert trained(cohort, 0) == list(itertools.pairwise([5, 6, 7, 70_000, 8, 9]))


def test_token_lists_of_one_length(tmp_path):
    column = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2))
    dataset = data.group(pa.table({"g": [0] * 3, "ids": column}), by="g", out=tmp_path / "out")
    assert data.group_tokens(dataset[0], tokens="ids").tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("lists", "message"), [([[1, None]], "null"), ([[2**31]], "32 bits")])
def test_what_is_no_token_is_named(tmp_path, lists, message):
    table = pa.table({"g": [0], "ids": pa.array(lists, pa.list_(pa.int64()))})
    dataset = data.group(table, by="g", out=tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        make(dataset, size=1, tokens="ids")[0]


def test_wrong_columns_are_named(tmp_path, dataset, bpe):
    tokenized = data.tokenize(dataset, bpe, out=tmp_path / "t", keep=("y",))
    with pytest.raises(ValueError, match=r"tokenizer=.*tokens='tokens'"):
        make(tokenized, tokens="tokens", tokenizer=bpe)
    with pytest.raises(ValueError, match=r"tokens='y'.*no column of lists.*'y': 'int64'"):
        make(tokenized, tokens="y")
    with pytest.raises(ValueError, match=r"cohorts\(text='text'\).*give tokens='tokens'"):
        make(tokenized)
    with pytest.raises(ValueError, match=r"group_tokens\(text='text'\)"):
        data.group_tokens(tokenized[0])


def test_the_tokens_of_a_group_pack_into_sequences(dataset, bpe):
    group = dataset[4]
    tokens = data.group_tokens(group, tokenizer=bpe)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == joined(map(bpe.encode, documents(group)), bpe.separator)
    sequences = data.pack(tokens, 7)
    assert sequences.tokens[:, 1:][sequences.mask].tolist() == tokens[1:].tolist()
    part = group.split({"none": 0, "all": 1}, seed=0)
    assert data.group_tokens(part["none"]).tolist() == []
    assert data.group_tokens(part["all"]).tolist() == joined(
        (text.encode() for text in documents(group)), 256
    )


def test_worker_processes_and_chunks_tokenize_too(dataset, bpe):
    cohorts = make(dataset, tokenizer=bpe, steps=3, rounds=2)
    for one, two in zip(cohorts.to_grain(workers=1), cohorts, strict=True):
        assert_same(one, two)
    chunks = list(cohorts.chunks(1, 3))
    tokens = np.concatenate([chunk.batches["tokens"] for chunk in chunks])
    np.testing.assert_array_equal(tokens, cohorts[1].batches["tokens"])
