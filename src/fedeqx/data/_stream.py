"""The stream of groups as a Grain data set."""

from typing import TYPE_CHECKING, Any, final

import grain

from ._seeding import permuted_range

if TYPE_CHECKING:
    from ._dataset import GroupedDataset
    from ._group import Group

# Groups of one block lie next to each other on disk, mostly in a few row groups.
_BLOCK = 512
_BLOCK_ROW_GROUPS = 4


@final
class GroupSource:
    """The groups of a data set in the order of a stream. A place's group is computed in O(1)."""

    def __init__(
        self, dataset: "GroupedDataset", *, seed: int | None, blocks: bool, interleave: int
    ):
        self._dataset = dataset
        self._seed = seed
        self._blocks = blocks
        self._interleave = interleave

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> "Group":
        place = self._interleaved(index)
        if self._seed is None:
            return self._dataset[place]
        if self._blocks:
            return self._dataset[self._in_block(place, self._seed)]
        return self._dataset[_permuted(place, len(self), "stream", self._seed)]

    def _interleaved(self, index: int) -> int:
        """Deal the places out in turn from as many equal stretches of the data set."""
        if self._interleave == 1:
            return index
        size, count = len(self), self._interleave
        turn, stretch = divmod(index, count)
        short, longer = divmod(size, count)
        # The first `longer` stretches have one group more, which comes in the last turn.
        return stretch * short + min(stretch, longer) + turn

    def _in_block(self, place: int, seed: int) -> int:
        """Shuffle the blocks, and the groups within each.

        The shorter last block, if there is one, stands at a random place among the others.
        """
        whole, rest = divmod(len(self), _BLOCK)
        slot_of_rest = _permuted(0, whole + 1, "rest", seed) if rest else whole
        before = slot_of_rest * _BLOCK
        if rest and before <= place < before + rest:
            return whole * _BLOCK + _permuted(place - before, rest, "block", seed, whole)
        slot, offset = divmod(place - (rest if place >= before and rest else 0), _BLOCK)
        block = _permuted(slot, whole, "blocks", seed)
        return block * _BLOCK + _permuted(offset, _BLOCK, "block", seed, block)

    def __repr__(self) -> str:
        return f"GroupSource({self._dataset!r}, seed={self._seed})"


@final
class GroupStream(grain.MapDataset):
    """The groups of a source, as a Grain data set that starts no threads unless it is told to.

    To make a group is to look it up in the index, which threads only slow down tenfold.
    """

    def __init__(self, source: GroupSource):
        super().__init__(grain.MapDataset.source(source))

    def __len__(self) -> int:
        return len(self.parents[0])

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self.parents[0][index]

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> "grain.IterDataset[Group]":
        options = read_options or grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        return super().to_iter_dataset(options, allow_nones=allow_nones)

    def __str__(self) -> str:
        return f"GroupStream({self.parents[0]})"


def _permuted(place: int, size: int, *context: int | str | bytes) -> int:
    return int(permuted_range(place, place + 1, size, *context)[0])


def _load(group: "Group") -> "Group":
    return group.load()


def group_stream(
    dataset: "GroupedDataset",
    *,
    seed: int | None,
    shuffle: bool | str,
    interleave: int,
    prefetch: int,
) -> "grain.MapDataset[Group] | grain.IterDataset[Group]":
    """See `GroupedDataset.stream`."""
    if shuffle not in (True, False, "blocks"):
        raise ValueError(f"stream(shuffle={shuffle!r}): give True, False or 'blocks'.")
    if shuffle and seed is None:
        raise ValueError(
            "stream() shuffles and needs a seed. Give seed=..., or shuffle=False for the order of "
            "ids()."
        )
    if interleave < 1 or prefetch < 0:
        raise ValueError(
            f"stream(interleave={interleave}, prefetch={prefetch}): give an interleave of at least "
            "1 and a prefetch of at least 0."
        )
    interleave = min(interleave, max(1, len(dataset)))
    threads = min(prefetch, 8)
    places = max(interleave, threads, _BLOCK_ROW_GROUPS if shuffle == "blocks" else 1)
    source = GroupSource(
        dataset._holding(places),
        seed=seed if shuffle else None,
        blocks=shuffle == "blocks",
        interleave=interleave,
    )
    groups = GroupStream(source)
    if not prefetch:
        return groups
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    return groups.map(_load).to_iter_dataset(options)
