"""A grouped data set, opened: counts, ids, and its groups in any order."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ._dataset_ids import Ids, uniform_of
from ._group import Group, Size, sizes_of
from ._ids import GroupId, GroupIdError, column_type, from_column, to_key
from ._layout import GROUP_COLUMN, INDEX_NAME, read_manifest, restore_schema
from ._parts import Part, edges_of, parts_of
from ._reader import Index, MemoryRows, ParquetRows

if TYPE_CHECKING:
    import grain


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
        parts: tuple[Part, ...] = (),
        row_groups: int = 1,
    ):
        """**Arguments:**

        - `path`: a folder that `fx.data.group` wrote.
        - `positions`: which groups to keep, by their place in the index, ascending; all by default.
        - `in_memory`: load all shards at once.
        - `parts`: which of every group's examples to keep; see `split_examples`.
        - `row_groups`: how many row groups to hold decoded, each of some hundred KB: as many as
            there are places that are read in turn.
        """
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        self.schema: pa.Schema = restore_schema(self.manifest["schema"])
        self._kind: str = self.manifest["id_kind"]
        self._index = Index(self.path / INDEX_NAME)
        self._positions = positions
        self._in_memory = in_memory
        self._parts = parts
        self._row_groups = row_groups
        self._part_sizes: dict[str, np.ndarray] | None = None
        files = [shard["file"] for shard in self.manifest["shards"]]
        self._rows = (
            MemoryRows(
                [pq.read_table(self.path / file).drop_columns(GROUP_COLUMN) for file in files]
            )
            if in_memory
            else ParquetRows(self.path, files, row_groups)
        )

    def __reduce__(self):
        return functools.partial(GroupedDataset, self.path, **self._options()), ()

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
    def is_part(self) -> bool:
        """Whether `split_examples` made it: counts are then made by reading."""
        return bool(self._parts)

    @property
    def id_kind(self) -> str:
        """`"string"`, `"int"`, `"bytes"`, or `"mixed"`: then the files hold ids as JSON."""
        return self._kind

    def sizes(self, of: str = "examples") -> np.ndarray:
        """How large each group is, in the order of `ids()`.

        **Arguments:**

        - `of`: `"examples"`, `"bytes"` or `"words"`.

        **Returns:**

        An int64 array of one number per group. After `split_examples` the first call reads the
        examples to count them.
        """
        if of not in Size._fields:
            raise ValueError(f"sizes(of={of!r}): give 'examples', 'bytes' or 'words'.")
        if self._parts:
            self._part_sizes = self._part_sizes or sizes_of(iter(self), len(self))
            return self._part_sizes[of]
        column = self._index.column(of)
        return column if self._positions is None else column[self._positions]

    def group(self, group_id: GroupId) -> Group:
        """The group with this id. Raises `KeyError` where there is none."""
        position = self._find(group_id)
        if position is None:
            raise KeyError(self._no_such(group_id))
        return self._group(position)

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
        return self._group(self._position(number % len(self)))

    def __iter__(self) -> Iterator[Group]:
        if self._positions is not None:
            yield from map(self._group, self._positions.tolist())
            return
        for raw_id, entry in self._index:
            yield Group(from_column(raw_id, self._kind), self._rows, entry, self._parts)

    def batches(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All examples as Arrow record batches, in the order of `ids()`.

        For Arrow's own tools, and where groups are so small that going through them one by one
        costs more than reading them: a batch is about a row group, and holds many groups.

        **Arguments:**

        - `columns`: the columns to read; all by default.

        **Returns:**

        Batches with the id of each example's group, in the form that the files have it (see
        `id_kind`), as the column `group_id` in front of its own.
        """
        names = tuple(self.schema.names if columns is None else columns)
        if self._positions is None and not self._parts and not self._in_memory:
            yield from self._rows.read(0, 0, self.num_examples, (GROUP_COLUMN, *names))
            return
        id_field = pa.field(GROUP_COLUMN, column_type(self._kind), nullable=False)
        schema = pa.schema([id_field, *map(self.schema.field, names)])
        for number, group in enumerate(self):
            raw_id = pa.scalar(self._index.raw_id(self._position(number)), schema.field(0).type)
            for batch in group.batches(columns=names):
                ids = pa.repeat(raw_id, batch.num_rows)
                yield pa.record_batch([ids, *batch.columns], schema=schema)

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
        return self._with(positions=np.unique(np.asarray(found, np.int64)))

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
        places = np.fromiter((uniform_of(i, seed) for i in self.ids()), float, len(self))
        part_of = np.searchsorted(edges, places, "right")
        every = np.arange(len(self)) if self._positions is None else self._positions
        return {
            name: self._with(positions=every[part_of == number])
            for number, name in enumerate(fractions)
        }

    def split_examples(
        self, fractions: Mapping[str, float | int], *, seed: int
    ) -> "dict[str, GroupedDataset]":
        """Split every group's examples at random, for example into training and held-out ones.

        An example's part depends on its content, the seed and the fractions alone: it stays the
        same when the data is grouped again, by whatever, and equal examples are never in two parts.

        **Arguments:**

        - `fractions`: the parts' names and their expected shares, which add up to 1.
        - `seed`: any integer.

        **Returns:**

        The parts by name: data sets of the same groups, of which small ones may be empty in a part.
        They can be streamed, drawn as cohorts and split further like the whole; nothing is copied,
        so that every read of a part reads its groups in full.

        !!! Example

            ```python
            parts = dataset.split_examples({"train": 0.8, "test": 0.2}, seed=0)
            cohorts = fx.data.cohorts(parts["train"], ...)
            ```
        """
        parts = parts_of(fractions, seed, len(self._parts), "split_examples")
        return {name: self._with(parts=(*self._parts, part)) for name, part in parts.items()}

    def in_memory(self) -> "GroupedDataset":
        """The same data set with all its examples loaded: the fastest to read, if they fit."""
        return self._with(in_memory=True)

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
        if self._parts:
            return f"GroupedDataset({str(self.path)!r}, parts of {self.num_groups} groups)"
        return (
            f"GroupedDataset({str(self.path)!r}, groups={self.num_groups}, "
            f"examples={self.num_examples}, bytes={self.num_bytes})"
        )

    def _total(self, of: str) -> int:
        if self._positions is None and not self._parts:
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

    def _group(self, position: int) -> Group:
        entry = self._index.entry(position)
        return Group(self._id_at(position), self._rows, entry, self._parts)

    def _with(self, **changes: Any) -> "GroupedDataset":
        return GroupedDataset(self.path, **(self._options() | changes))

    def _options(self) -> dict[str, Any]:
        return {
            "positions": self._positions,
            "in_memory": self._in_memory,
            "parts": self._parts,
            "row_groups": self._row_groups,
        }

    def _holding(self, row_groups: int) -> "GroupedDataset":
        """The same data set, with so many row groups held at a time, or as many as now."""
        enough = self._in_memory or row_groups <= self._row_groups
        return self if enough else self._with(row_groups=row_groups)

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
