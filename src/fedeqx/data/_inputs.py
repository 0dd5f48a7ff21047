"""Turns whatever a user gives as examples into a source."""

import glob
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ._csv_files import CsvSource
from ._json_lines import JsonLinesSource
from ._parquet import ParquetSource
from ._records import ArrowSource, HuggingFaceSource, RecordSource
from ._sources import AbstractSource
from ._text_folder import TextFolderSource

_COMPRESSED = (".gz", ".bz2", ".zst")
_KINDS: dict[str, Callable[[Sequence[Path]], AbstractSource]] = {
    ".parquet": ParquetSource,
    ".jsonl": JsonLinesSource,
    ".ndjson": JsonLinesSource,
    ".json": JsonLinesSource,
    ".csv": CsvSource,
    ".tsv": CsvSource,
}


def as_source(source: Any) -> AbstractSource:
    """Turn what a user gives into a source.

    **Arguments:**

    - `source`: one of

        - a path, a glob pattern or a list of paths of Parquet, JSON-lines or CSV files (`.parquet`,
          `.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`; text formats also `.gz`, `.bz2`, `.zst`);
        - a folder: of such files, where all are of one kind, else of text files;
        - an Arrow table, record batch or reader, a pandas or Polars data frame, or anything else
          that exports Arrow data;
        - a Hugging Face data set, map-style or streaming;
        - an iterable of dictionaries, such as a generator, a list, a TFDS data source, or a Grain
          `MapDataset` or `IterDataset`;
        - a source.

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
            "builder.as_data_source('train')."
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
        raise FileNotFoundError(
            f"The source {source} does not exist: there is no such file or folder, and no file "
            "matches it as a pattern."
        )
    return _from_files([Path(file) for file in matched])


def _from_files(files: list[Path]) -> AbstractSource:
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"The source files {missing[:3]} do not exist. Check the paths.")
    kinds = {_kind(file) for file in files}
    found = sorted({_ending(file) for file in files})
    if None in kinds or len({_KINDS[kind] for kind in kinds if kind}) != 1:
        raise TypeError(
            f"Files ending in {found} cannot be read as one source: they must all be of one kind, "
            f"and end in one of {list(_KINDS)} (compressed or not). Give a folder to read text "
            "files."
        )
    kind = next(kind for kind in kinds if kind)
    return _KINDS[kind](files)


def _ending(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if suffixes and suffixes[-1] in _COMPRESSED and len(suffixes) == 2:
        return suffixes[0]
    return suffixes[-1] if suffixes else file.name


def _kind(file: Path) -> str | None:
    ending = _ending(file)
    return ending if ending in _KINDS else None
