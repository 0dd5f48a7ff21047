"""A round in chunks: the same clients with the same batches, in memory a few at a time."""

import tracemalloc

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint

import fedeqx.data as data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Twenty groups; group n has n + 1 examples that pack to n + 1 sequences of 4 targets."""
    records = [
        {"g": f"c{n:02d}", "text": chr(97 + n) * (5 if k == 0 else 3)}
        for n in range(20)
        for k in range(n + 1)
    ]
    return data.group(records, by="g", out=tmp_path_factory.mktemp("chunks") / "out")


def make(dataset, **changes):
    settings = {"size": 7, "steps": 4, "batch_size": 2, "sequence_length": 4, "seed": 0}
    return data.cohorts(dataset, **{**settings, **changes})


def joined(chunks):
    """The fields of the cohort that the chunks make up."""
    return {
        "ids": tuple(group_id for chunk in chunks for group_id in chunk.ids),
        "tokens": np.concatenate([chunk.batches["tokens"] for chunk in chunks]),
        "mask": np.concatenate([chunk.batches["mask"] for chunk in chunks]),
        "step_mask": np.concatenate([chunk.step_mask for chunk in chunks]),
        "num_examples": np.concatenate([chunk.num_examples for chunk in chunks]),
    }


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("clients", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])], ids=str
)
@pytest.mark.parametrize("threads", [0, 2])
def test_the_chunks_make_up_the_cohort_every_time(dataset, clients, sizes, threads):
    cohorts = make(dataset)
    for number in (0, 5):
        chunks = cohorts.chunks(number, clients, threads=threads)
        assert isinstance(chunks, grain.IterDataset)
        expected = joined([cohorts[number]])
        for _ in range(2):
            got = list(chunks)
            assert [len(chunk.ids) for chunk in got] == sizes
            assert {chunk.round for chunk in got} == {number}
            assert_same(joined(got), expected)


@pytest.mark.parametrize("mode", ["replacement", "poisson", "weighted"])
def test_any_sampling_and_several_epochs(dataset, mode):
    cohorts = make(dataset, sampling=mode, epochs=2)
    assert_same(joined(list(cohorts.chunks(3, 4))), joined([cohorts[3]]))


def test_two_rounds_at_once_do_not_mix(dataset):
    cohorts = make(dataset)
    pairs = list(zip(cohorts.chunks(1, 2), cohorts.chunks(2, 2), strict=True))
    for number, chunks in zip((1, 2), zip(*pairs, strict=True), strict=True):
        assert_same(joined(chunks), joined([cohorts[number]]))


def test_a_process_gets_the_chunks_of_its_share(dataset):
    shares = [make(dataset, size=8, process=(index, 2)) for index in range(2)]
    chunks = [chunk for share in shares for chunk in share.chunks(4, 3)]
    assert [len(chunk.ids) for chunk in chunks] == [3, 1, 3, 1]
    assert_same(joined(chunks), joined([make(dataset, size=8)[4]]))


def test_all_chunks_have_the_most_steps(dataset):
    short = [[f"c{n:02d}" for n in range(4)]]
    cohorts = make(dataset, size=4, sampling=short, step_buckets=(2, 4))
    assert cohorts[0].step_mask.shape == (4, 2)
    chunks = list(cohorts.chunks(0, 2))
    assert [chunk.step_mask.shape for chunk in chunks] == [(2, 4)] * 2
    whole = joined(chunks)
    assert not whole["step_mask"][:, 2:].any()
    np.testing.assert_array_equal(whole["tokens"][:, :2], cohorts[0].batches["tokens"])


def test_they_resume_exactly(dataset):
    assert_equal_output_after_checkpoint(make(dataset).chunks(0, 2))


def test_memory_depends_on_the_chunk_and_not_on_the_cohort(dataset):
    def peak(size):
        cohorts = make(dataset, size=size, sampling="replacement", sequence_length=1000)
        for _ in cohorts.chunks(0, 2):  # Imports, and caches of the files.
            break
        tracemalloc.start()
        try:
            seen = sum(len(chunk.ids) for chunk in cohorts.chunks(1, 2))
            assert seen == size
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # A client's tokens and mask take 40 kB; 190 more clients would take 7.6 MB.
    assert peak(200) < peak(10) + 300_000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"clients": 0}, "clients=0"),
        ({"threads": -1}, "threads=-1"),
        ({"buffer": 0}, "buffer=0"),
        ({"threads": 3, "buffer": 2}, "threads=3"),
    ],
)
def test_wrong_numbers_are_named(dataset, arguments, named):
    with pytest.raises(ValueError, match=named):
        make(dataset).chunks(0, **{"clients": 2, **arguments})


def test_a_round_that_does_not_exist(dataset):
    with pytest.raises(IndexError, match="Round 3 of 3"):
        make(dataset, rounds=3).chunks(3, 2)
