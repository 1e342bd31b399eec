"""One run at a time in a folder that it writes to: two would delete each other's checkpoints in writing.

`run.lock` there is held by `flock`, which the system lets go of when its holder ends in any way, by kill -9 too; on NFS
that is the server's lock, which other hosts see. Where a file system has no such locks, or keeps them to each host, the
file itself tells: its holder is named in it, by host, boot and process, and touches it every BEAT_S. A holder of this
machine is looked up. One of another machine is dead if it has not touched the file for long, by the file system's own
clock; else it is watched for WATCH_S.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from trainer.config.outputs import folders_of
from trainer.config.schema import TrainerConfig
from trainer.errors import FolderInUse, TrainerError

LOCK_FILE = "run.lock"
BEAT_S = 5.0
WATCH_S = 6 * BEAT_S
LARGEST = 4096  # bytes of a lock file that are looked at


@dataclass(frozen=True)
class Holder:
    """Who has a folder."""

    host: str
    pid: int
    since: str  # UTC, as 2026-11-23 05:14:07
    kernel: str = ""  # that it runs under, from the start of the host on
    space: str = ""  # of process numbers: containers on one kernel have their own
    began: int = 0  # when the process began, in the kernel's count: its number may be another's by now

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since} UTC"

    @classmethod
    def me(cls) -> Holder:
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        return cls(socket.gethostname(), os.getpid(), now, _kernel(), _space(), _began(os.getpid()) or 0)

    @property
    def shares_our_kernel(self) -> bool:
        return self.kernel == _kernel() if self.kernel else self.host == socket.gethostname()

    @property
    def is_visible(self) -> bool:
        """Whether its number is one of our processes'."""
        return self.shares_our_kernel and self.space == _space()

    @property
    def is_alive(self) -> bool:
        """Of one that is visible."""
        began = _began(self.pid)
        return began is not None and self.began in (0, began)


def parse(text: str) -> Holder | None:
    """What `json.dumps(asdict(holder))` gives; None for anything else: a lock that was cut short is nobody's."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    kinds = {"host": str, "pid": int, "since": str, "kernel": str, "space": str, "began": int}
    if not isinstance(record, dict) or record.keys() != {field.name for field in fields(Holder)}:
        return None
    if not all(type(record[name]) is kind for name, kind in kinds.items()):
        return None
    words = [str(record[name]) for name in kinds]
    return Holder(**record) if all(len(word) < 300 and word.isprintable() for word in words) else None


@contextmanager
def held(trainer: TrainerConfig, note: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Within it the folders that a run writes to are its own; they are made if need be.

    Raises FolderInUse, TrainerError.
    """
    with ExitStack() as stack:
        ours: set[Path] = set()
        for key, folder in folders_of(trainer).items():
            if (real := folder.resolve()) not in ours:
                ours.add(real)
                stack.enter_context(_held(folder / LOCK_FILE, key, note))
        yield


@contextmanager
def _held(path: Path, key: str, note: Callable[[str], None]) -> Iterator[None]:
    is_new = not path.parent.exists()
    handle = _taken(path, key, note)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(handle, done), name="run-lock", daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        with contextlib.suppress(OSError):
            if _is_still(handle, path) and _is_mine(handle):
                path.unlink()
                if is_new:
                    path.parent.rmdir()  # if nothing was written
        os.close(handle)


def require_free(trainer: TrainerConfig) -> None:
    """Raises FolderInUse where another run has a folder for certain: to say so before anything is started."""
    for key, folder in folders_of(trainer).items():
        path = folder / LOCK_FILE
        if path.exists():
            handle = _opened(path, key)
            try:
                _lock(handle, path, key)
            finally:
                os.close(handle)


def _taken(path: Path, key: str, note: Callable[[str], None]) -> int:
    """The open file, once it is ours: locked, and with our name in it."""
    while True:
        handle = _opened(path, key)
        try:
            has_locks = _lock(handle, path, key)
            if not _is_still(handle, path):  # its last holder has removed it meanwhile
                os.close(handle)
                continue
            holder = _read(handle)
            if holder is not None:
                _require_dead(holder, handle, path, key, note, has_locks=has_locks)
                if not _is_still(handle, path):
                    raise FileNotFoundError(path)
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(Holder.me())).encode(), 0)
            os.fsync(handle)
        except FileNotFoundError:  # its holder has ended while we looked at it
            os.close(handle)
            continue
        except OSError as error:
            os.close(handle)
            raise _unwritable(path, key, error) from error
        except BaseException:
            os.close(handle)
            raise
        return handle


def _opened(path: Path, key: str) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _unwritable(path, key, error) from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # another name of a file: whose it is nobody knows
        os.close(handle)
        raise TrainerError(f"{path} is not a file of its own", hint=f"remove it, or set {key} to another folder")
    return handle


def _lock(handle: int, path: Path, key: str) -> bool:
    """Whether the lock is ours; False where the file system has none. Raises FolderInUse."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path, key, _read(handle)) from None
    except OSError:  # no locks here
        return False
    return True


def _require_dead(
    holder: Holder, handle: int, path: Path, key: str, note: Callable[[str], None], *, has_locks: bool
) -> None:
    """Returns when the holder that the file names is gone. Raises FolderInUse if it lives."""
    if has_locks and holder.shares_our_kernel:  # then it would hold its lock
        return
    if holder.is_visible:
        if holder.is_alive:
            raise _in_use(path, key, holder)
        return
    before = os.fstat(handle).st_mtime_ns
    if _now_of(path.parent) - before > 2e9 * WATCH_S:
        return
    note(f"{path} names {holder}: checking for {WATCH_S:.0f} s whether it is still running")
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(WATCH_S / 30)
        if path.stat().st_mtime_ns != before:  # by name: that is what asks a server
            raise _in_use(path, key, holder)


def _now_of(folder: Path) -> int:
    """Nanoseconds by the clock that files of `folder` are dated by, which may be a server's."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _beat(handle: int, done: threading.Event) -> None:
    while not done.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a server that is away for a while is no reason to end a run
            os.utime(handle)


def _is_mine(handle: int) -> bool:
    """Whether this process is named: another run may have taken it for a dead one, and the folder with it."""
    found, me = _read(handle), Holder.me()
    return found is not None and replace(found, since=me.since) == me


def _is_still(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _read(handle: int) -> Holder | None:
    return parse(os.pread(handle, LARGEST, 0).decode("utf-8", "replace"))


def _in_use(path: Path, key: str, holder: Holder | None) -> FolderInUse:
    return FolderInUse(
        f"another run writes to {path.parent}: {holder or 'its process is not named yet'}",
        hint=f"give this one a folder of its own with {key}, or stop the other one",
    )


def _unwritable(path: Path, key: str, error: OSError) -> TrainerError:
    return TrainerError(
        f"cannot write {path}: {error.strerror or error}", hint=f"free space, or write elsewhere: {key}"
    )


def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return ""


def _space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> int | None:
    """When a process of this machine began; None if there is none. 0 where that cannot be told."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:  # somebody else's
        pass
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
