"""Learning beside a rival: the mean reward, step by step, of this trainer's GRPO and of TRL's `GRPOTrainer`.

    make setup VENV=.venv-trl
    .venv-trl/bin/pip install trl==1.16.0
    .venv-trl/bin/python benchmarks/learning_curve.py [--seeds 10] [--steps 50] [--updates 1] [--our-draws] [--unscaled]

Each seed is a pair of runs: the same first weights, the same prompts in the same order, the same reward and settings
(`learning_curve_parts/task.py` has them under both trainers' names), each trainer's own loop in this process on a CPU.
A mean is of a generation's rewards, before the update that follows it. "Steps behind" is the area between the two
curves over the rise of their mean: a curve that is the other one, later, is as many steps behind as it is later.

`--our-draws` gives TRL the tokens that our engine draws from TRL's weights with our run's random numbers, by TRL's
`rollout_func`. Nothing is left to chance then: where rows, rewards, advantages, losses and optimizer are the same,
both runs are one, weights and all, but for rounding, which may part them at a draw between two tokens. What neither
trainer lets one set is what it adds to a group's deviation, 1e-6 here and 1e-4 in TRL: `--unscaled` leaves the
deviation out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is said to be experimental
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WINDOW = 5  # steps of a row, and of each end of a rise
ENOUGH = 5  # seeds: by chance, the errors of two or three are often far too small
ROUNDING = 1e-3  # of a weight after 50 steps; an update at the full rate moves one by 2e-3
Curve = Sequence[float]  # mean reward of each step


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error.

    >>> str(Estimate(0.5, 0.0125))
    '0.500 ± 0.013'
    """

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Pair:
    """The two curves of a seed."""

    ours: Curve
    trl: Curve
    furthest: float  # largest difference of a weight after the last update


def estimate(values: Sequence[float]) -> Estimate:
    """
    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, error=0.5773502691896258)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(statistics.mean(values), error)


def windows(curve: Curve) -> list[float]:
    """Means of `WINDOW` steps each; the last one may be of fewer.

    >>> windows([0.0, 0.0, 0.0, 0.0, 1.0, 3.0])
    [0.2, 3.0]
    """
    return [statistics.mean(curve[start : start + WINDOW]) for start in range(0, len(curve), WINDOW)]


def rise(curve: Curve) -> float:
    """From the first window to the last."""
    return statistics.mean(curve[-WINDOW:]) - statistics.mean(curve[:WINDOW])


def steps_behind(pairs: Sequence[Pair]) -> Estimate:
    """How many steps ours is later than TRL's; negative where it is earlier. The rise is that of all curves' mean.

    >>> late, early = [0.0] * 10 + [1.0] * 10, [0.0] * 8 + [1.0] * 12
    >>> steps_behind([Pair(late, early, 0.0)] * 2)
    Estimate(mean=2.0, error=0.0)
    """
    height = statistics.mean(rise(curve) for pair in pairs for curve in (pair.ours, pair.trl))
    return estimate([(sum(pair.trl) - sum(pair.ours)) / height for pair in pairs])


def table(pairs: Sequence[Pair]) -> list[str]:
    """Both curves and their paired difference, a row per window, and the mean of all steps."""
    ours = [[*windows(pair.ours), statistics.mean(pair.ours)] for pair in pairs]
    trl = [[*windows(pair.trl), statistics.mean(pair.trl)] for pair in pairs]
    steps, last = len(pairs[0].ours), len(ours[0]) - 1
    lines = ["| steps | ours | TRL | ours - TRL |", "|---|---|---|---|"]
    for row in range(last + 1):
        name = "all" if row == last else f"{row * WINDOW + 1} to {min(steps, (row + 1) * WINDOW)}"
        both = [(a[row], b[row]) for a, b in zip(ours, trl, strict=True)]
        cells = ([a for a, _ in both], [b for _, b in both], [a - b for a, b in both])
        lines.append(f"| {name} | " + " | ".join(str(estimate(cell)) for cell in cells) + " |")
    return lines


def verdict(pairs: Sequence[Pair]) -> str:
    """In a sentence; two standard errors decide, of seeds enough to estimate one.

    >>> verdict([Pair([0.0] * 5 + [1.0] * 6, [0.0] * 6 + [1.0] * 5, 0.0)] * 5)
    'Ours is 1.00 ± 0.00 steps ahead of TRL in 11.'
    """
    behind = steps_behind(pairs)
    where = "behind" if behind.mean >= 0 else "ahead of"
    told = "" if abs(behind.mean) > 2 * behind.error else ", which is within two standard errors"
    told = told if len(pairs) >= ENOUGH else f"; {len(pairs)} seeds are too few to judge by"
    return f"Ours is {abs(behind.mean):.2f} ± {behind.error:.2f} steps {where} TRL in {len(pairs[0].ours)}{told}."


def together(pairs: Sequence[Pair]) -> str:
    """How many pairs are one run. Rounding alone parts the others, from a draw between two tokens on.

    >>> together([Pair([], [], 3e-6), Pair([], [], 0.02)])
    'In 1 of 2 seeds both runs are one: no weight differs by more than 3.0e-06 after the last update.'
    """
    same = [pair.furthest for pair in pairs if pair.furthest < ROUNDING]
    most = f": no weight differs by more than {max(same):.1e} after the last update" if same else ""
    return f"In {len(same)} of {len(pairs)} seeds both runs are one{most}."


def measure(options: argparse.Namespace) -> list[Pair]:
    """A pair of runs per seed, each said as it is done."""
    from benchmarks.learning_curve_parts import runs, task
    from trainer.local import LocalPool

    settings = task.Settings(steps=options.steps, updates=options.updates, scaled=not options.unscaled)
    print(", ".join(f"{package} {version(package)}" for package in ("trl", "transformers", "torch")))
    print(settings, flush=True)
    pool, pairs = LocalPool(), []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory() as name:
            given, started = task.make(Path(name), seed, settings), time.monotonic()
            ours = runs.ours(given, pool)
            between = time.monotonic()
            trl = runs.trl(given, our_draws=options.our_draws)
            pairs.append(Pair(ours.rewards, trl.rewards, runs.furthest(ours, trl)))
        seconds = f"{between - started:.0f} s and {time.monotonic() - between:.0f} s"
        means = f"{statistics.mean(ours.rewards):.3f} and {statistics.mean(trl.rewards):.3f}"
        apart = f", weights {pairs[-1].furthest:.1e} apart" if options.our_draws else ""
        print(f"seed {seed}: mean reward {means}, {seconds}{apart}", flush=True)
    pool.close()
    return pairs


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--updates", type=int, default=1, choices=(1, 2, 4), help="optimizer steps per generation")
    parser.add_argument("--our-draws", action="store_true", help="TRL trains on tokens that our engine draws")
    parser.add_argument("--unscaled", action="store_true", help="advantages are not divided by their group's deviation")
    options = parser.parse_args(words)
    if options.seeds < 2 or options.steps < WINDOW + 1:
        parser.error(f"a standard error takes two seeds, and a rise more than {WINDOW} steps")
    return options


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    if importlib.util.find_spec("trl") is None:
        print("error: TRL is not installed\nhint: it goes into an environment of its own: see --help", file=sys.stderr)
        return 2
    pairs = measure(options)
    print("\n" + "\n".join(table(pairs)))
    print("\n" + verdict(pairs))
    if options.our_draws:
        print(together(pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
