"""python -m tests.soak: the rounds one after another until the time is up, and figures. Exit code 1 if one is not 0.

Everything that is started wears a mark; at the end nothing that wears it may live, and no file may be left.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import signal
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from datetime import date

import ray
from rich.console import Console
from rich.table import Table

from tests.debug.conftest import short_folder
from tests.soak.rounds import ROUNDS
from tests.soak.watch import MARK, Files, left_processes, own_places
from tests.soak.world import Tally, World, world


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long; each round is done once at least")
    parser.add_argument("--only", nargs="*", choices=ROUNDS, default=list(ROUNDS), help="these rounds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    mark = secrets.token_hex(4)
    os.environ[MARK] = mark
    before = Files.now()
    begun, tallies = time.monotonic(), defaultdict(list)
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        os.environ.update(own_places(folder))
        shared = stack.enter_context(world(folder))
        while not tallies or time.monotonic() - begun < options.seconds:
            for name in options.only:
                if time.monotonic() - begun < options.seconds or not tallies[name]:
                    tallies[name].append(_one(name, shared))
    left = [
        *(f"process {each}" for each in left_processes(mark)),
        *(f"file {each}" for each in Files.now().left(before, mark)),
    ]
    _tell(tallies, left, time.monotonic() - begun)
    return 1 if left or any(each.wrong for found in tallies.values() for each in found) else 0


def _one(name: str, shared: World) -> Tally:
    begun = time.monotonic()
    try:
        tally = ROUNDS[name](shared)
    except Exception as error:  # noqa: BLE001 - a round that can't be done is a finding, and the others go on
        tally = Tally(1, [f"{type(error).__name__}: {str(error)[:500]}"])
    word = "; ".join(tally.wrong) or "fine"
    print(
        f"{time.strftime('%H:%M:%S')} {name}: {tally.tries} looks in {time.monotonic() - begun:.0f} s: {word}",
        file=sys.stderr,
    )
    return tally


def _tell(tallies: dict[str, list[Tally]], left: list[str], seconds: float) -> None:
    table = Table("round", "times", "looks", "wrong", "measured in the last", box=None, pad_edge=False)
    for name, found in tallies.items():
        looks, wrong = sum(each.tries for each in found), sum(len(each.wrong) for each in found)
        table.add_row(name, str(len(found)), str(looks), str(wrong), ", ".join(found[-1].notes))
    out = Console(width=160)
    python = platform.python_version()
    out.print(
        f"{date.today()}, {seconds / 60:.0f} minutes, {os.cpu_count()} cores, Python {python}, Ray {ray.__version__}"
    )
    out.print(table)
    out.print(f"left behind: {len(left)}")
    for each in left:
        out.print(f"  {each}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
