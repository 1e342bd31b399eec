"""Whether a tiny model learns to search: it, and a twin that may not, over several seeds.

    python benchmarks/search_learning.py [--seeds 1 2 3] [--picture FILE.svg] [--kept DIR]

Each run is `python -m trainer.demo.search`, the twin's with `agent.max_turns=1`, one after another (one and a half
to two minutes each on two cores). The answers stand in the corpus alone, so the twin can only guess.
`--kept`: where the runs' folders stay; those that are there already are not run again. Exit code 1 if a model that may
search does not end above its twin.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer.curve import Point, svg_curves
from trainer.demo.search import VALIDATION
from trainer.tracking import METRICS_FILE, SCORE

MAY, NOT = "may search", "may not search"
TWIN = {MAY: (), NOT: ("agent.max_turns=1",)}
LAST = 10  # steps whose mean is the end of a curve


@dataclass(frozen=True)
class Run:
    """Shares of right answers by step: of what it trained on, and of names that it was never asked."""

    seed: int
    trained: tuple[Point, ...]
    unseen: tuple[Point, ...]

    @property
    def end(self) -> float:
        return statistics.mean(value for _, value in self.trained[-LAST:])


def run(folder: Path, seed: int, words: Sequence[str]) -> Run:
    if not (folder / METRICS_FILE).exists():
        command = [sys.executable, "-m", "trainer.demo.search", "--output", str(folder), *words]
        subprocess.run([*command, f"data.seed={seed}", f"trainer.seed={seed}"], check=True)
    return read(folder, seed)


def read(folder: Path, seed: int) -> Run:
    """What a run has written. Raises OSError, ValueError."""
    metrics = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    trained, unseen = (
        tuple((float(step["step"]), float(step[name])) for step in metrics if name in step)
        for name in (SCORE, VALIDATION)
    )
    return Run(seed, trained, unseen)


def table(runs: dict[str, list[Run]]) -> str:
    """Markdown.

    >>> one = Run(1, ((1.0, 0.25), (2.0, 0.75)), ((0.0, 0.1), (2.0, 0.9)))
    >>> print(table({"may search": [one]}))
    | seed | | before | after | the last ten steps of training |
    |---|---|---|---|---|
    | 1 | may search | 10 % | 90 % | 50 % |
    """
    lines = ["| seed | | before | after | the last ten steps of training |", "|---|---|---|---|---|"]
    for name, group in runs.items():
        lines += [
            f"| {each.seed} | {name} | {each.unseen[0][1]:.0%} | {each.unseen[-1][1]:.0%} | {each.end:.0%} |".replace(
                "%", " %"
            )
            for each in group
        ]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="the curves of all of them")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="the runs' folders")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        kept = asked.kept or Path(temporary)
        runs = {
            name: [run(kept / f"{name.split()[1]}-{seed}", seed, more) for seed in asked.seeds]
            for name, more in TWIN.items()
        }
    print(table(runs))
    if asked.picture:
        title = "share of right answers in training, by step"
        curves = {name: [each.trained for each in group] for name, group in runs.items()}
        asked.picture.write_text(svg_curves(curves, title), encoding="utf-8")
    return int(any(may.end <= twin.end for may, twin in zip(runs[MAY], runs[NOT], strict=True)))


if __name__ == "__main__":
    sys.exit(main())
