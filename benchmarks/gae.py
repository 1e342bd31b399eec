"""GAE over a long batch: ours beside a plain loop over columns.

    python benchmarks/gae.py [--runs 5]

1,024 rows of up to 4,096 tokens, lengths drawn. The loop is what one would write first; medians, and the largest
difference of the two over the largest advantage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer import ppo

REACH = 10


def plain(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    advantages, advantage, later = torch.zeros_like(values), torch.zeros(len(values)), torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        step = rewards[:, t] + gamma * later - values[:, t] + gamma * lam * advantage
        advantage = torch.where(mask[:, t].bool(), step, advantage)
        later = torch.where(mask[:, t].bool(), values[:, t], later)
        advantages[:, t] = advantage
    return advantages


def seconds_of(compute: Callable[[], object], runs: int) -> float:
    taken = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        compute()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args(words)
    dice = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(1024, 4096, generator=dice) for _ in range(2))
    mask = (torch.arange(4096) < torch.randint(1, 4097, (1024, 1), generator=dice)).long()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; reach: {REACH} times the loop")
    for gamma, lam in ((1.0, 1.0), (1.0, 0.95)):
        loop = seconds_of(partial(plain, rewards, values, mask, gamma, lam), args.runs)
        ours = seconds_of(partial(ppo.gae, rewards, values, mask, gamma, lam), args.runs)
        expected = plain(rewards.double(), values.double(), mask, gamma, lam)
        found = plain(rewards, values, mask, gamma, lam), ppo.gae(rewards, values, mask, gamma, lam)[0]
        apart = [float((x - expected).abs().max() / expected.abs().max()) for x in found]
        print(
            f"gamma {gamma}, lambda {lam}: loop {loop * 1e3:.0f} ms, ours {ours * 1e3:.0f} ms, {loop / ours:.1f} times;"
            f" from float64 the loop is {apart[0]:.1e} off, ours {apart[1]:.1e}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
