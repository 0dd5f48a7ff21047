"""Parquet files as a source."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import pyarrow as pa
import pyarrow.parquet as pq

from ._ahead import ahead
from ._files import READ_ERRORS, Places, check_columns, refuse
from ._sources import BATCH_ROWS, AbstractSource, Skips, pieces


@final
class ParquetSource(AbstractSource):
    """The rows of Parquet files, file after file. All files have the same columns and types."""

    def __init__(self, files: Sequence[str | Path]):
        """**Arguments:**

        - `files`: the files, in the order in which to read them.
        """
        self.skipped = Skips()
        self._files = [Path(file) for file in files]
        self._places = Places("row")

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        self.skipped.clear()
        self._places.clear()
        schema = None
        for path in self._files:
            try:
                with pq.ParquetFile(path, memory_map=True) as file:
                    schema = schema or file.schema_arrow
                    names = schema.names
                    check_columns(path, file.schema_arrow, self._files[0], schema)
                    row = 0
                    for batch in ahead(file.iter_batches(BATCH_ROWS)):
                        ordered = batch.select(names)
                        for piece in pieces(ordered):
                            self._places.add(path, range(row, row + piece.num_rows))
                            row += piece.num_rows
                            yield piece
            except READ_ERRORS as error:
                refuse(self.skipped, path, error, skip)

    def describe(self) -> dict[str, Any]:
        return {"kind": "parquet", "files": [file.name for file in self._files]}

    def locate(self, row: int) -> str:
        return self._places.locate(row)

    def total(self) -> int | None:
        try:
            return sum(pq.read_metadata(file).num_rows for file in self._files)
        except READ_ERRORS:
            return None
