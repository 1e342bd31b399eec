"""Standard output and standard error that cannot be written: a full disk, a closed pipe, a closed descriptor.

What happens there is an error of its own: an `OSError` could be about any file, and what catches those would go on. It
is raised once for each stream; what is written there afterwards is lost, and nothing complains of it when Python ends.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from devkit.errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def guard() -> None:
    """Makes both raise OutputError. A stream that somebody has put in their place is left as it is."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before this process began
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(_Closed()), encoding="utf-8", write_through=True))
        elif type(stream) is io.TextIOWrapper and type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:
            setattr(sys, name, _guarded(stream, descriptor))


def flush() -> None:
    """Raises OutputError."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


class _Raw(io.FileIO):
    lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        # Nothing is no news: Typer tries what a stream is by writing that, and would swallow the one error.
        if self.lost or not memoryview(data).nbytes:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.lost = True
            raise OutputError(error) from error


class _Closed(io.RawIOBase):
    lost = False

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        if not self.lost and memoryview(data).nbytes:
            self.lost = True
            raise OutputError(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        return memoryview(data).nbytes


def _guarded(stream: TextIO, descriptor: int) -> TextIO:
    assert isinstance(stream, io.TextIOWrapper)
    stream.flush()
    raw = _Raw(descriptor, "w", closefd=False)
    unbuffered = type(stream.buffer) is io.FileIO  # PYTHONUNBUFFERED, python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # as Python itself does
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
