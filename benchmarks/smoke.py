"""Where the time of `devkit smoke --tiny` goes: each phase beside its floor, measured in turn on the same machine.

    python benchmarks/smoke.py [--runs 3]

Floors: for `start` and `set-up` together, the longer of importing transformers' model code in one process and
starting the two Ray nodes with nothing else going on; for the learning gate, the same steps in one process without
Ray; for the others there is none. Medians; ratios matter more than seconds on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

IMPORTS = "import torch; from transformers import Qwen2ForCausalLM; import os; os._exit(0)"
NODES = """
from devkit.smoke.cluster import SmokeCluster
cluster = SmokeCluster(2, 1)
cluster.start(None)
cluster.connect()
cluster.stop()
"""
STEPS = """
import contextlib, io, time
from benchmarks import learning_gate as gate
pool = gate.LocalPool()
with contextlib.redirect_stderr(io.StringIO()):
    gate.rise("gae", 0, pool)  # imports, the first optimizer step and all that happens once
    started = time.perf_counter()
    gate.rise("gae", 1, pool)
print(time.perf_counter() - started)
"""


def seconds_of(program: str) -> float:
    """Of a whole process; or the number that it prints, if it does."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    return float(done.stdout) if done.stdout.strip() else wall


def smoke() -> dict[str, float]:
    """Seconds of each phase of one smoke test, and of the whole command under "command"."""
    command = [sys.executable, "-m", "devkit", "smoke", "--tiny", "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - started
    return {**json.loads(done.stdout)["phases"], "command": wall}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args(argv).runs
    smokes: list[dict[str, float]] = []
    floors_of: dict[str, list[float]] = {IMPORTS: [], NODES: [], STEPS: []}
    for _ in range(runs):
        smokes.append(smoke())
        for program, times in floors_of.items():
            times.append(seconds_of(program))
    phases = {name: statistics.median(run[name] for run in smokes) for name in smokes[0]}
    imports, nodes, steps = (statistics.median(times) for times in floors_of.values())
    floors = {"start": max(imports, nodes), "set-up": 0.0, "learning gate": steps}
    print(f"medians of {runs} runs; imports alone {imports:.2f} s, two nodes alone {nodes:.2f} s")
    print(f"{'phase':<16}{'seconds':>9}{'floor':>8}{'ratio':>7}")
    both = phases["start"] + phases["set-up"]
    shown = {"start + set-up": both} | {k: v for k, v in phases.items() if k not in ("start", "set-up")}
    for name, seconds in shown.items():
        floor = floors.get("start" if name.startswith("start") else name)
        beside = f"{floor:>8.2f}{seconds / floor:>7.2f}" if floor else f"{'-':>8}{'-':>7}"
        print(f"{name:<16}{seconds:>9.2f}{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
