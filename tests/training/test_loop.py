"""The loop: rounds are a pure function of (seed, round), so a resumed run is the same run."""

import hashlib

import equinox as eqx
import jax
import numpy as np
import pytest

from fedeqx.training import Run, client_seed, to_clients, train


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def test_a_resumed_run_gives_the_numbers_of_an_uninterrupted_one(
    algorithm, model, cohorts, tmp_path
):
    key = jax.random.key(7)
    state = algorithm.init(model, key=key)
    losses = []
    whole = train(
        algorithm,
        state,
        cohorts,
        stop=5,
        key=key,
        callbacks=[lambda r: losses.append(float(r.report.client.loss))],
    )

    run = Run(tmp_path / "run", {})
    half = train(algorithm, state, cohorts, stop=2, key=key)
    run.checkpoint(half, round=2)
    again = []
    resumed = train(
        algorithm,
        run.restore(state),
        cohorts.to_grain(start=2),
        start=2,
        stop=5,
        key=key,
        callbacks=[lambda r: again.append(float(r.report.client.loss))],
    )
    assert again == losses[2:]
    for a, b in zip(leaves(whole), leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({*losses}) == 5


def test_a_round_is_one_step_of_the_algorithm(algorithm, model, cohorts):
    """The loop adds nothing: by hand, the same cohort and key give the same state."""
    key = jax.random.key(1)
    state = algorithm.init(model, key=key)
    by_hand = state
    for r in (0, 1):
        by_hand, _ = algorithm.step(by_hand, to_clients(cohorts[r]), key=jax.random.fold_in(key, r))
    looped = train(algorithm, state, cohorts, stop=2, key=key)
    for a, b in zip(leaves(by_hand), leaves(looped), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_callbacks_are_told_every_round_in_order(algorithm, model, cohorts):
    told = []
    train(
        algorithm,
        algorithm.init(model, key=jax.random.key(0)),
        cohorts.to_grain(start=3),
        start=3,
        stop=6,
        key=jax.random.key(0),
        callbacks=[lambda r: told.append(("a", r)), lambda r: told.append(("b", r))],
    )
    assert [(who, r.round) for who, r in told] == [(w, n) for n in (3, 4, 5) for w in "ab"]
    for _, result in told:
        assert result.ids == cohorts[result.round].ids
        assert result.seconds > 0
        assert isinstance(result.report.client.loss, np.ndarray)
        assert (
            int(result.report.aggregator.total_weight) == cohorts[result.round].num_examples.sum()
        )


def test_only_the_rounds_asked_for_are_read(algorithm, model, cohorts):
    read = []

    def watched():
        for number in range(1, 10):
            read.append(number)
            yield cohorts[number]

    state = algorithm.init(model, key=jax.random.key(0))
    assert train(algorithm, state, watched(), start=2, stop=2, key=jax.random.key(0)) is state
    assert read == []
    train(algorithm, state, watched(), start=1, stop=4, key=jax.random.key(0))
    assert read == [1, 2, 3]


def test_cohorts_of_the_wrong_rounds_are_refused(algorithm, model, cohorts):
    state = algorithm.init(model, key=jax.random.key(0))
    with pytest.raises(ValueError, match="Round 2 got the cohort of round 0"):
        train(algorithm, state, cohorts, start=2, stop=4, key=jax.random.key(0))
    with pytest.raises(ValueError, match="end before round 1"):
        train(algorithm, state, [cohorts[0]], stop=2, key=jax.random.key(0))


@pytest.mark.parametrize("group_id", ["c7", "", 7, "7", b"7", "é"])
def test_a_clients_seed_is_a_hash_of_its_id(group_id):
    digest = hashlib.blake2b(repr(group_id).encode(), digest_size=4).hexdigest()
    assert client_seed(group_id) == int(digest, 16)


def test_seeds_follow_the_clients_whatever_their_place(cohorts):
    first = to_clients(cohorts[0]).value.seed
    by_id = dict(zip(cohorts[0].ids, np.asarray(first).tolist(), strict=True))
    assert by_id == {i: client_seed(i) for i in cohorts[0].ids}
    assert len(set(by_id.values())) == 4
