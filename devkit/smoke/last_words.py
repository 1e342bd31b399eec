"""What workers of the smoke test's own Ray last wrote on stderr: a handler of signals says there why one died."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LINES = 80  # of each worker


def last_words(ray: Path) -> str:
    """Of every worker that wrote anything, below the temp folder of a Ray: a headline and its last lines; or nothing.

    Ray's folder is deleted with it, and a smoke test's Ray has nobody who forwards such lines.
    """
    found = []
    for path in sorted(ray.glob("session_2*/logs/worker-*.err")):
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
            if lines:
                found.append("\n".join([f"--- {path.name}", *lines]) + "\n")
    return "".join(found)


__all__ = ["last_words"]
