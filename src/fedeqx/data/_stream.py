"""The stream of groups as a Grain data set."""

from typing import TYPE_CHECKING, final

from ._seeding import permuted_range

if TYPE_CHECKING:
    import grain

    from ._dataset import Group, GroupedDataset


@final
class GroupSource:
    """The groups of a data set in the order of a stream, by their number in it."""

    def __init__(self, dataset: "GroupedDataset", seed: int | None):
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> "Group":
        if self._seed is not None:
            index = int(permuted_range(index, index + 1, len(self), "stream", self._seed)[0])
        return self._dataset[index]

    def __repr__(self) -> str:
        return f"GroupSource({self._dataset!r}, seed={self._seed})"


def group_stream(
    dataset: "GroupedDataset", *, seed: int | None, shuffle: bool
) -> "grain.MapDataset[Group]":
    """See `GroupedDataset.stream`."""
    # Grain imports JAX's modules (it starts no backend); the rest of this package does without
    # both.
    import grain

    if shuffle and seed is None:
        raise ValueError(
            "stream() shuffles and needs a seed. Give seed=..., or shuffle=False for the order of "
            "ids()."
        )
    return grain.MapDataset.source(GroupSource(dataset, seed if shuffle else None))
