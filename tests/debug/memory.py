"""A memory limit that the kernel enforces: a control group of the test's own, version 1 or 2."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


def needs_kernel_log() -> None:
    """Skips where the kernel's log is not for this user."""
    try:
        open("/dev/kmsg").close()
    except OSError as error:
        pytest.skip(f"the kernel's log can't be read: {error}")


@contextlib.contextmanager
def limited(mebibytes: int) -> Iterator[Path]:
    """The file that a process writes its number into to be limited. Skips where nobody may make a control group."""
    version_1 = ROOT / "memory"
    parent = version_1 if version_1.is_dir() else ROOT
    group = parent / f"devkit-test-{secrets.token_hex(4)}"
    limit = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(mebibytes << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    try:
        if not version_1.is_dir():
            (group / "memory.swap.max").write_text("0")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()
