"""What the debugger costs, each figure beside its floor or its rival in the same run.

    python benchmarks/debugger.py [--runs 5] [--only NAME]

Without Ray: a breakpoint that is armed but not hit, and a conditional one that is never true on a hot line, beside the
plain program and beside debugpy; a snapshot; a hub with 1,000 agents. On a Ray of its own, two nodes and eight workers:
the start of a worker, arming a running job, listing a stop, attaching to all ranks, the stacks of all ranks. Medians;
on a shared machine the ratios matter more than the times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from benchmarks.debugger_parts import cluster, local
from benchmarks.debugger_parts.rows import Row, table

ROWS: dict[str, Callable[[int], list[Row]]] = {
    "lines": local.lines,
    "snapshot": local.snapshot,
    "hub": local.hub,
    "ray": cluster.all_rows,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=tuple(ROWS))
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for name, measure in ROWS.items():
        if options.only in (None, name):
            rows += measure(options.runs)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
