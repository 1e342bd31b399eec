"""The loop of conversations: turns a second beside gymnasium alone, and what one slow environment costs the others.

    python benchmarks/agents.py [--runs 3] [--lakes 64] [--slow 10]

64 FrozenLakes of 4 x 4 fields with a chat template and a tokenizer; the engine is scripted and says a letter at once.
So what is measured is the loop, the environments, templates, token ids, masks and rewards: turns per second of one
core's time (the process's, so that other work on the machine does not count). Beside it, in the same run, steps per
second of the environment alone, and of gymnasium's own FrozenLake where that is installed (pip install gymnasium).

Then 32 environments in processes of their own, of which one takes 10 s for its first step: how long the others took.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from devkit.smoke.tiny import make_tokenizer
from trainer.agent.homes import Houses
from trainer.agent.loop import Conversations, Limits
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.env.frozen_lake import FrozenLake
from trainer.interfaces import Request, Sampling
from trainer.records import Prompts, Rollout, Row
from trainer.rollout.server import Answer

REACH = 5_000  # turns a second
TURNS = 10
NO_LIMIT = 10**6
SAMPLING = Sampling(8, 1.0, 1.0, -1, do_sample=True, ignore_eos=False, seed=0)
SLOW = """
import time

class Slow:
    def __init__(self, seconds): self.seconds = seconds
    def reset(self, *, seed):
        self.seed, self.at = seed, 0
        return "go", {}
    def step(self, action):
        self.at += 1
        if self.seed == 0 and self.at == 1: time.sleep(self.seconds)
        return "on", 0.0, self.at == 5, False, {}
    def close(self): ...
"""


class Scripted:
    """An engine that says a letter as soon as it is asked, and remembers when it was."""

    gathers = False
    gone = False
    lines: Sequence[object] = ()

    def __init__(self, letters: Sequence[Sequence[int]]) -> None:
        self._letters, self._dice = letters, random.Random(0)
        self._answers: list[Answer] = []
        self.asked: dict[int, float] = {}  # row -> when it last was, monotonic seconds

    def talk(self, prompts: Prompts, sampling: Sampling) -> Scripted:
        return self

    def ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            ids = self._dice.choice(self._letters)
            self._answers.append(Answer(request.row, ids, [-1.0] * len(ids)))
            self.asked[request.row] = time.monotonic()

    def drop(self, row: int) -> None: ...

    def patience(self) -> float | None:
        return 0.0 if self._answers else None

    def take(self) -> list[Answer]:
        found, self._answers = self._answers, []
        return found

    def close(self) -> None: ...


def played(houses: Houses, count: int, tokenizer: Any, engine: Scripted) -> Rollout:
    nothing = torch.zeros(count, 0, dtype=torch.int64)
    rows = tuple(Row(i, "lake", "lake", None, {"seed": i}) for i in range(count))
    prompts = Prompts(nothing, nothing, torch.arange(count), torch.zeros(count, dtype=torch.int64), rows)
    return Conversations(
        prompts,
        SAMPLING,
        engine=engine,  # type: ignore[arg-type]  # of an engine it has what conversations ask
        speech=Speech(tokenizer, [tokenizer.eos_token_id]),
        limits=Limits(TURNS, 8, NO_LIMIT, NO_LIMIT, None, None, at_once=count),
        home=houses.home,
        pad_id=0,
    ).play()


def per_second(act: Callable[[], int], runs: int) -> float:
    """What `act` counts, per second of this process's own time; the median."""
    found = []
    for _ in range(runs + 1):
        began = time.process_time()
        count = act()
        found.append(count / (time.process_time() - began))
    return statistics.median(found[1:])


def lakes_alone(count: int) -> int:
    dice, steps = random.Random(0), 0
    for seed in range(count):
        lake = FrozenLake(size=4, terse=True)
        lake.reset(seed=seed)
        for _ in range(TURNS):
            steps += 1
            if lake.step(dice.choice("LDRU"))[2]:
                break
    return steps


def gymnasium_alone(count: int) -> int:
    from gymnasium.envs.toy_text import frozen_lake  # type: ignore[import-not-found,unused-ignore]

    dice, steps = random.Random(0), 0
    for seed in range(count):
        lake = frozen_lake.FrozenLakeEnv(desc=frozen_lake.generate_random_map(4, seed=seed), is_slippery=False)
        lake.reset(seed=seed)
        for _ in range(TURNS):
            steps += 1
            if lake.step(dice.randrange(4))[2]:
                break
    return steps


def speed(lakes: int, runs: int, tokenizer: Any) -> float:
    letters = [[*tokenizer(letter)["input_ids"], tokenizer.eos_token_id] for letter in "LDRU"]
    houses = Houses(Source("frozen_lake", None, {"size": 4, "terse": True}), isolate=True)

    def turns() -> int:
        rollout = played(houses, lakes, tokenizer, Scripted(letters))
        return sum(len(episode.turns) for episode in rollout.episodes or ())

    found = per_second(turns, runs)
    print(f"{lakes} lakes: {found:,.0f} turns a second of one core; reach: {REACH:,}")
    print(f"the environment alone: {per_second(lambda: lakes_alone(lakes), runs):,.0f} steps a second, boards included")
    try:
        print(f"gymnasium's alone: {per_second(lambda: gymnasium_alone(lakes), runs):,.0f} steps a second, likewise")
    except ImportError:
        print("gymnasium is not installed: pip install gymnasium")
    return found


def stragglers(slow_s: float, tokenizer: Any, count: int = 32) -> float:
    """Seconds until all but the slow one have had their last turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slow.py"
        path.write_text(SLOW)
        houses = Houses(Source(f"{path}:Slow", SLOW, {"seconds": slow_s}), isolate=True)
        with closing(houses):
            engine = Scripted([[*tokenizer("L")["input_ids"], tokenizer.eos_token_id]])
            began = time.monotonic()
            played(houses, count, tokenizer, engine)
            whole_s = time.monotonic() - began
    others_s = max(at for row, at in engine.asked.items() if row) - began
    said = f"the others' last turn after {others_s:.2f} s, all {whole_s:.2f} s"
    print(f"{count} environments, one takes {slow_s:g} s: {said}")
    return others_s


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--lakes", type=int, default=64)
    parser.add_argument("--slow", type=float, default=10.0)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(tuple(f"Ann has {n} pens and buys {n + 3} more." for n in range(100)))
    found = speed(args.lakes, args.runs, tokenizer)
    others_s = stragglers(args.slow, tokenizer)
    return 0 if found >= REACH and others_s < args.slow else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
