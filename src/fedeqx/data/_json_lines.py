"""JSON-lines files as a source."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.json as pj

from ._files import READ_ERRORS, Places, estimate_lines, refuse
from ._sources import BATCH_BYTES, AbstractSource, Skips, SourceError, pieces


@final
class JsonLinesSource(AbstractSource):
    """The objects of JSON-lines files (also .gz, .bz2, .zst), file after file.

    A field that an object lacks is null in its example. Text stays text, also where it looks like a
    date.
    """

    def __init__(self, files: Sequence[str | Path], *, schema: pa.Schema | None = None):
        """**Arguments:**

        - `files`: the files, in the order in which to read them.
        - `schema`: the examples' Arrow schema; by default it is inferred from the first 4 MB, and
            a field that does not occur there is an error later.
        """
        self.skipped = Skips()
        self._files = [Path(file) for file in files]
        self._schema = schema
        self._places = Places("line")

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        self.skipped.clear()
        self._places.clear()
        schema = self._schema
        for path in self._files:
            try:
                for first, block in _line_blocks(path):
                    lines = block.split(b"\n")
                    numbers: Sequence[int] = range(first, first + len(lines))
                    if not all(map(bytes.strip, lines)):
                        kept = [n for n, line in enumerate(lines) if line.strip()]
                        numbers = [first + n for n in kept]
                        lines = [lines[n] for n in kept]
                    if not lines:
                        continue
                    if schema is None:
                        schema = self._infer(path, lines, numbers)
                    table, numbers = self._parse(path, lines, numbers, schema, skip)
                    for batch in table.combine_chunks().to_batches():
                        self._places.add(path, numbers)
                        yield from pieces(batch)
            except READ_ERRORS as error:
                refuse(self.skipped, path, error, skip)

    def describe(self) -> dict[str, Any]:
        return {"kind": "json lines", "files": [file.name for file in self._files]}

    def locate(self, row: int) -> str:
        return self._places.locate(row)

    def total(self) -> int | None:
        return estimate_lines(self._files)

    def _infer(self, path: Path, lines: list[bytes], numbers: Sequence[int]) -> pa.Schema:
        good = lines
        while good:
            try:
                return _dates_as_text(_read_json(good, None).schema)
            except pa.ArrowInvalid:
                # What does not fit is told, or skipped, when it is read with the others' types.
                at = _first_failing(good, None)
                good = good[:at] + good[at + 1 :]
        raise SourceError(
            f"{path}, line {numbers[0]}: this is not a JSON object, nor are the lines after it. "
            "Give files with one JSON object per line."
        )

    def _parse(
        self,
        path: Path,
        lines: list[bytes],
        numbers: Sequence[int],
        schema: pa.Schema,
        skip: bool,
    ) -> tuple[pa.Table, Sequence[int]]:
        while True:
            try:
                return _read_json(lines, schema), numbers
            except pa.ArrowInvalid as error:
                at = _first_failing(lines, schema)
                where = f"{path}, line {numbers[at]}"
                cause = _line_error(lines[at], schema) or str(error)
                message = (
                    "this cannot be read as "
                    f"{dict(zip(schema.names, map(str, schema.types), strict=True))} ({cause}). "
                    "Correct the line, or give the types: JsonLinesSource(files, schema=...)."
                )
                if not skip:
                    raise SourceError(f"{where}: {message}") from error
                self.skipped.add(where, message)
                lines = lines[:at] + lines[at + 1 :]
                numbers = [*numbers[:at], *numbers[at + 1 :]]
                if not lines:
                    return schema.empty_table(), []


def _line_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's whole lines in blocks of some MB, each with the number (from 1) of its first."""
    number, rest = 1, b""
    with pa.input_stream(str(path)) as stream:
        while block := stream.read(BATCH_BYTES):
            end = block.rfind(b"\n")
            if end < 0:
                rest += block
                continue
            whole, rest = rest + block[:end], block[end + 1 :]
            yield number, whole
            number += whole.count(b"\n") + 1
    if rest:
        yield number, rest


def _read_json(lines: list[bytes], schema: pa.Schema | None) -> pa.Table:
    data = b"\n".join(lines)
    table = pj.read_json(
        io.BytesIO(data),
        # One block: an object may be of any length.
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "error",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid("a line must hold exactly one JSON object")
    return table


def _line_error(line: bytes, schema: pa.Schema) -> str | None:
    """What is wrong with a line on its own, if anything is."""
    try:
        _read_json([line], schema)
    except pa.ArrowInvalid as error:
        if "unexpected field" not in str(error):
            return str(error)
        # Arrow does not say which.
        unknown = sorted(json.loads(line).keys() - set(schema.names))
        return f"it has the field {unknown[0]!r} besides" if unknown else str(error)
    return None


def _first_failing(lines: list[bytes], schema: pa.Schema | None) -> int:
    """The first line with which the lines up to it cannot be read any more."""
    low, high = 0, len(lines)
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            _read_json(lines[:middle], schema)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return high - 1


def _dates_as_text(schema: pa.Schema) -> pa.Schema:
    """The schema without the dates that a reader guessed from text: the text is the data."""
    return pa.schema([field.with_type(_undated(field.type)) for field in schema])


def _undated(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_undated(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(_undated(kind.value_type))
    return kind
