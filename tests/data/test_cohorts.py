"""Cohorts: pure functions of (seed, round); no client twice; every token once; masks that say "
"so."""

import itertools
import random
import subprocess
import sys

import grain
import numpy as np
import pytest

import fedeqx.data as data

LENGTH = 4


def text_of(sequences):
    """A text that packs to this many sequences of LENGTH targets."""
    return "" if not sequences else "".join(chr(97 + n % 26) for n in range(sequences * LENGTH))


def grouped(tmp_path, texts):
    records = [{"g": name, "text": text} for name, docs in texts.items() for text in docs]
    return data.group(records, by="g", out=tmp_path / "out")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    chooser = random.Random(0)
    texts = {
        f"c{n:02d}": [
            "".join(chooser.choices("abcdé ", k=chooser.randrange(60)))
            for _ in range(chooser.randrange(1, 12))
        ]
        for n in range(23)
    }
    return grouped(tmp_path_factory.mktemp("cohorts"), texts)


def make(dataset, **changes):
    settings = {"size": 5, "steps": 3, "batch_size": 2, "sequence_length": LENGTH, "seed": 0}
    return data.cohorts(dataset, **{**settings, **changes})


def assert_same(one, two):
    assert (one.round, one.ids) == (two.round, two.ids)
    assert one.batches.keys() == two.batches.keys()
    for name in one.batches:
        np.testing.assert_array_equal(one.batches[name], two.batches[name])
    np.testing.assert_array_equal(one.step_mask, two.step_mask)
    np.testing.assert_array_equal(one.num_examples, two.num_examples)


def trained(cohort, number):
    """The (input, target) pairs that a client trains on, in order."""
    tokens, mask = cohort.batches["tokens"][number], cohort.batches["mask"][number]
    real = mask & cohort.step_mask[number][:, None, None]
    return list(zip(tokens[..., :-1][real].tolist(), tokens[..., 1:][real].tolist(), strict=True))


def pairs_of(group):
    tokens = []
    for number, example in enumerate(group):
        tokens += [256] * (number > 0) + list(example["text"].encode())
    return list(itertools.pairwise(tokens))


def test_shapes_and_types(dataset):
    cohort = make(dataset)[0]
    assert cohort.batches["tokens"].shape == (5, 3, 2, LENGTH + 1)
    assert cohort.batches["tokens"].dtype == np.int32
    assert cohort.batches["mask"].shape == (5, 3, 2, LENGTH)
    assert cohort.batches["mask"].dtype == bool
    assert cohort.step_mask.shape == (5, 3)
    assert cohort.step_mask.dtype == bool
    assert cohort.num_examples.shape == (5,)
    assert cohort.num_examples.dtype == np.int32
    assert len(cohort.ids) == 5
    assert cohort.round == 0


def test_with_enough_steps_every_token_of_a_group_is_trained_on_once_and_none_of_another(dataset):
    cohorts = make(dataset, steps=200)
    for number in range(4):
        cohort = cohorts[number]
        for place, name in enumerate(cohort.ids):
            assert trained(cohort, place) == pairs_of(dataset.group(name))


def test_padding_is_zero_and_masked(dataset):
    cohort = make(dataset, steps=200)[0]
    tokens, mask = cohort.batches["tokens"], cohort.batches["mask"]
    assert not mask[~cohort.step_mask].any()
    assert not tokens[~cohort.step_mask].any()
    assert not tokens[..., 1:][~mask].any()
    np.testing.assert_array_equal(cohort.num_examples, mask.any(-1).sum((1, 2)))


@pytest.mark.parametrize(
    ("sequences", "steps"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3)]
)
def test_steps_that_a_client_does(tmp_path, sequences, steps):
    dataset = grouped(tmp_path, {"a": [text_of(sequences)]})
    cohort = make(dataset, size=1, steps=5, batch_size=8)[0]
    assert cohort.num_examples.tolist() == [sequences]
    assert cohort.step_mask.tolist() == [[True] * steps + [False] * (5 - steps)]


def test_no_client_twice_in_a_cohort_or_an_epoch_and_epochs_differ(dataset):
    cohorts = make(dataset, size=7)
    assert cohorts.rounds_per_epoch == 3
    epochs = [[i for r in range(3 * e, 3 * e + 3) for i in cohorts[r].ids] for e in range(20)]
    for epoch in epochs:
        assert len(set(epoch)) == 21
    assert epochs[0] != epochs[1]
    # Every group has its turn: the rest that an epoch leaves out changes.
    assert {i for epoch in epochs for i in epoch} == set(dataset.ids())
    whole = make(dataset, size=23)
    assert set(whole[5].ids) == set(dataset.ids())


def test_rounds_are_pure_functions_of_seed_and_round(dataset):
    cohorts = make(dataset, rounds=12)
    forward = [cohorts[r] for r in range(12)]
    for number in (7, 0, 11, 7):
        assert_same(make(dataset)[number], forward[number])
    for one, two in zip(cohorts, forward, strict=True):
        assert_same(one, two)
    assert [c.ids for c in forward] != [make(dataset, seed=1)[r].ids for r in range(12)]
    assert len(cohorts) == 12
    with pytest.raises(IndexError, match="Round 12 of 12"):
        cohorts[12]
    with pytest.raises(IndexError):
        cohorts[-1]
    with pytest.raises(TypeError, match="rounds="):
        len(make(dataset))


def test_a_capped_client_trains_on_whole_batches_drawn_anew_each_round(tmp_path):
    dataset = grouped(tmp_path, {"a": ["".join(chr(97 + n) for n in range(24)) + "y"]})
    cohorts = make(dataset, size=1, steps=2, batch_size=1)
    pairs = pairs_of(dataset.group("a"))
    batches = [tuple(pairs[n : n + LENGTH]) for n in range(0, 24, LENGTH)]
    counts = dict.fromkeys(batches, 0)
    for number in range(300):
        got = trained(cohorts[number], 0)
        first, second = tuple(got[:LENGTH]), tuple(got[LENGTH:])
        assert batches.index(first) < batches.index(second)
        counts[first] += 1
        counts[second] += 1
    # Each of 6 batches is drawn with probability 1/3 a round; 4.5 standard deviations.
    assert all(abs(count - 100) < 4.5 * np.sqrt(300 * 2 / 9) for count in counts.values())
    other = make(dataset, size=1, steps=2, batch_size=1, seed=1)
    assert any(trained(other[r], 0) != trained(cohorts[r], 0) for r in range(10))


def test_a_large_group_is_read_in_pieces_with_the_same_result(tmp_path):
    chooser = random.Random(3)
    docs = ["".join(chooser.choices("abc", k=chooser.randrange(3000))) for _ in range(300)]
    records = [{"g": "a", "text": text} for text in docs]
    small = data.group(records, by="g", out=tmp_path / "1", row_group_bytes=1000, shard_bytes=9000)
    large = data.group(records, by="g", out=tmp_path / "2", row_group_bytes="64MiB")
    for number in range(3):
        shape = {"size": 1, "steps": 5, "batch_size": 4, "sequence_length": 16}
        assert_same(make(small, **shape)[number], make(large, **shape)[number])


def test_grain_gives_the_same_cohorts_and_resumes_exactly(dataset):
    cohorts = make(dataset, rounds=11)
    pipeline = cohorts.to_grain()
    assert isinstance(pipeline, grain.IterDataset)
    expected = list(cohorts)
    got = list(pipeline)
    assert len(got) == 11
    for one, two in zip(got, expected, strict=True):
        assert_same(one, two)
    iterator = iter(pipeline)
    for _ in range(4):
        next(iterator)
    state = iterator.get_state()
    resumed = iter(cohorts.to_grain())
    resumed.set_state(state)
    assert_same(next(resumed), expected[4])
    late = iter(make(dataset).to_grain(start=10**9))
    assert next(late).round == 10**9


def test_grain_checkpoints(dataset):
    from grain.experimental import assert_equal_output_after_checkpoint

    assert_equal_output_after_checkpoint(make(dataset, rounds=5).to_grain())


GLOBAL_STATE = """
import random
import grain  # importing it draws from NumPy's global generator
import numpy as np
import fedeqx.data as data

def run():
    dataset = data.open({path!r})
    cohorts = data.cohorts(
        dataset, size=5, steps=1, batch_size=2, sequence_length=4, seed=0, rounds=3
    )
    parts = dataset.split_groups({{"a": 0.5, "b": 0.5}}, seed=0)
    return (
        [group.id for group in dataset.stream(seed=0)],
        list(parts["a"].ids()),
        [cohort.batches["tokens"].tolist() for cohort in cohorts.to_grain()],
    )

results = []
for seed in (1, 2):
    random.seed(seed)
    np.random.seed(seed)
    before = random.getstate(), np.random.get_state()
    results.append(run())
    assert random.getstate() == before[0]
    np.testing.assert_equal(np.random.get_state(), before[1])
assert results[0] == results[1]
"""


def test_no_global_random_state_is_read_or_written(dataset):
    # In a process of its own: the run-time type checks of this one draw from `random` themselves.
    code = GLOBAL_STATE.format(path=str(dataset.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["size", "steps", "batch_size", "sequence_length"])
def test_wrong_numbers_are_named(dataset, name):
    with pytest.raises(ValueError, match=rf"{name}=0"):
        make(dataset, **{name: 0})


def test_impossible_cohorts_are_named(tmp_path, dataset):
    with pytest.raises(ValueError, match=r"size=24 different clients.*has 23"):
        make(dataset, size=24)
    with pytest.raises(ValueError, match=r"text='body'.*'text': '.*string'"):
        make(dataset, text="body")
    numbers = data.group([{"g": "a", "n": 1}], by="g", out=tmp_path / "out")
    with pytest.raises(ValueError, match="text='n'"):
        make(numbers, size=1, text="n")
