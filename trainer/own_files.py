"""Files that a run writes into folders where others may write, too, such as a group's: never through a link of theirs.

A name there says nothing: somebody may have put a link under it, to a file of this user's, or a pipe that nobody reads.
What is made is made anew; what is added to or changed is a regular file, by its own name or by a link of this user's.
The folders above may be links of whoever: who named them meant them. Standard library only; all raise OSError.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us
_MODE = 0o666  # less the umask: who may read it, the user says
_NOT_OURS = "it is a link of another user's, or no file"


def new(path: Path) -> BinaryIO:
    """A file to be written and read, in place of what has its name."""
    with suppress(FileNotFoundError):
        path.unlink()
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, _MODE), "w+b")


def write(path: Path, text: str, *, durable: bool = False) -> None:
    """A whole new file; `durable`: it is on the disk."""
    with new(path) as file:
        file.write(text.encode())
        if durable:
            file.flush()
            os.fsync(file.fileno())


def append(path: Path, text: str) -> None:
    """To a file that may be there."""
    with os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        file.write(text.encode())


def changed(path: Path) -> BinaryIO:
    """A file that is there, to be read and written."""
    return os.fdopen(_opened(path, os.O_RDWR), "r+b")


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Where a library can write a file that is `path` afterwards: in a folder of its own, which goes again."""
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
    try:
        yield folder / path.name
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def folder(path: Path) -> Path:
    """The folder, made if need be; no link of another user's."""
    path.mkdir(parents=True, exist_ok=True)
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode) and about.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it is a link of another user's")
    return path


def temporary() -> str:
    """A folder for temporary folders that nobody else can replace, if there is one: the usual one, else /tmp.

    A pod's /tmp, or what TMPDIR names, may be a volume in which anybody may rename anything.
    """
    usual = tempfile.gettempdir()
    return next((top for top in (usual, "/tmp") if os.path.isdir(top) and _is_kept(top)), usual)


def _is_kept(folder: str) -> bool:
    """Whether nobody else can put another thing in the place of what is in it, of it, or of a folder above it."""
    trusted = {os.geteuid(), 0, os.stat("/").st_uid}  # who has / has everything; in a container that may be "nobody"
    real = Path(os.path.realpath(folder))
    about = [each.stat() for each in (real, *real.parents)]
    others = stat.S_IWGRP | stat.S_IWOTH
    return all(each.st_uid in trusted and (not each.st_mode & others or each.st_mode & stat.S_ISVTX) for each in about)


def _opened(path: Path, flags: int) -> int:
    try:
        handle = _open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, a socket
            raise OSError(errno.EPERM, _NOT_OURS) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EPERM, _NOT_OURS)
    return handle


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | _SAFE, _MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    try:
        return os.open(path.parent / _own_link(path), flags | _SAFE, _MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.EPERM, _NOT_OURS) from None


def _own_link(path: Path) -> str:
    """Where a link of this user's leads: read of the link that was looked at, whatever has its name by now."""
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.EPERM, _NOT_OURS)
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            raise OSError(errno.EPERM, _NOT_OURS)
        return os.readlink("", dir_fd=handle)
    finally:
        os.close(handle)
