"""Every registered algorithm against its NumPy oracle: values, reports, hypergradients."""

import jax
import numpy as np
from learning.helpers import (
    CLIENTS,
    ROUNDS,
    NpRounds,
    assert_oracles,
    assert_oracles_gradients,
    assert_same_outcome,
    each_algorithm,
    make_rounds,
    model_of,
    outcome,
    start,
    traces,
)


@each_algorithm
def test_values_and_reports_are_the_oracles(entry):
    rounds = make_rounds()
    found = outcome(entry, rounds)
    assert_oracles(entry, found, rounds)
    np.testing.assert_array_equal(found.states.round, np.arange(1, ROUNDS + 1))


@each_algorithm
def test_gradients_through_all_rounds_are_the_oracles(entry):
    """Of the next round's loss, by each hyperparameter and by the first model."""
    rounds = make_rounds(seed=1)
    assert_oracles_gradients(entry, outcome(entry, rounds), rounds)


@each_algorithm
def test_a_hyperparameter_that_changes_compiles_nothing(entry):
    rounds = make_rounds()
    outcome(entry, rounds)
    other = {name: 0.9 * value for name, value in entry.hyper.items()}
    with traces() as count:
        found = outcome(entry, rounds, **other)
    assert count == [0]
    assert_oracles(entry, found, rounds, **other)


@each_algorithm
def test_a_round_that_no_client_has_part_in_is_none(entry):
    """The first and a later one: states stay as they were, and gradients are as without them."""
    rounds = make_rounds()
    num_examples = rounds.num_examples.copy()
    num_examples[[0, 2]] = 0
    rounds = rounds._replace(num_examples=num_examples)
    found = outcome(entry, rounds)
    initial = entry.algorithm().init(model_of(start()), key=jax.random.key(0))
    for leaf, first in zip(jax.tree.leaves(found.states), jax.tree.leaves(initial), strict=True):
        np.testing.assert_array_equal(leaf[0], first)
        np.testing.assert_array_equal(leaf[2], leaf[1])
    np.testing.assert_array_equal(found.reports.aggregator.clients_used, [0, 4, 0, 4])
    assert_oracles(entry, found, rounds)
    assert_oracles_gradients(entry, found, rounds)


@each_algorithm
def test_nothing_of_a_client_without_examples_gets_out(entry):
    """Its data is NaN and infinite, and all its steps are real."""
    rounds = make_rounds()
    absent = rounds.num_examples == 0
    assert absent.any(axis=1).all()
    poisoned = rounds._replace(
        x=np.where(absent[..., None, None, None], np.nan, rounds.x),
        y=np.where(absent[..., None, None], np.inf, rounds.y),
        step_mask=rounds.step_mask | absent[..., None],
    )
    found, expected = outcome(entry, poisoned), outcome(entry, rounds)
    assert_same_outcome(entry, found, expected, rtol=0.0)


@each_algorithm
def test_nothing_of_a_step_that_is_padding_gets_out(entry):
    """Its batch is zeros, as from a pipeline that pads, or even NaN and infinite."""
    rounds = make_rounds()
    expected = outcome(entry, rounds)
    padding = ~rounds.step_mask
    for x, y in [(0.0, 0.0), (np.nan, np.inf)]:
        padded = rounds._replace(
            x=np.where(padding[..., None, None], x, rounds.x),
            y=np.where(padding[..., None], y, rounds.y),
        )
        assert_same_outcome(entry, outcome(entry, padded), expected, rtol=0.0)


@each_algorithm
def test_the_order_of_clients_does_not_matter(entry):
    rounds = make_rounds()
    order = np.array([np.random.default_rng(r).permutation(CLIENTS) for r in range(ROUNDS)])
    mixed = NpRounds(*(leaf[np.arange(ROUNDS)[:, None], order] for leaf in rounds))
    assert (mixed.seed != rounds.seed).any()
    assert_same_outcome(entry, outcome(entry, mixed), outcome(entry, rounds), rtol=1e-4)


@each_algorithm
def test_only_the_ratios_of_weights_matter(entry):
    """Ten times the examples: only the report of the total weight may show it."""
    rounds = make_rounds()
    ten_times = rounds._replace(num_examples=10 * rounds.num_examples)
    expected, found = outcome(entry, rounds), outcome(entry, ten_times)
    weights = found.reports.aggregator.total_weight
    np.testing.assert_allclose(weights, entry.expected(start(), ten_times)[1][:, 3])
    same = expected.reports._replace(aggregator=found.reports.aggregator)
    assert_same_outcome(entry, found, expected._replace(reports=same), rtol=1e-4)
