"""What sources that read files share: where a row comes from, and errors that name the file."""

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ._sources import BATCH_BYTES, Skips, SourceError

READ_ERRORS = (OSError, pa.ArrowException)
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


class _Place(NamedTuple):
    """Where a run of rows comes from. `numbers` are the rows' own numbers in the file."""

    first_row: int
    file: Path
    numbers: Sequence[int]


class Places:
    """The files and line numbers of all rows read so far, by row."""

    def __init__(self, word: str):
        self._word = word
        self._places: list[_Place] = []

    def clear(self) -> None:
        self._places.clear()

    def add(self, file: Path, numbers: Sequence[int]) -> None:
        self._places.append(_Place(self.rows, file, numbers))

    @property
    def rows(self) -> int:
        if not self._places:
            return 0
        last = self._places[-1]
        return last.first_row + len(last.numbers)

    def locate(self, row: int) -> str:
        at = bisect.bisect_right(self._places, row, key=lambda place: place.first_row) - 1
        place = self._places[at]
        return f"{place.file}, {self._word} {place.numbers[row - place.first_row]}"


def estimate_lines(files: Sequence[Path]) -> int | None:
    """About how many lines text files have, by the first few MB; `None` where that tells little."""
    try:
        size = sum(file.stat().st_size for file in files)
        with pa.OSFile(str(files[0]), "rb") as raw:
            codec = _CODECS.get(files[0].suffix)
            stream = pa.CompressedInputStream(raw, codec) if codec else raw
            lines, places = [], [0]
            while len(lines) < 3 and (block := stream.read(BATCH_BYTES)):
                lines.append(block.count(b"\n"))
                places.append(raw.tell())
        if len(lines) < 3:
            return sum(lines) * size // max(1, files[0].stat().st_size)
        # Decompression reads ahead: what one block takes is the distance of two places. Where it
        # has read all, there is no such distance, and little to wait for.
        step = places[3] - places[2]
        return lines[2] * size // step if step else None
    except READ_ERRORS:
        return None


def refuse(skipped: Skips, path: Path, error: Exception, skip: bool) -> None:
    """A file, or the rest of one, cannot be read."""
    if not skip:
        raise SourceError(
            f"{path} cannot be read ({error}). Restore the file, remove it, or leave it out with "
            "on_error='skip'."
        ) from error
    skipped.add(str(path), f"the file, or the rest of it, cannot be read ({error})")


def check_columns(
    path: str | Path,
    found: pa.Schema,
    first: str | Path,
    expected: pa.Schema,
    *,
    types: bool = True,
) -> None:
    def told(schema: pa.Schema) -> dict[str, str]:
        return {field.name: str(field.type) if types else "" for field in schema}

    if told(found) != told(expected):
        raise SourceError(
            f"{path} has the columns {told(found) if types else found.names}; {first} has "
            f"{told(expected) if types else expected.names}. Give all files the same columns and "
            "types."
        )
