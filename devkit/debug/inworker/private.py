"""Folders and files that are this user's alone: made so, and neither written over nor believed when they are not.

Where others may write, a name says nothing: whoever was first has made it, and may put another thing in its place at
any time, as in the folders of Ray's sessions. So a folder is opened once, looked at, and everything in it reached
through what was opened. `own` is how many of the folders above a file have to be this user's own; what is above those
is taken as it is. Each function raises OSError; `PermissionError` says that something is not ours.

Standard library, and nothing else of this package: `ship.py` runs this file before the package is there. What only some
processes need of it is imported where it is used: every worker and each of its children loads this at its start.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import socket

# Kept from before the program runs: what grades code that a model wrote takes these away from its whole process.
getcwd, kill, replace, unlink = os.getcwd, os.kill, os.replace, os.unlink

OTHERS = stat.S_IWGRP | stat.S_IWOTH
NOT_OURS = "it is another user's, or others may write to it"
BUNDLE = "bundle.zip"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")

_ANY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that somebody put there must not hold us


def home(environ: Mapping[str, str] | None = None) -> Path:
    """devkit's own folder. Raises RuntimeError where this user has no home.

    >>> str(home({"DEVKIT_HOME": "/d"})), str(home({"XDG_CACHE_HOME": "/c"}))
    ('/d', '/c/devkit')
    """
    environ = os.environ if environ is None else environ
    if own := environ.get("DEVKIT_HOME"):
        return Path(own).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "devkit"


# ---- folders


def folder(path: Path, own: int = 1) -> Path:
    """The folder, made if it is not there."""
    with opened(path, own, make=True):
        return path


@contextmanager
def opened(path: Path, own: int = 1, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder, of which and of whose parents so many are this user's own."""
    path = path.absolute()
    if own >= len(path.parts):
        raise _not_ours(path)
    above = path.parents[own - 1] if own else path
    if make:
        above.mkdir(parents=True, exist_ok=True)
    at = os.open(above, _ANY)
    try:
        for part in path.parts[len(path.parts) - own :]:
            below = _step(at, part, path, make)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _step(at: int, name: str, path: Path, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
    try:
        below = os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
            raise _not_ours(path) from None
        raise
    info = os.fstat(below)
    if info.st_uid != os.geteuid() or info.st_mode & OTHERS:
        os.close(below)
        raise _not_ours(path)
    return below


def _not_ours(path: Path) -> PermissionError:
    return PermissionError(errno.EPERM, NOT_OURS, str(path))


def names(path: Path, own: int = 1) -> list[str]:
    """What is in the folder; nothing, if it is not there."""
    try:
        with opened(path, own) as at:
            return os.listdir(at)
    except FileNotFoundError:
        return []


# ---- files


def write(path: Path, data: str | bytes, own: int = 1, *, make: bool = True) -> None:
    """The whole file or none of it, for this user's eyes only."""
    with opened(path.parent, own, make=make) as at:
        new = f".{path.name}.{secrets.token_hex(4)}"
        try:
            with os.fdopen(os.open(new, _NEW, 0o600, dir_fd=at), "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
            replace(new, path.name, src_dir_fd=at, dst_dir_fd=at)
        except OSError:
            with suppress(OSError):
                unlink(new, dir_fd=at)
            raise


def create(path: Path, own: int = 1) -> int:
    """A descriptor of a new file to be written to. Raises FileExistsError if there is one."""
    with opened(path.parent, own, make=True) as at:
        return os.open(path.name, _NEW, 0o600, dir_fd=at)


def read(path: Path, own: int = 1) -> bytes:
    """All of a file of this user's in a folder of this user's."""
    with reading(path, own) as file:
        return file.read()


def reading(path: Path, own: int = 1, owners: Collection[int] = ()) -> BinaryIO:
    """The same, to be read piece by piece. `owners` are those who, too, may have written it."""
    with opened(path.parent, own) as at:
        try:
            file = os.fdopen(os.open(path.name, _OLD, dir_fd=at), "rb")
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise _not_ours(path) from None
            raise
    info = os.fstat(file.fileno())
    if stat.S_ISREG(info.st_mode) and info.st_uid in (os.geteuid(), *owners):
        return file
    file.close()
    raise _not_ours(path)


def remove(path: Path, own: int = 1) -> None:
    """The file is not there afterwards, in a folder of this user's."""
    with suppress(FileNotFoundError), opened(path.parent, own) as at:
        unlink(path.name, dir_fd=at)


def is_same_user(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end of a Unix socket; true where the system does not tell."""
    import socket
    import struct

    if not hasattr(socket, "SO_PEERCRED"):
        return True
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", said)[1] in (os.geteuid(), 0))


# ---- code


def unpack(bundle: bytes, digest: str) -> Path:
    """The bundle's files in a folder of this version, which nobody but this user can have written to or can replace.

    Below devkit's own folder, else among temporary files: a pod's /tmp may be a volume that anybody can write to. Any
    number of processes may do it at once.
    """
    problem: Exception | None = None
    for place in _places():
        try:
            target = folder(_unreplaceable(place()) / digest, own=2)
            _fill(target, bundle)
            return target
        except (OSError, RuntimeError) as error:
            problem = problem or error
    raise PermissionError(errno.EPERM, f"there is no folder for it that is this user's alone: {problem}")


def _places() -> Iterator[Callable[[], Path]]:
    import tempfile

    yield lambda: _at_home() / "bundles"
    tops = [top for top in dict.fromkeys((tempfile.gettempdir(), *TEMPORARY)) if os.path.isdir(top)]
    for top in tops:
        yield lambda top=top: Path(top, f"devkit-{os.geteuid()}", "bundles")  # type: ignore[misc]
    for top in tops:  # somebody has taken that name
        yield lambda top=top: _fresh(top) / "bundles"  # type: ignore[misc]


def _at_home() -> Path:
    """A home that is not there is not made: a user without one is given a name for it."""
    if not Path.home().is_dir() and home().is_relative_to(Path.home()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(Path.home()))
    return home()


def _fresh(top: str) -> Path:
    import atexit
    import shutil
    import tempfile

    made = tempfile.mkdtemp(prefix=f"devkit-{os.geteuid()}-", dir=top)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _unreplaceable(path: Path) -> Path:
    """The folder, made, by a path of which nobody else can change the meaning."""
    real = Path(os.path.realpath(path))
    folder(real, own=2)
    if not is_kept(real):
        raise _not_ours(real)
    return real


def is_kept(path: Path) -> bool:
    """Whether nobody else can put another thing in its place, or in that of a folder above it."""
    trusted = {os.geteuid(), 0, os.stat("/").st_uid}  # who has / has everything; in a container that may be "nobody"
    above = [os.stat(each) for each in Path(os.path.realpath(path)).parents]
    return all(
        info.st_uid in trusted and (not info.st_mode & OTHERS or bool(info.st_mode & stat.S_ISVTX)) for info in above
    )


def temporary() -> str:
    """A folder for temporary folders that nobody else can replace, if there is one: the usual one, else /tmp."""
    import tempfile

    usual = tempfile.gettempdir()
    tops = (top for top in (usual, "/tmp") if os.path.isdir(top) and is_kept(Path(top, "any")))
    return next(tops, usual)


def _fill(target: Path, bundle: bytes) -> None:
    """Writes what is not there, or not whole. A digest means one content, so it does not matter which process does."""
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        for name, size in sizes.items():
            if _size(target / name) != size:
                write(target / name, archive.read(name), own=2)
    if _size(target / BUNDLE) != len(bundle):
        write(target / BUNDLE, bundle)


def _size(path: Path) -> int:
    with suppress(OSError):
        return os.lstat(path).st_size
    return -1
