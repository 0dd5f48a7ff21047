"""Simulated clients: the published ways to split one labelled data set into groups."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from ._dealing import apportion, draw_dirichlet, draw_without_replacement, renormalized
from ._partition import PartitionError
from ._planned import AbstractPlannedPartition, Assignment, Context, Labels
from ._seeding import generator, permuted


def _check(name: str, **positive: float | int) -> None:
    for argument, value in positive.items():
        if not value > 0:
            raise ValueError(f"{name}({argument}={value}): give a number above 0.")


def _need(name: str, size: int, least: int, of: str) -> None:
    if size < least:
        raise PartitionError(
            f"{name}: {of} needs at least {least} examples, and there are {size}. Lower it, or "
            "give more examples."
        )


@final
@dataclass(frozen=True)
class Iid(AbstractPlannedPartition):
    """See `iid`."""

    num_groups: int
    seed: int

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    def assign(self, size: int, labels: Sequence[Labels], context: Context) -> Assignment:
        _need("iid", size, self.num_groups, f"num_groups={self.num_groups}")

        def groups(start: int, stop: int) -> np.ndarray:
            places = permuted(np.arange(start, stop), size, "iid", self.seed, *context)
            return places * self.num_groups // size

        return groups

    def describe(self) -> dict[str, Any]:
        return {"kind": "iid", **asdict(self)}


@final
@dataclass(frozen=True)
class Sized(AbstractPlannedPartition):
    """See `power_law` and `lognormal`."""

    kind: str
    num_groups: int
    spread: float | int
    min_size: int
    seed: int

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    def assign(self, size: int, labels: Sequence[Labels], context: Context) -> Assignment:
        least = self.num_groups * self.min_size
        of = f"num_groups={self.num_groups} groups of min_size={self.min_size}"
        _need(self.kind, size, least, of)
        ends = np.cumsum(self.min_size + apportion(self._weights(context), size - least))

        def groups(start: int, stop: int) -> np.ndarray:
            places = permuted(np.arange(start, stop), size, self.kind, self.seed, *context)
            return np.searchsorted(ends, places, "right")

        return groups

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def _weights(self, context: Context) -> np.ndarray:
        if self.kind == "power_law":
            return np.arange(1, self.num_groups + 1, dtype=float) ** -self.spread
        normal = generator("sizes", self.seed, *context).standard_normal(self.num_groups)
        return np.exp(self.spread * (normal - normal.max()))


class _AbstractDealt(AbstractPlannedPartition):
    """A partition that deals each label's examples, in random order, to the groups.

    It is fully given by how many examples of each label each group gets.
    """

    seed: int

    @abc.abstractmethod
    def counts(
        self, labels: Sequence[Labels], random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The labels to deal by, as codes per example, and counts of shape [groups, labels]."""

    def assign(self, size: int, labels: Sequence[Labels], context: Context) -> Assignment:
        random = generator(type(self).__name__, self.seed, *context)
        codes, counts = self.counts(labels, random)
        placed = np.empty(size, np.int32)
        order = np.argsort(codes, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=counts.shape[1]))])
        for label in range(counts.shape[1]):
            rows = random.permutation(order[starts[label] : starts[label + 1]])
            placed[rows] = np.repeat(np.arange(self.num_groups), counts[:, label])
        return lambda start, stop: placed[start:stop].astype(np.int64)


@final
@dataclass(frozen=True)
class Dirichlet(_AbstractDealt):
    """See `dirichlet`."""

    label: str
    num_groups: int
    alpha: float | int
    mix: str
    seed: int

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.label,)

    def counts(
        self, labels: Sequence[Labels], random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        codes, values = labels[0]
        totals = np.bincount(codes, minlength=len(values))
        if self.mix == "groups":
            shares = random.dirichlet(np.full(self.num_groups, self.alpha), len(values))
            columns = [apportion(p, int(n)) for p, n in zip(shares, totals, strict=True)]
            return codes, np.stack(columns, 1)
        _need("dirichlet", len(codes), self.num_groups, f"num_groups={self.num_groups}")
        prior = totals / totals.sum()

        def mixture() -> Callable[[np.ndarray], np.ndarray]:
            shares = draw_dirichlet(random, self.alpha * prior * len(values))
            return lambda left: renormalized(shares, left > 0)

        return codes, draw_without_replacement(self.num_groups, totals, mixture, random)

    def describe(self) -> dict[str, Any]:
        return {"kind": "dirichlet", **asdict(self)}


@final
@dataclass(frozen=True)
class Pachinko(_AbstractDealt):
    """See `pachinko`."""

    coarse: str
    fine: str
    num_groups: int
    alpha: float | int
    beta: float | int
    seed: int

    @property
    def fields(self) -> tuple[str, ...]:
        return self.coarse, self.fine

    def counts(
        self, labels: Sequence[Labels], random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        (coarse, coarse_values), (fine, fine_values) = labels
        _need("pachinko", len(fine), self.num_groups, f"num_groups={self.num_groups}")
        parent = self._parents(coarse, fine, coarse_values, fine_values)
        belongs = parent[None, :] == np.arange(len(coarse_values))[:, None]
        totals = np.bincount(fine, minlength=len(fine_values))

        def mixture() -> Callable[[np.ndarray], np.ndarray]:
            root = draw_dirichlet(random, np.full(len(coarse_values), self.alpha))
            inner = np.zeros(len(fine_values))
            for children in belongs:
                inner[children] = draw_dirichlet(random, np.full(children.sum(), self.beta))

            def shares(left: np.ndarray) -> np.ndarray:
                # A label that has run out leaves its share to those of the same coarse label.
                open_coarse = (belongs & (left > 0)).any(1)
                tops = renormalized(root, open_coarse)
                leaves = np.zeros(len(fine_values))
                for top, children in zip(tops, belongs, strict=True):
                    if top:
                        leaves[children] = top * renormalized(inner[children], left[children] > 0)
                return leaves

            return shares

        return fine, draw_without_replacement(self.num_groups, totals, mixture, random)

    def describe(self) -> dict[str, Any]:
        return {"kind": "pachinko", **asdict(self)}

    def _parents(
        self,
        coarse: np.ndarray,
        fine: np.ndarray,
        coarse_values: list[Any],
        fine_values: list[Any],
    ) -> np.ndarray:
        pairs = np.unique(np.stack([fine, coarse]), axis=1)
        twice = np.flatnonzero(np.bincount(pairs[0]) > 1)
        if len(twice):
            value = fine_values[twice[0]]
            tops = [coarse_values[c] for f, c in pairs.T if f == twice[0]]
            raise PartitionError(
                f"pachinko: the label {self.fine}={value!r} occurs under several {self.coarse} "
                f"({tops[:3]}). Every fine label must belong to one coarse label."
            )
        return pairs[1]


@final
@dataclass(frozen=True)
class Shards(AbstractPlannedPartition):
    """See `shards`."""

    label: str
    num_groups: int
    shards_per_group: int
    seed: int

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.label,)

    def assign(self, size: int, labels: Sequence[Labels], context: Context) -> Assignment:
        count = self.num_groups * self.shards_per_group
        of = f"num_groups={self.num_groups} with shards_per_group={self.shards_per_group}"
        _need("shards", size, count, of)
        random = generator("shards", self.seed, *context)
        # Random within a label, so that neither the input's order nor its end is favoured.
        order = random.permutation(size)
        order = order[np.argsort(labels[0].codes[order], kind="stable")]
        owner = random.permutation(count) // self.shards_per_group
        placed = np.empty(size, np.int32)
        placed[order] = owner[np.arange(size) * count // size]
        return lambda start, stop: placed[start:stop].astype(np.int64)

    def describe(self) -> dict[str, Any]:
        return {"kind": "shards", **asdict(self)}


def iid(num_groups: int, *, seed: int) -> Iid:
    """Split examples at random into groups of equal size, up to one example.

    **Arguments:**

    - `num_groups`: how many groups; there must be as many examples.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0. It holds nothing in memory.
    """
    _check("iid", num_groups=num_groups)
    return Iid(num_groups, seed)


def power_law(
    num_groups: int, *, exponent: float | int = 1.0, min_size: int = 1, seed: int
) -> Sized:
    """Split examples at random into groups whose sizes follow a power law.

    **Arguments:**

    - `num_groups`: how many groups.
    - `exponent`: the k-th largest group has a size proportional to `k ** -exponent`.
    - `min_size`: every group has at least so many examples.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0, from the largest group to the smallest.
    """
    _check("power_law", num_groups=num_groups, exponent=exponent, min_size=min_size)
    return Sized("power_law", num_groups, exponent, min_size, seed)


def lognormal(num_groups: int, *, sigma: float | int = 1.0, min_size: int = 1, seed: int) -> Sized:
    """Split examples at random into groups whose sizes are log-normal.

    **Arguments:**

    - `num_groups`: how many groups.
    - `sigma`: the standard deviation of the logarithm of a group's size.
    - `min_size`: every group has at least so many examples.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0.
    """
    _check("lognormal", num_groups=num_groups, sigma=sigma, min_size=min_size)
    return Sized("lognormal", num_groups, sigma, min_size, seed)


def dirichlet(
    label: str,
    num_groups: int,
    *,
    alpha: float | int,
    mix: str = "labels",
    seed: int,
) -> Dirichlet:
    """Split labelled examples into groups with different label distributions.

    **Arguments:**

    - `label`: the field that holds the label.
    - `num_groups`: how many groups.
    - `alpha`: the concentration. Small: groups of one or few labels; large: like `iid`.
    - `mix`: `"labels"`: every group draws its mix of labels from a Dirichlet distribution around
        the overall one and takes as many examples as the others, without replacement, until a label
        runs out ([Hsu et al. 2019](https://arxiv.org/abs/1909.06335), whose concentration is
        `alpha` times the number of labels). `"groups"`: the examples of every label are split
        among the groups in proportions from a Dirichlet distribution ([Yurochkin et al.
        2019](https://arxiv.org/abs/1905.12022)); sizes then differ, and groups may be empty.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0. It holds eight bytes per example in memory.
    """
    _check("dirichlet", num_groups=num_groups, alpha=alpha)
    if mix not in ("labels", "groups"):
        raise ValueError(f"dirichlet(mix={mix!r}): give 'labels' or 'groups'.")
    return Dirichlet(label, num_groups, alpha, mix, seed)


def pachinko(
    coarse: str,
    fine: str,
    num_groups: int,
    *,
    alpha: float | int = 0.1,
    beta: float | int = 10.0,
    seed: int,
) -> Pachinko:
    """Split examples with coarse and fine labels by Pachinko allocation, as federated CIFAR-100 is.

    Every group draws a mix of coarse labels, and for each of them a mix of its fine labels, and
    takes as many examples as the others, without replacement ([Reddi et al.
    2021](https://arxiv.org/abs/2003.00295), appendix F).

    **Arguments:**

    - `coarse`, `fine`: the fields that hold the labels; every fine label belongs to one coarse one.
    - `num_groups`: how many groups.
    - `alpha`, `beta`: the concentrations of the mix of coarse labels and of that of fine ones.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0. It holds some twelve bytes per example in memory.
    """
    _check("pachinko", num_groups=num_groups, alpha=alpha, beta=beta)
    return Pachinko(coarse, fine, num_groups, alpha, beta, seed)


def shards(label: str, num_groups: int, *, shards_per_group: int = 2, seed: int) -> Shards:
    """Sort examples by label, cut them into shards, and give each group some: the "pathological"
    split.

    From [McMahan et al. 2017](https://arxiv.org/abs/1602.05629), section 3.

    **Arguments:**

    - `label`: the field that holds the label.
    - `num_groups`: how many groups.
    - `shards_per_group`: how many shards each gets; it then has at most about as many labels.
    - `seed`: any integer.

    **Returns:**

    A partition whose ids are the integers from 0. It holds eight bytes per example in memory.
    """
    _check("shards", num_groups=num_groups, shards_per_group=shards_per_group)
    return Shards(label, num_groups, shards_per_group, seed)
