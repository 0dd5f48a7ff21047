"""A grouped data set, opened: counts, ids, and its groups in any order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ._dataset_ids import Ids
from ._examples import to_examples
from ._ids import GroupId, GroupIdError, digest, from_column, to_key
from ._layout import GROUP_COLUMN, INDEX_NAME, read_manifest, restore_schema
from ._parts import GroupPart, edges_of, split_group
from ._reader import Index, MemoryRows, ParquetRows

if TYPE_CHECKING:
    import grain


@final
class Group:
    """One group: its id, its size, and its examples as a lazy stream that can be read again."""

    __slots__ = ("_first_row", "_rows", "_shard", "_size", "id", "num_bytes", "num_words")

    def __init__(self, dataset: "GroupedDataset", position: int):
        entry = dataset._index.entry(position)
        self.id: GroupId = dataset._id_at(position)
        self.num_bytes = entry.bytes
        self.num_words = entry.words
        self._rows = dataset._rows
        self._shard, self._first_row, self._size = entry.shard, entry.first_row, entry.examples

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from to_examples(batch)

    def batches(
        self, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The examples as Arrow record batches of about a row group each, read as they are asked
        for.

        **Arguments:**

        - `start`, `stop`: the first example, and the one after the last; all by default.
        - `columns`: the columns to read; all by default.
        """
        stop = self._size if stop is None else min(stop, self._size)
        names = None if columns is None else tuple(columns)
        count = max(0, stop - start)
        yield from self._rows.read(self._shard, self._first_row + start, count, names)

    def split(self, fractions: Mapping[str, float | int], *, seed: int) -> dict[str, GroupPart]:
        """Split the examples at random, for example into a tuning and a held-out part.

        An example's part depends on its content, the seed and the fractions alone, so that it stays
        the same in any order; equal examples are never in two parts.

        **Arguments:**

        - `fractions`: the parts' names and their expected shares, which add up to 1.
        - `seed`: any integer.

        **Returns:**

        The parts by name: iterate them as often as you like; nothing is held in memory.
        """
        return split_group(self, fractions, seed)

    def load(self) -> "Group":
        """The same group with its examples in memory."""
        loaded = Group.__new__(Group)
        loaded.id, loaded.num_bytes, loaded.num_words = self.id, self.num_bytes, self.num_words
        loaded._rows = MemoryRows([pa.Table.from_batches(self.batches())])
        loaded._shard, loaded._first_row, loaded._size = 0, 0, self._size
        return loaded

    def __repr__(self) -> str:
        return f"Group(id={self.id!r}, examples={len(self)}, bytes={self.num_bytes})"


@final
class GroupedDataset:
    """Groups of examples on disk, or some of them. Made by `fx.data.group` and `fx.data.open`.

    Nothing but the counts is held in memory: the index is mapped, and examples are read as they are
    asked for. It pickles as its path, so that worker processes open the files themselves.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        positions: np.ndarray | None = None,
        in_memory: bool = False,
    ):
        """**Arguments:**

        - `path`: a folder that `fx.data.group` wrote.
        - `positions`: which groups to keep, by their place in the index, ascending; all by default.
        - `in_memory`: load all shards at once.
        """
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        self.schema: pa.Schema = restore_schema(self.manifest["schema"])
        self._kind: str = self.manifest["id_kind"]
        self._index = Index(self.path / INDEX_NAME)
        self._positions = positions
        self._in_memory = in_memory
        files = [shard["file"] for shard in self.manifest["shards"]]
        self._rows = (
            MemoryRows(
                [pq.read_table(self.path / file).drop_columns(GROUP_COLUMN) for file in files]
            )
            if in_memory
            else ParquetRows(self.path, files)
        )

    def __reduce__(self):
        return _reopen, (self.path, self._positions, self._in_memory)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.manifest["num_groups"] if self._positions is None else len(self._positions)

    @property
    def num_examples(self) -> int:
        """How many examples all groups have together."""
        return self._total("examples")

    @property
    def num_bytes(self) -> int:
        """The bytes of all examples' values together, before compression."""
        return self._total("bytes")

    @property
    def num_words(self) -> int:
        """The words of all examples' text together, split at white space."""
        return self._total("words")

    def ids(self) -> Ids:
        """The groups' ids, in the order of the files: a sequence that is not held in memory."""
        return Ids(self)

    def id_column(self) -> pa.Array:
        """The ids as an Arrow array, in the form that the files have them (see `id_kind`)."""
        return self._index.id_column(self._positions)

    @property
    def id_kind(self) -> str:
        """`"string"`, `"int"`, `"bytes"`, or `"mixed"`: then the files hold ids as JSON."""
        return self._kind

    def sizes(self, of: str = "examples") -> np.ndarray:
        """How large each group is, in the order of `ids()`.

        **Arguments:**

        - `of`: `"examples"`, `"bytes"` or `"words"`.

        **Returns:**

        An int64 array of one number per group.
        """
        if of not in ("examples", "bytes", "words"):
            raise ValueError(f"sizes(of={of!r}): give 'examples', 'bytes' or 'words'.")
        column = self._index.column(of)
        return column if self._positions is None else column[self._positions]

    def group(self, group_id: GroupId) -> Group:
        """The group with this id. Raises `KeyError` where there is none."""
        position = self._find(group_id)
        if position is None:
            raise KeyError(self._no_such(group_id))
        return Group(self, position)

    def number_of(self, group_id: GroupId) -> int:
        """The number (from 0) of the group with this id in the order of `ids()`.

        Raises `KeyError` where there is none.
        """
        position = self._find(group_id)
        if position is None:
            raise KeyError(self._no_such(group_id))
        return (
            position if self._positions is None else int(np.searchsorted(self._positions, position))
        )

    def __contains__(self, group_id: object) -> bool:
        try:
            return self._find(group_id) is not None
        except GroupIdError:
            return False

    def __len__(self) -> int:
        return self.num_groups

    def __getitem__(self, number: int) -> Group:
        """The group with this number (from 0) in the order of `ids()`."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"Group number {number} of a data set of {len(self)} groups.")
        return Group(self, self._position(number % len(self)))

    def __iter__(self) -> Iterator[Group]:
        for number in range(len(self)):
            yield Group(self, self._position(number))

    def select(self, ids: Iterable[GroupId]) -> "GroupedDataset":
        """The same data set with these groups alone, in the order of the files.

        Raises `KeyError` for an id that is not here.
        """
        found = []
        for group_id in ids:
            position = self._find(group_id)
            if position is None:
                raise KeyError(self._no_such(group_id))
            found.append(position)
        return self._view(np.unique(np.asarray(found, np.int64)))

    def split_groups(
        self, fractions: Mapping[str, float | int], *, seed: int
    ) -> "dict[str, GroupedDataset]":
        """Split the groups at random, for example into training and held-out clients.

        A group's part depends on its id, the seed and the fractions alone: it stays the same when
        groups are added or the data is grouped again.

        **Arguments:**

        - `fractions`: the parts' names and their expected shares, which add up to 1.
        - `seed`: any integer.

        **Returns:**

        The parts by name. They are disjoint and together hold every group.

        !!! Example

            ```python
            parts = dataset.split_groups({"train": 0.9, "held_out": 0.1}, seed=0)
            ```
        """
        edges = edges_of(fractions, "split_groups")[:-1]
        part_of = np.fromiter(
            (np.searchsorted(edges, _uniform(group_id, seed), "right") for group_id in self.ids()),
            np.int64,
            len(self),
        )
        every = np.arange(len(self)) if self._positions is None else self._positions
        return {name: self._view(every[part_of == number]) for number, name in enumerate(fractions)}

    def in_memory(self) -> "GroupedDataset":
        """The same data set with all its examples loaded: the fastest to read, if they fit."""
        return GroupedDataset(self.path, positions=self._positions, in_memory=True)

    def stream(
        self,
        *,
        seed: int | None = None,
        shuffle: bool | str = True,
        interleave: int = 1,
        prefetch: int = 0,
    ) -> "grain.MapDataset[Group] | grain.IterDataset[Group]":
        """The groups as a Grain data set, each element a `Group`.

        Only a group's place is shuffled and buffered; its examples are read when it is iterated, so
        memory does not grow with the number of groups or with the size of one.

        **Arguments:**

        - `seed`: what the order is a function of; needed to shuffle.
        - `shuffle`: `True` is a random order of all groups, each of which is then a read somewhere
            on disk; `"blocks"` shuffles blocks of 512 neighbouring groups, and the groups within
            each, and reads nearly as fast as `False`, which is the order of `ids()`.
        - `interleave`: take groups in turn from so many stretches of the data set.
        - `prefetch`: read so many groups ahead, in threads. Their examples are held in memory.

        **Returns:**

        A `grain.MapDataset` of `Group`: iterate it, index it, or go on with `.map`, `.batch`,
        `.repeat`, `.to_iter_dataset()`. With `prefetch` it is a `grain.IterDataset`. The state of
        their iterators can be saved and restored.
        """
        # Grain imports JAX's modules (it starts no backend); nothing else here needs them.
        from ._stream import group_stream

        return group_stream(
            self, seed=seed, shuffle=shuffle, interleave=interleave, prefetch=prefetch
        )

    def __repr__(self) -> str:
        return (
            f"GroupedDataset({str(self.path)!r}, groups={self.num_groups}, "
            f"examples={self.num_examples}, bytes={self.num_bytes})"
        )

    def _total(self, of: str) -> int:
        if self._positions is None:
            return self.manifest[f"num_{of}"]
        return int(self.sizes(of).sum())

    def _position(self, number: int) -> int:
        return number if self._positions is None else int(self._positions[number])

    def _id_at(self, position: int) -> GroupId:
        return from_column(self._index.raw_id(position), self._kind)

    def _find(self, group_id: Any) -> int | None:
        """The place of a group in the index, by bisection: ids are sorted by key."""
        key = to_key(group_id)
        low, high = 0, self.manifest["num_groups"]
        while low < high:
            middle = (low + high) // 2
            if to_key(self._id_at(middle)) < key:
                low = middle + 1
            else:
                high = middle
        if low == self.manifest["num_groups"] or to_key(self._id_at(low)) != key:
            return None
        if self._positions is not None:
            place = int(np.searchsorted(self._positions, low))
            if place == len(self._positions) or self._positions[place] != low:
                return None
        return low

    def _view(self, positions: np.ndarray) -> "GroupedDataset":
        return GroupedDataset(self.path, positions=positions, in_memory=self._in_memory)

    def _no_such(self, group_id: GroupId) -> str:
        return (
            f"No group {group_id!r} of type {type(group_id).__name__} among the {self.num_groups} "
            f"groups of {self.path}. Their ids are of kind {self._kind}, such as "
            f"{self.ids()[:3]!r}."
        )


def open(path: str | Path) -> GroupedDataset:
    """Open a grouped data set.

    **Arguments:**

    - `path`: the folder that `fx.data.group` wrote.

    **Returns:**

    The data set; only its counts are read. Raises `FileNotFoundError` where there is no such folder
    and `DatasetFormatError` where it is not a grouped data set, or a damaged one.

    !!! Example

        ```python
        dataset = fx.data.open("by_user")
        for example in dataset.group("a"):
            print(example["text"])
        ```
    """
    return GroupedDataset(path)


def _reopen(path: Path, positions: np.ndarray | None, in_memory: bool) -> GroupedDataset:
    return GroupedDataset(path, positions=positions, in_memory=in_memory)


def _uniform(group_id: GroupId, seed: int) -> float:
    word = int.from_bytes(digest(group_id, "split", seed)[:8], "little")
    return word / 2**64
