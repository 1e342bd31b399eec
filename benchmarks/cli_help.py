"""How long `devkit --help` takes beside a bare Typer program of the same shape.

    python benchmarks/cli_help.py [--runs 15] [--limit 1.2]

The two run in turn and the ratio is taken pair by pair, because the speed of a shared machine drifts. Exit code 1 when
the median ratio is above the limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

BARE = '''
from typing import Annotated
import typer

app = typer.Typer(name="bare", help="Say hello or goodbye.")

@app.callback()
def bare(
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None: ...

def hello(
    name: Annotated[str, typer.Argument(help="Whom to greet.")] = "you",
    loudly: Annotated[bool, typer.Option("--loudly", help="So that all hear it.")] = False,
) -> None:
    """Say hello, in one of several ways."""

for number in range(16):  # as many as devkit has
    app.command(name=f"hello-{number}")(hello)

app()
'''


@dataclass(frozen=True)
class Times:
    """Seconds of one process."""

    wall: float
    cpu: float  # user and system: what a busy neighbour on the machine changes less


def run_once(command: list[str]) -> Times:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"})
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Times(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def in_turn(commands: list[list[str]], runs: int) -> list[list[Times]]:
    """`runs` rounds of all commands, after one that isn't counted."""
    rounds = [[run_once(command) for command in commands] for _ in range(runs + 1)][1:]
    return [list(times) for times in zip(*rounds, strict=True)]


def measure(runs: int) -> tuple[list[Times], list[Times]]:
    """Times of `devkit --help`, and of the bare program."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(BARE, encoding="utf-8")
        ours, theirs = in_turn(
            [[sys.executable, "-m", "devkit", "--help"], [sys.executable, str(bare), "--help"]], runs
        )
    return ours, theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--limit", type=float, default=1.2)
    options = parser.parse_args()
    ours, theirs = measure(options.runs)
    for name, times in (("devkit --help", ours), ("bare Typer --help", theirs)):
        wall, cpu = (statistics.median(getattr(t, kind) for t in times) for kind in ("wall", "cpu"))
        print(f"{name:<18} {wall * 1000:6.0f} ms wall {cpu * 1000:6.0f} ms cpu")
    ratio = statistics.median(a.wall / b.wall for a, b in zip(ours, theirs, strict=True))
    print(f"ratio {ratio:.2f}, limit {options.limit} (median of {options.runs} pairs, wall)")
    return int(ratio > options.limit)


if __name__ == "__main__":
    sys.exit(main())
