"""Where a command is to write: tried before its work begins, and refused at once where it can't be written.

Trying is the only check that is right: permissions, a read-only or a full disk, a name that is too long. What was made
for the trial is removed again, and what was there is left as it is.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from devkit.errors import UsageError

if TYPE_CHECKING:
    from typer.models import OptionInfo

STDOUT = "-"


def file(*names: str, help: str, parents: bool = False) -> OptionInfo:  # noqa: A002 - Typer's own word
    """The option of a file that is written; with `parents`, the folders above it are made."""
    option: OptionInfo = typer.Option(*names, metavar="FILE", help=help, callback=_tried(_parents(parents)))
    return option


def folder(*names: str, help: str) -> OptionInfo:  # noqa: A002 - Typer's own word
    """The option of a folder that is filled, and made where it isn't there."""
    option: OptionInfo = typer.Option(*names, metavar="DIR", help=help, callback=_tried(try_folder))
    return option


def _parents(made: bool) -> Callable[[Path], None]:
    return lambda path: try_file(path, parents=made)


def _tried(attempt: Callable[[Path], None]) -> Callable[[typer.CallbackParam, Any], Any]:
    def check(param: typer.CallbackParam, value: Any) -> Any:
        if value and str(value) != STDOUT:
            refuse(param.opts[0], Path(value), attempt)
        return value

    return check


def refuse(option: str, path: Path, attempt: Callable[[Path], None]) -> None:
    """Raises UsageError where the attempt fails."""
    try:
        attempt(path)
    except OSError as error:
        what = error.strerror or str(error)
        raise UsageError(
            f"{option} {path} cannot be written: {what}", hint=f"choose another place with {option}"
        ) from None


def try_file(path: Path, *, parents: bool = False) -> None:
    """Raises OSError if no file can be written there."""
    with _made(path.parent if parents else None):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            _try_new(path)
            return
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return  # whoever reads it may come later
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb", buffering=0) as there:
            if stat.S_ISCHR(mode):
                os.write(there.fileno(), b"")  # a device says by this that it takes nothing


def try_folder(path: Path) -> None:
    """Raises OSError if there can't be a folder with files in it."""
    with _made(path), tempfile.TemporaryFile(dir=path, buffering=0) as trial:
        trial.write(b"\n")


def _try_new(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"\n")  # a full disk makes files, and fills none
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


@contextmanager
def _made(path: Path | None) -> Iterator[None]:
    """The folder and those above it, for as long as this lasts where they were not there before."""
    missing: list[Path] = []
    while path is not None and not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    made: list[Path] = []
    try:
        for each in reversed(missing):
            each.mkdir()
            made.append(each)
        yield
    finally:
        for each in reversed(made):
            with suppress(OSError):
                each.rmdir()
