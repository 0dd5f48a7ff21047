"""Which clients take part in which round."""

import abc
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ._dataset import GroupedDataset
from ._seeding import generator, permuted_range


class AbstractSampling(abc.ABC):
    """Chooses the clients of a round, as a function of (seed, round)."""

    @abc.abstractmethod
    def places(self, number: int) -> np.ndarray:
        """The groups of a round, by their number in the data set, in the order of the cohort.

        -1 stands for no client: a place of the cohort that stays empty in this round.
        """


@final
class EpochSampling(AbstractSampling):
    """Without replacement: every group once before any comes again."""

    def __init__(self, num_groups: int, size: int, seed: int):
        self._num_groups, self._size, self._seed = num_groups, size, seed

    def places(self, number: int) -> np.ndarray:
        epoch, part = divmod(number, self._num_groups // self._size)
        start = part * self._size
        stop = start + self._size
        return permuted_range(start, stop, self._num_groups, "cohorts", self._seed, epoch)


@final
class UniformSampling(AbstractSampling):
    """Every round on its own: a uniformly random set of different groups."""

    def __init__(self, num_groups: int, size: int, seed: int):
        self._num_groups, self._size, self._seed = num_groups, size, seed

    def places(self, number: int) -> np.ndarray:
        return permuted_range(0, self._size, self._num_groups, "uniform", self._seed, number)


@final
class ReplacementSampling(AbstractSampling):
    """Every place of every round on its own: a group may fill several."""

    def __init__(self, num_groups: int, size: int, seed: int):
        self._num_groups, self._size, self._seed = num_groups, size, seed

    def places(self, number: int) -> np.ndarray:
        random = generator("replacement", self._seed, number)
        return random.integers(self._num_groups, size=self._size)


@final
class PoissonSampling(AbstractSampling):
    """Every group on its own, with probability size / groups: what privacy accounting assumes.

    The cohort has room for so many that more come in one round in 10^9 or less; those rounds are an
    error rather than a cohort that is not what the accounting assumes.
    """

    def __init__(self, num_groups: int, size: int, seed: int):
        self._num_groups, self._seed = num_groups, seed
        self._share = size / num_groups
        # Bernstein's inequality: P(count >= size + t) <= exp(-t^2 / (2 (size + t / 3))).
        log = 9 * np.log(10)
        room = size + log / 3 + np.sqrt((log / 3) ** 2 + 2 * size * log)
        self._room = min(num_groups, int(np.ceil(room)))

    def places(self, number: int) -> np.ndarray:
        count = int(
            generator("poisson", self._seed, number).binomial(self._num_groups, self._share)
        )
        if count > self._room:
            raise RuntimeError(
                f"Round {number} drew {count} clients, and cohorts have room for {self._room}; "
                "this happens about once in 10^9 rounds. Use another seed, or leave this round out."
            )
        # Given how many, independent draws are a uniformly random set.
        drawn = permuted_range(0, count, self._num_groups, "poisson", self._seed, number)
        return np.concatenate([drawn, np.full(self._room - count, -1)])


@final
class WeightedSampling(AbstractSampling):
    """Every round on its own: different groups, drawn one by one in proportion to their size."""

    def __init__(self, sizes: np.ndarray, size: int, seed: int):
        self._sizes, self._size, self._seed = sizes, size, seed

    def places(self, number: int) -> np.ndarray:
        # Efraimidis and Spirakis (2006): the first of independent exponential clocks to ring.
        random = generator("weighted", self._seed, number)
        times = random.standard_exponential(len(self._sizes)) / np.maximum(self._sizes, 1e-300)
        first = np.argpartition(times, self._size - 1)[: self._size]
        return first[np.argsort(times[first], kind="stable")]


@final
class FixedSampling(AbstractSampling):
    """Given cohorts, one after the other and again from the start."""

    def __init__(self, cohorts: Sequence[np.ndarray]):
        self._cohorts = cohorts

    def places(self, number: int) -> np.ndarray:
        return self._cohorts[number % len(self._cohorts)]


_BY_NAME = {
    "epoch": EpochSampling,
    "uniform": UniformSampling,
    "replacement": ReplacementSampling,
    "poisson": PoissonSampling,
}


def make_sampling(
    dataset: GroupedDataset, sampling: str | Sequence[Any], size: int, seed: int
) -> AbstractSampling:
    """The sampling that `cohorts(sampling=...)` asks for; see there."""
    count = len(dataset)
    if isinstance(sampling, str):
        if sampling != "weighted" and sampling not in _BY_NAME:
            raise ValueError(
                f"cohorts(sampling={sampling!r}): give 'epoch', 'uniform', 'replacement', "
                "'poisson', 'weighted', or the ids of each cohort as a list of lists."
            )
        if (size > count and sampling != "replacement") or not count:
            raise ValueError(
                f"A cohort of size={size} different clients needs as many groups; the data set has "
                f"{count}. Lower size, group the data more finely, or use sampling='replacement'."
            )
        if sampling == "weighted":
            sizes = dataset.sizes("examples")
            return WeightedSampling(sizes, size, seed)
        return _BY_NAME[sampling](count, size, seed)
    place_of: dict[Any, int] = {}
    fixed = []
    for number, ids in enumerate(sampling):
        if isinstance(ids, str | bytes | int) or len(ids) != size:
            raise ValueError(
                f"cohorts(sampling=...): cohort {number} is {ids!r:.80}; give a list of "
                f"size={size} ids for each cohort."
            )
        for group_id in ids:
            if group_id not in place_of:
                place_of[group_id] = dataset.number_of(group_id)
        fixed.append(np.asarray([place_of[group_id] for group_id in ids], np.int64))
    if not fixed:
        raise ValueError("cohorts(sampling=[]): give at least one cohort.")
    return FixedSampling(fixed)
