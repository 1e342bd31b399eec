"""What the benchmarks on virtual hosts share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tests.hosts import hosts


def asked(doc: str | None, argv: Sequence[str] | None) -> int | None:
    """How many runs the command line asks for; None, and why, where this machine can have no virtual hosts."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs: int = parser.parse_args(argv).runs
    if problem := hosts.problem():
        print(f"skipped: {problem}")
        return None
    return runs
