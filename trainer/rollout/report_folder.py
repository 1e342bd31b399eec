"""The folder in which an engine's model processes leave their reports, as long as the engine's actor lives.

That one is killed at its end, and whoever kills it removes the folder. Where all of a run is killed, the next engine on
that node does: the owner holds a lock in it, which the system lets go of whatever ends the owner.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from trainer import own_files

PREFIX, _NEW = "rollout-reports-", ".rollout-reports-"
_LOCK = "owner.lock"
_OLD_S = 86_400.0  # nobody writes into one without a lock for so long: it is an earlier release's, or half made


class ReportFolder:
    """One of its own, made and locked; those whose owners are gone are removed first."""

    def __init__(self) -> None:
        within = Path(own_files.temporary())
        sweep(within)
        made = Path(tempfile.mkdtemp(prefix=_NEW, dir=within))
        self._lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks: it is swept a day after its last report
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(within / made.name.removeprefix("."))  # only now, with its lock, may others see it
        weakref.finalize(self, _remove_own, str(self.path), os.getpid())  # at an end that nobody forces


def remove(path: str) -> None:
    """Of an engine whose processes are gone."""
    shutil.rmtree(path, ignore_errors=True)


def _remove_own(path: str, pid: int) -> None:
    if os.getpid() == pid:  # not a forked child
        remove(path)


def sweep(within: Path) -> None:
    """Removes this user's folders that nobody holds any more."""
    for path in (*within.glob(f"{PREFIX}*"), *within.glob(f"{_NEW}*")):
        with suppress(OSError):  # another one is at it
            about = path.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not _is_held(path, about.st_mtime):
                shutil.rmtree(path)


def _is_held(folder: Path, changed: float) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - changed < _OLD_S
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return time.time() - changed < _OLD_S
    finally:
        os.close(handle)
    return folder.name.startswith(_NEW) and time.time() - changed < _OLD_S  # its owner is about to lock it


__all__ = ["PREFIX", "ReportFolder", "remove", "sweep"]
