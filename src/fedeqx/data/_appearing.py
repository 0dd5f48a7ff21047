"""A folder that appears complete or not at all, whatever happens to the process that writes it."""

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def appearing(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to build in, which takes the name `out` when all went well and else is removed.

    What killed processes left of the same `out` is removed first; what belongs to one that runs is
    not touched. A data set that a killed process had moved away, to replace it, is put back.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    _clear(out)
    _check_free(out, overwrite)
    token, lock = _claim(out)
    building, old = _building(out, token), _replaced(out, token)
    try:
        yield building
        # Another process may have finished meanwhile.
        _check_free(out, overwrite)
        if out.exists():
            out.rename(old)
        try:
            building.rename(out)
        except OSError:
            _check_free(out, overwrite)
            raise
        _remove(old)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _building(out: Path, token: str) -> Path:
    return out.parent / f".{out.name}.building-{token}"


def _replaced(out: Path, token: str) -> Path:
    return out.parent / f".{out.name}.replaced-{token}"


def _tokens(out: Path, name: Path) -> list[str]:
    """The tokens of the folders of this kind that exist; `name` is one with an empty token."""
    return [
        entry.removeprefix(name.name)
        for entry in os.listdir(out.parent)
        if entry.startswith(name.name)
    ]


def _check_free(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"{out} exists already. Choose another out=..., or replace it with overwrite=True."
        )


def _claim(out: Path) -> tuple[str, int | None]:
    """Make a folder and lock it; the lock ends with this process, however that ends."""
    while True:
        token = secrets.token_hex(4)
        building = _building(out, token)
        building.mkdir()
        try:
            lock = _lock(building)
            if lock is None or os.path.samestat(os.fstat(lock), building.stat()):
                return token, lock
            os.close(lock)
        except (BlockingIOError, FileNotFoundError):
            # Another process took it for a dead one's, between the two lines above.
            continue


def _lock(folder: Path) -> int | None:
    """Lock a folder; `None` where this file system, or Windows, cannot.

    Raises `BlockingIOError` where another process holds it.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _clear(out: Path) -> None:
    for token in _tokens(out, _building(out, "")):
        building = _building(out, token)
        try:
            lock = _lock(building)
        except OSError:
            # Its process lives, or has just finished.
            continue
        if lock is not None:
            shutil.rmtree(building, ignore_errors=True)
            os.close(lock)
    for token in _tokens(out, _replaced(out, "")):
        if _building(out, token).exists():
            continue
        if out.exists():
            _remove(_replaced(out, token))
        else:
            # Killed between the two renames: there is nothing new, so that the old one stays.
            _replaced(out, token).rename(out)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
