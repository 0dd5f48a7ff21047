"""Dealing numbers of examples out to groups: shares, whole numbers, draws without replacement."""

from collections.abc import Callable

import numpy as np


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to weights, with exactly this sum (largest remainders)."""
    exact = weights / weights.sum() * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole


def draw_dirichlet(random: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """A Dirichlet draw that stays finite where NumPy's underflows to 0/0: at tiny
    concentrations."""
    # log Gamma(a) = log Gamma(a + 1) + log(U) / a, normalized in logarithms.
    logs = np.log(random.standard_gamma(alpha + 1)) + np.log(random.random(len(alpha))) / alpha
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def renormalized(shares: np.ndarray, possible: np.ndarray) -> np.ndarray:
    kept = np.where(possible, shares, 0.0)
    if kept.sum() < 1e-290:
        # The shares of all that is left have vanished in floating point.
        kept = possible.astype(float)
    return kept / kept.sum() if kept.any() else kept


def draw_without_replacement(
    num_groups: int,
    totals: np.ndarray,
    mixture: Callable[[], Callable[[np.ndarray], np.ndarray]],
    random: np.random.Generator,
) -> np.ndarray:
    """Counts [groups, labels]: each group in turn draws its share from what the others left.

    `mixture()` makes a group's distribution: a function from what is left of each label to the
    labels' probabilities.
    """
    left = totals.astype(np.int64).copy()
    size = int(left.sum())
    counts = np.zeros((num_groups, len(totals)), np.int64)
    bounds = np.arange(num_groups + 1) * size // num_groups
    for group, wanted in enumerate(np.diff(bounds)):
        shares = mixture()
        missing = int(wanted)
        while missing:
            drawn = np.minimum(random.multinomial(missing, shares(left)), left)
            counts[group] += drawn
            left -= drawn
            missing -= int(drawn.sum())
    return counts
