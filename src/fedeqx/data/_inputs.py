"""Turns whatever a user gives as examples into a source."""

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from ._array_records import ArrayRecordSource
from ._csv_files import CsvSource
from ._hugging_face import HuggingFaceSource
from ._json_lines import JsonLinesSource
from ._parquet import ParquetSource
from ._records import ArrowSource, RecordSource
from ._sources import AbstractSource
from ._text_folder import TextFolderSource

# At the end of the names of sharded files: "train.array_record-00000-of-00004".
_SHARD = re.compile(r"-\d+-of-\d+$")
_COMPRESSED = (".gz", ".bz2", ".zst")
FileSource: TypeAlias = ParquetSource | JsonLinesSource | CsvSource | ArrayRecordSource
_KINDS: dict[str, type[FileSource]] = {
    ".parquet": ParquetSource,
    ".jsonl": JsonLinesSource,
    ".ndjson": JsonLinesSource,
    ".json": JsonLinesSource,
    ".csv": CsvSource,
    ".tsv": CsvSource,
    ".array_record": ArrayRecordSource,
    ".arrayrecord": ArrayRecordSource,
}


def as_source(source: Any) -> AbstractSource:
    """Turn what a user gives into a source.

    **Arguments:**

    - `source`: one of

        - a path, a glob pattern or a list of paths of Parquet, JSON-lines, CSV or ArrayRecord files
          (`.parquet`, `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.array_record`; text formats
          also `.gz`, `.bz2`, `.zst`);
        - a folder: of such files, where all are of one kind, else of text files;
        - an Arrow table, record batch or reader, a pandas or Polars data frame, or anything else
          that exports Arrow data;
        - a Hugging Face data set, map-style or streaming;
        - an iterable of dictionaries, such as a generator, a list, or a Grain `MapDataset` or
          `IterDataset`;
        - a source, such as `TfdsSource(builder, split="train")`.

    **Returns:**

    The source. Raises `TypeError` for anything else, and `FileNotFoundError` for a missing file.
    """
    if isinstance(source, AbstractSource):
        return source
    if isinstance(source, str | Path):
        return _from_path(source)
    if type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "with_format"):
        return HuggingFaceSource(source)
    if hasattr(source, "__arrow_c_stream__") or isinstance(source, pa.RecordBatch):
        return ArrowSource(source)
    if hasattr(source, "as_data_source"):
        raise TypeError(
            f"A TFDS builder ({type(source).__name__}) holds several splits. Give one of them: "
            "fx.data.TfdsSource(builder, split='train')."
        )
    if isinstance(source, list | tuple) and source and _all_paths(source):
        return _from_files([Path(path) for path in source])
    if _is_iterable(source) and not isinstance(source, Mapping | bytes):
        return RecordSource(source)
    raise TypeError(
        f"A {type(source).__name__} cannot be a source of examples. Give a path, an Arrow table, a "
        "data frame, or an iterable of dictionaries."
    )


def _is_iterable(source: Any) -> bool:
    # Grain's MapDataset is one, though its type does not say so.
    return isinstance(source, Iterable) or hasattr(source, "__iter__")


def _all_paths(items: Sequence[Any]) -> bool:
    return all(isinstance(item, str | Path) for item in items)


def _from_path(source: str | Path) -> AbstractSource:
    path = Path(source)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not file.name.startswith((".", "_"))
        )
        kinds = {_kind(file) for file in files}
        if len(kinds) == 1 and None not in kinds:
            return _from_files(files)
        return TextFolderSource(path)
    if path.is_file():
        return _from_files([path])
    matched = sorted(glob.glob(str(source), recursive=True))
    if not matched:
        told = " URLs are read by fx.data.group_with_beam." if "://" in str(source) else ""
        raise FileNotFoundError(
            f"The source {source} does not exist: there is no such file or folder, and no file "
            f"matches it as a pattern.{told}"
        )
    return _from_files([Path(file) for file in matched])


def _from_files(files: list[Path]) -> AbstractSource:
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"The source files {missing[:3]} do not exist. Check the paths.")
    return kind_of(files)(files)


def kind_of(files: list[Path]) -> type[FileSource]:
    """The source that reads files with these names. Raises `TypeError` where there is none."""
    kinds = {_KINDS.get(_kind(file) or "") for file in files}
    if len(kinds) != 1 or None in kinds:
        found = sorted({_ending(file) for file in files})
        raise TypeError(
            f"Files ending in {found} cannot be read as one source: they must all be of one kind, "
            f"and end in one of {list(_KINDS)} (compressed or not). Give a folder to read text "
            "files."
        )
    return next(kind for kind in kinds if kind)


def _ending(file: Path) -> str:
    file = file.with_name(_SHARD.sub("", file.name))
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes and suffixes[-1] in _COMPRESSED and len(suffixes) == 2:
        return suffixes[0]
    return suffixes[-1] if suffixes else file.name


def _kind(file: Path) -> str | None:
    ending = _ending(file)
    return ending if ending in _KINDS else None
