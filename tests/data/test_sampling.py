"""Ways to draw cohorts, local epochs, step buckets, processes and worker processes."""

import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint

import fedeqx.data as data
from fedeqx.data._sampling import make_sampling


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Twenty groups; group n has n + 1 examples that pack to n + 1 sequences of 4 targets."""
    records = [
        {"g": f"c{n:02d}", "text": chr(97 + n) * (5 if k == 0 else 3)}
        for n in range(20)
        for k in range(n + 1)
    ]
    return data.group(records, by="g", out=tmp_path_factory.mktemp("sampling") / "out")


def make(dataset, **changes):
    settings = {"size": 4, "steps": 4, "batch_size": 2, "sequence_length": 4, "seed": 0}
    return data.cohorts(dataset, **{**settings, **changes})


def ids_of(cohorts, rounds):
    return [cohorts[r].ids for r in range(rounds)]


def assert_same(one, two):
    assert (one.round, one.ids) == (two.round, two.ids)
    np.testing.assert_array_equal(one.batches["tokens"], two.batches["tokens"])
    np.testing.assert_array_equal(one.batches["mask"], two.batches["mask"])
    np.testing.assert_array_equal(one.step_mask, two.step_mask)
    np.testing.assert_array_equal(one.num_examples, two.num_examples)


FIXED = [["c00", "c03", "c01", "c19"], ["c03", "c02", "c05", "c04"]]
MODES = ["epoch", "uniform", "replacement", "poisson", "weighted", FIXED]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_mode_is_a_function_of_seed_and_round(dataset, mode):
    one = ids_of(make(dataset, sampling=mode), 8)
    assert one == ids_of(make(dataset, sampling=mode), 8)
    cohorts = make(dataset, sampling=mode)
    assert [cohorts[r].ids for r in (5, 0, 7)] == [one[5], one[0], one[7]]
    if mode is not FIXED:
        assert one != ids_of(make(dataset, sampling=mode, seed=1), 8)
        assert len(set(one)) > 1


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_grain_gives_the_same(dataset, mode):
    cohorts = make(dataset, sampling=mode, rounds=7)
    got = list(cohorts.to_grain())
    assert len(got) == 7
    for one, two in zip(got, cohorts, strict=True):
        assert_same(one, two)
    assert_equal_output_after_checkpoint(make(dataset, sampling=mode, rounds=4).to_grain())


def places(dataset, mode, rounds):
    """The groups of some rounds by number, without reading their examples."""
    sampling = make_sampling(dataset, mode, 4, 0)
    return [sampling.places(number).tolist() for number in range(rounds)]


def test_uniform_rounds_have_different_clients_and_every_group_is_as_likely(dataset):
    rounds = places(dataset, "uniform", 1500)
    assert all(len(set(clients)) == 4 for clients in rounds)
    counts = np.bincount(np.concatenate(rounds), minlength=20)
    # Each group is in a fifth of the rounds; five standard deviations.
    assert abs(counts - 300).max() < 5 * np.sqrt(1500 * 0.2 * 0.8)


def test_replacement_repeats_clients_as_often_as_it_should(dataset):
    rounds = places(dataset, "replacement", 1500)
    different = np.mean([len(set(clients)) == 4 for clients in rounds])
    expected = 19 / 20 * 18 / 20 * 17 / 20
    assert abs(different - expected) < 5 * np.sqrt(expected * (1 - expected) / 1500)
    assert make(dataset, size=100, sampling="replacement")[0].step_mask.shape[0] == 100


def test_poisson_counts_are_binomial(dataset):
    counts = []
    for clients in places(dataset, "poisson", 1500):
        real = [place for place in clients if place >= 0]
        assert clients == real + [-1] * (len(clients) - len(real))
        assert len(set(real)) == len(real)
        counts.append(len(real))
    # Variance 3.2 of a count, and about 2 * 3.2^2 / 1500 of their variance; five deviations.
    assert abs(np.mean(counts) - 4) < 5 * np.sqrt(3.2 / 1500)
    assert abs(np.var(counts) - 3.2) < 5 * 3.2 * np.sqrt(2 / 1500)


def test_empty_places_of_a_poisson_cohort_do_nothing(dataset):
    cohorts = make(dataset, sampling="poisson")
    shape = cohorts[0].step_mask.shape
    for number in range(20):
        cohort = cohorts[number]
        empty = np.array([group_id is None for group_id in cohort.ids], dtype=bool)
        assert cohort.step_mask.shape == shape
        assert empty.any()
        assert not cohort.step_mask[empty].any()
        assert not cohort.num_examples[empty].any()
        assert cohort.step_mask[~empty].any(1).all()


def test_weighted_draws_first_clients_in_proportion_to_size(dataset):
    rounds = places(dataset, "weighted", 3000)
    assert all(len(set(clients)) == 4 for clients in rounds)
    first = np.bincount([clients[0] for clients in rounds], minlength=20) / 3000
    shares = np.arange(1, 21) / 210
    assert (abs(first - shares) < 5 * np.sqrt(shares * (1 - shares) / 3000)).all()


def test_fixed_cohorts_come_again(dataset):
    cohorts = make(dataset, sampling=FIXED)
    assert ids_of(cohorts, 5) == [tuple(FIXED[n % 2]) for n in range(5)]
    part = dataset.select(FIXED[1])
    assert make(part, sampling=[FIXED[1]])[3].ids == tuple(FIXED[1])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sampling": "random"}, ValueError, "'epoch', 'uniform'"),
        ({"sampling": []}, ValueError, "at least one cohort"),
        ({"sampling": [["c00"]]}, ValueError, "size=4"),
        ({"sampling": ["c00"]}, ValueError, "list of size=4"),
        ({"sampling": [["c00", "c01", "c02", "none"]]}, KeyError, "'none'"),
        ({"size": 21}, ValueError, "sampling='replacement'"),
        ({"epochs": 0}, ValueError, "epochs=0"),
        ({"step_buckets": (1, 2)}, ValueError, "up to steps=4"),
        ({"step_buckets": (2, 1, 4)}, ValueError, "ascending"),
        ({"process": (2, 2)}, ValueError, "index must be below"),
        ({"process": (0, 3)}, ValueError, r"divide\s+size=4"),
    ],
)
def test_wrong_settings_are_named(dataset, changes, error, message):
    with pytest.raises(error, match=message):
        make(dataset, **changes)


@pytest.mark.parametrize(("epochs", "steps"), [(1, 50), (2, 50), (3, 7), (2, 3), (5, 2)])
def test_local_epochs_repeat_a_clients_batches(dataset, epochs, steps):
    once = make(dataset, size=20, steps=50)[0]
    many = make(dataset, size=20, steps=steps, epochs=epochs)[0]
    assert once.ids == many.ids
    for client in range(20):
        batches = once.batches["tokens"][client][once.step_mask[client]]
        got = many.batches["tokens"][client][many.step_mask[client]]
        total = min(epochs * len(batches), steps)
        assert len(got) == total
        for start in range(0, total, len(batches)):
            if total - start >= len(batches):
                np.testing.assert_array_equal(got[start : start + len(batches)], batches)
            else:
                rest = {batch.tobytes() for batch in got[start:]}
                assert rest <= {batch.tobytes() for batch in batches}
        counted = many.batches["mask"][client].any(-1).sum()
        assert many.num_examples[client] == counted


def test_step_buckets_bound_the_shapes(dataset):
    cohorts = make(dataset, size=1, steps=10, step_buckets=(1, 3, 10))
    whole = make(dataset, size=1, steps=10)
    for number in range(20):
        cohort, padded = cohorts[number], whole[number]
        needed = int(padded.step_mask.sum())
        steps = next(bucket for bucket in (1, 3, 10) if bucket >= needed)
        assert cohort.step_mask.shape == (1, steps)
        np.testing.assert_array_equal(cohort.batches["tokens"], padded.batches["tokens"][:, :steps])


@pytest.mark.parametrize("mode", ["epoch", "poisson"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_share_a_cohort(dataset, mode, count):
    whole = make(dataset, sampling=mode)
    parts = [make(dataset, sampling=mode, process=(n, count)) for n in range(count)]
    for number in range(5):
        shares = [part[number] for part in parts]
        assert len({share.step_mask.shape for share in shares}) == 1
        ids = [i for share in shares for i in share.ids]
        cohort = whole[number]
        assert tuple(ids[: len(cohort.ids)]) == cohort.ids
        assert set(ids[len(cohort.ids) :]) <= {None}
        tokens = np.concatenate([share.batches["tokens"] for share in shares])
        np.testing.assert_array_equal(tokens[: len(cohort.ids)], cohort.batches["tokens"])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_worker_processes_change_nothing(dataset, workers):
    cohorts = make(dataset, rounds=7)
    got = list(cohorts.to_grain(workers=workers, buffer=1))
    assert len(got) == 7
    for one, two in zip(got, cohorts, strict=True):
        assert_same(one, two)
