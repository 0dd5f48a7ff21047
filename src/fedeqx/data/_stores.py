"""Files anywhere: on this machine, or where an fsspec URL such as `gs://bucket/data` says."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from ._extras import missing_extra


def local_path(place: str | Path) -> Path | None:
    """The path on this machine that a path or a `file://` URL names; `None` for other URLs."""
    text = str(place)
    if "://" not in text:
        return Path(place)
    if text.startswith(("file://", "local://")):
        return Path(file_system(text)[1])
    return None


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the URL's path in it.

    Raises `ImportError` where the package for this kind of URL is not installed.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing_extra("beam", "fsspec", f"Reading and writing {url}") from error
    return url_to_fs(url)


def find_files(url: str) -> list[str]:
    """The URLs of the files that a URL names: a file, a folder with all below it, or a pattern.

    Raises `FileNotFoundError` where there is none.
    """
    system, path = file_system(url)
    if system.isdir(path):
        found = system.find(path)
    elif system.isfile(path):
        return [url]
    else:
        found = [match for match in system.glob(path) if system.isfile(match)]
    files = sorted(file for file in found if not Path(file).name.startswith((".", "_")))
    if not files:
        raise FileNotFoundError(
            f"The source {url} does not exist: there is no such file or folder, and no file "
            "matches it as a pattern."
        )
    return [system.unstrip_protocol(file) for file in files]


@contextmanager
def fetched(place: str) -> Iterator[Path]:
    """A file as one on this machine: itself, or a copy under its own name that is removed later."""
    path = local_path(place)
    if path is not None:
        yield path
        return
    system, remote = file_system(place)
    with tempfile.TemporaryDirectory(prefix="fedeqx-") as folder:
        copy = Path(folder, Path(remote).name)
        system.get_file(remote, str(copy))
        yield copy


@final
class Store:
    """A folder to write whole files to. Pickles as its place."""

    def __init__(self, place: str):
        self.place = place

    def put(self, file: Path, name: str) -> None:
        """Store a file of this machine under a name: whole, or not at all."""
        folder = local_path(self.place)
        if folder is None:
            system, path = file_system(self.place)
            system.put_file(str(file), f"{path}/{name}")
            return
        # A runner may do the same work twice at the same time; renaming is atomic.
        half = folder / f".{name}.{secrets.token_hex(4)}"
        try:
            shutil.copyfile(file, half)
            half.replace(folder / name)
        finally:
            half.unlink(missing_ok=True)

    def get(self, name: str, file: Path) -> None:
        """Copy a stored file to this machine."""
        folder = local_path(self.place)
        if folder is None:
            system, path = file_system(self.place)
            system.get_file(f"{path}/{name}", str(file))
        else:
            shutil.copyfile(folder / name, file)

    def remove(self, name: str) -> None:
        """Remove a stored file."""
        folder = local_path(self.place)
        if folder is None:
            system, path = file_system(self.place)
            system.rm_file(f"{path}/{name}")
        else:
            (folder / name).unlink()

    def read(self, name: str) -> bytes:
        """The content of a stored file."""
        with tempfile.TemporaryDirectory(prefix="fedeqx-") as folder:
            copy = Path(folder, "copy")
            self.get(name, copy)
            return copy.read_bytes()


@contextmanager
def emptied(url: str, manifest: str, *, overwrite: bool) -> Iterator[None]:
    """A folder that is no path of this machine, ready to be written to, and emptied on failure.

    Such places cannot rename a folder. What is there is removed first, the `manifest` before the
    rest, so that no half data set can be opened.
    """
    system, path = file_system(url)
    if system.exists(path) and not overwrite:
        raise FileExistsError(
            f"{url} exists already. Choose another out=..., or replace it with overwrite=True."
        )
    if system.exists(f"{path}/{manifest}"):
        system.rm_file(f"{path}/{manifest}")
    if system.exists(path):
        system.rm(path, recursive=True)
    system.makedirs(path, exist_ok=True)
    try:
        yield
    except BaseException:
        if system.exists(path):
            system.rm(path, recursive=True)
        raise
