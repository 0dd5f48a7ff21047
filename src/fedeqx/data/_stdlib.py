"""The running interpreter's own standard library as a source: real text that every machine has."""

import io
import sysconfig
import tokenize
from pathlib import Path
from typing import Any

from ._text_folder import TextFolderSource


def python_stdlib(folder: str | Path | None = None) -> TextFolderSource:
    """The source files of the running Python's standard library.

    **Arguments:**

    - `folder`: another folder of Python files to read instead.

    **Returns:**

    A source of examples `{"path": relative path, "text": the file's text}`, in the order of the
    paths, without installed packages and caches. Files that cannot be decoded by the encoding that
    they declare (PEP 263; the library tests itself with some) are counted and listed in `skipped`.
    Raises `FileNotFoundError` where this Python has no source files.

    !!! Example

        ```python
        source = fx.data.python_stdlib()
        dataset = fx.data.group(source, by=fx.data.stdlib_package, out="stdlib")
        ```
    """
    place = Path(folder if folder is not None else sysconfig.get_path("stdlib"))
    if not (place / "os.py").is_file() and folder is None:
        raise FileNotFoundError(
            f"This Python has no standard-library source files at {place} (it may be a zipped or "
            "frozen build). Group a folder of your own text instead."
        )
    return TextFolderSource(
        place,
        suffixes=(".py",),
        exclude=("__pycache__", "site-packages", "dist-packages"),
        decode=_decode,
        on_error="skip",
    )


def stdlib_package(example: dict[str, Any]) -> str:
    """The partition function of `python_stdlib`: the top-level package or module of a file."""
    top, _, rest = example["path"].partition("/")
    return top if rest else top.removesuffix(".py")


def _decode(raw: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    return raw.decode(encoding)
