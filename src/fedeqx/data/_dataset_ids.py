"""The ids of a data set, as a sequence."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final, overload

from ._ids import GroupId, digest, from_column

if TYPE_CHECKING:
    from ._dataset import GroupedDataset


@final
class Ids(Sequence[GroupId]):
    """The ids of a data set in its order: a sequence that is read from the index, not held."""

    def __init__(self, dataset: "GroupedDataset"):
        self._dataset = dataset

    def __len__(self) -> int:
        return self._dataset.num_groups

    @overload
    def __getitem__(self, item: int) -> GroupId: ...
    @overload
    def __getitem__(self, item: slice) -> list[GroupId]: ...
    def __getitem__(self, item: int | slice) -> GroupId | list[GroupId]:
        if isinstance(item, slice):
            return [self[number] for number in range(*item.indices(len(self)))]
        if not -len(self) <= item < len(self):
            raise IndexError(f"Group number {item} of a data set of {len(self)} groups.")
        return self._dataset._id_at(self._dataset._position(item % len(self)))

    def __iter__(self) -> Iterator[GroupId]:
        dataset = self._dataset
        if dataset._positions is None:
            kind = dataset._kind
            yield from (from_column(raw, kind) for raw in dataset._index.raw_ids())
        else:
            yield from map(dataset._id_at, dataset._positions.tolist())

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._dataset

    def __repr__(self) -> str:
        few = ", ".join(map(repr, self[:3]))
        return f"Ids([{few}{', ...' if len(self) > 3 else ''}], {len(self)} groups)"


def uniform_of(group_id: GroupId, seed: int) -> float:
    """A number from 0 to 1 that depends on the id and the seed alone."""
    word = int.from_bytes(digest(group_id, "split", seed)[:8], "little")
    return word / 2**64
