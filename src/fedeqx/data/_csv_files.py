"""CSV files as a source."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.csv as pc

from ._files import READ_ERRORS, Places, check_columns, estimate_lines
from ._sources import BATCH_BYTES, AbstractSource, Skips, SourceError, pieces


@final
class CsvSource(AbstractSource):
    """The rows of CSV or TSV files (also .gz, .bz2, .zst) with a header, file after file."""

    def __init__(self, files: Sequence[str | Path], *, types: dict[str, pa.DataType] | None = None):
        """**Arguments:**

        - `files`: the files, in the order in which to read them.
        - `types`: the Arrow types of some columns; the others' are inferred from the first few MB.
        """
        self.skipped = Skips()
        self._files = [Path(file) for file in files]
        self._types = types or {}
        self._places = Places("row")

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        self.skipped.clear()
        self._places.clear()
        schema = None
        for path in self._files:

            def bad_row(row: pc.InvalidRow, path: Path = path) -> str:
                where = f"{path}, row {row.number}" if row.number else str(path)
                why = (
                    f"{row.actual_columns} columns, where there should be "
                    f"{row.expected_columns}: {row.text[:80]!r}"
                )
                if not skip:
                    return "error"
                self.skipped.add(where, why)
                return "skip"

            try:
                types = (
                    self._types_of(path)
                    if schema is None
                    else dict(zip(schema.names, schema.types, strict=True))
                )
                with pa.input_stream(str(path)) as stream:
                    reader = self._open(stream, path, types, bad_row)
                    schema = schema or reader.schema
                    names = schema.names
                    check_columns(path, reader.schema, self._files[0], schema, types=False)
                    row = 0
                    for batch in reader:
                        ordered = batch.select(names)
                        self._places.add(path, range(row, row + batch.num_rows))
                        row += batch.num_rows
                        yield from pieces(ordered)
            except (*READ_ERRORS, pa.ArrowInvalid) as error:
                raise SourceError(
                    f"{path}: {error}. Correct the row, give the column's type: CsvSource(files, "
                    "types={...}), or leave out rows of another length with on_error='skip'."
                ) from error

    def _open(
        self,
        stream: pa.NativeFile,
        path: Path,
        types: dict[str, pa.DataType],
        bad_row: Callable[[pc.InvalidRow], str] | None = None,
    ) -> pc.CSVStreamingReader:
        return pc.open_csv(
            stream,
            # Rows are counted in order, and read in order, by one thread only.
            read_options=pc.ReadOptions(use_threads=False, block_size=BATCH_BYTES),
            parse_options=pc.ParseOptions(
                delimiter="\t" if ".tsv" in path.name.lower() else ",",
                newlines_in_values=True,
                invalid_row_handler=bad_row or (lambda row: "skip"),
            ),
            convert_options=pc.ConvertOptions(column_types=types),
        )

    def _types_of(self, path: Path) -> dict[str, pa.DataType]:
        """The columns' types; one without any value at first is text."""
        with pa.input_stream(str(path)) as stream:
            schema = self._open(stream, path, self._types).schema
        return {
            field.name: pa.string() if pa.types.is_null(field.type) else field.type
            for field in schema
        }

    def describe(self) -> dict[str, Any]:
        return {"kind": "csv", "files": [file.name for file in self._files]}

    def locate(self, row: int) -> str:
        return self._places.locate(row)

    def total(self) -> int | None:
        return estimate_lines(self._files)
