"""A folder of text files as a source."""

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import pyarrow as pa

from ._sources import BATCH_BYTES, BATCH_ROWS, AbstractSource, Skips, SourceError


@final
class TextFolderSource(AbstractSource):
    """The text files under a folder, in the order of their relative paths.

    Each example is `{"path": path relative to the folder, with "/", "text": the file's text}`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        suffixes: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        decode: Callable[[bytes], str] | None = None,
        on_error: str = "raise",
    ):
        """**Arguments:**

        - `folder`: the folder to read, with all its subfolders.
        - `suffixes`: endings of the files to take, such as `(".txt", ".md")`; empty takes all.
        - `exclude`: names of subfolders to leave out, wherever they are.
        - `decode`: makes text of a file's bytes; raises `ValueError` or `SyntaxError` where it
            cannot. By default strict UTF-8.
        - `on_error`: `"raise"`, or `"skip"` to leave out a file that cannot be read or decoded and
            list it in `skipped`.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"The source folder {self.folder} does not exist or is not a folder. Give a folder "
                "of text files."
            )
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'skip'.")
        self.skipped = Skips()
        self._suffixes = suffixes
        self._exclude = frozenset(exclude)
        self._decode = decode or bytes.decode
        self._on_error = on_error
        self._read: list[str] = []
        self._paths: list[str] | None = None

    def some(self, paths: list[str]) -> "TextFolderSource":
        """The same source with some of its files alone, by their relative paths."""
        part = copy.copy(self)
        part.skipped, part._read, part._paths = Skips(), [], paths
        return part

    def paths(self) -> list[str]:
        """The files' paths relative to the folder, sorted."""
        if self._paths is not None:
            return self._paths
        found = []
        for folder, subfolders, files in os.walk(self.folder):
            subfolders[:] = [name for name in subfolders if name not in self._exclude]
            for name in files:
                if not self._suffixes or name.endswith(self._suffixes):
                    found.append(Path(folder, name).relative_to(self.folder).as_posix())
        return sorted(found)

    def batches(self, *, skip: bool = False) -> Iterator[pa.RecordBatch]:
        schema = pa.schema({"path": pa.string(), "text": pa.large_string()})
        self.skipped.clear()
        self._read.clear()
        paths: list[str] = []
        texts: list[str] = []
        size = 0
        for path in self.paths():
            text = self._text(path, skip or self._on_error == "skip")
            if text is None:
                continue
            self._read.append(path)
            paths.append(path)
            texts.append(text)
            size += len(text)
            if len(paths) == BATCH_ROWS or size >= BATCH_BYTES:
                yield pa.record_batch([paths, texts], schema=schema)
                paths, texts, size = [], [], 0
        if paths:
            yield pa.record_batch([paths, texts], schema=schema)

    def describe(self) -> dict[str, Any]:
        return {"kind": "text folder", "suffixes": list(self._suffixes)}

    def locate(self, row: int) -> str:
        return f"file {self._read[row]}"

    def total(self) -> int | None:
        return len(self.paths())

    def _text(self, path: str, skip: bool) -> str | None:
        try:
            text = self._decode((self.folder / path).read_bytes())
            # Arrow would refuse a lone surrogate much later, without the file's name.
            text.encode()
        except (OSError, SyntaxError, ValueError) as error:
            if not skip:
                raise SourceError(
                    f"The file {self.folder / path} cannot be read as text: {error}. Remove or "
                    "re-encode it, give decode=..., or leave it out with on_error='skip'."
                ) from error
            self.skipped.add(path, str(error))
            return None
        return text
