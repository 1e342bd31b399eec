"""Runs one PPO step in this process, without Ray, and prints each record of it: what `docs/walkthrough.md` shows.

    python scripts/show_step.py [KEY=VALUE ...]
    python -m pdb -c "b trainer/ppo.py:300" -c c scripts/show_step.py

Driver and rank are one process here, so a breakpoint anywhere stops it. A tiny model is built for the occasion.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from devkit.smoke.problems import word_problems, write_parquet
from devkit.smoke.tiny import TinySpec, build
from trainer import ppo
from trainer.config import load, micro_batch_sizes
from trainer.data.reading import read_data
from trainer.group import WorkerGroup
from trainer.local import LocalPool
from trainer.records import Row, Totals
from trainer.spec import RunSpec

SIZES = (
    "data.train_batch_size=2",
    "data.shuffle=False",
    "data.max_prompt_length=128",
    "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "critic.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "algorithm.use_kl_in_reward=True",
    "trainer.n_gpus_per_node=1",
    "trainer.seed=10",
)
REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(c.isdigit() for c in solution_str) / max(1, len(solution_str))
"""


@contextmanager
def clock(name: str) -> Iterator[None]:
    print(f"-- {name}")
    yield


def show(title: str, record: Any, *, metrics: int = 6) -> None:
    """Every field of a record but the records inside it, which were shown before."""
    print(f"\n{title}")
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            print(f"  {field.name:<13} {list(value.shape)!s:<8} {numbers(value)}")
        elif isinstance(value, tuple) and value and isinstance(value[0], Row):
            print(f"  {field.name:<13} {len(value)} x     {value[0]!r:.120}...")
        elif isinstance(value, tuple) and value and isinstance(value[0], dict):
            for each in value:
                print(f"  {field.name:<13} {rounded(each)}")
        elif isinstance(value, dict):
            print(f"  {field.name:<13} {len(value)}: {rounded(dict(list(value.items())[:metrics]))} ...")
        elif value is not None and (not dataclasses.is_dataclass(value) or isinstance(value, Totals | ppo.Progress)):
            print(f"  {field.name:<13} {value}")


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(figure, 4) for name, figure in figures.items()}


def numbers(tensor: torch.Tensor) -> str:
    """Rows of a tensor; of a long row its ends."""
    if tensor.dim() == 1:
        return str(tensor.tolist())
    rows = [[f"{x:.2f}" if tensor.is_floating_point() else str(x) for x in row] for row in tensor.tolist()]
    short = [row if len(row) < 9 else [*row[:4], "...", *row[-3:]] for row in rows]
    return "  ".join(f"[{' '.join(row)}]" for row in short)


def main(words: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts = tuple(problem["question"] for problem in word_problems(64, 0))
        build(TinySpec(f"{folder}/model", None, texts, seed=0, max_positions=160))
        train, _ = write_parquet(Path(folder), 8, seed=0)
        own = (f"data.train_files={train}", f"actor_rollout_ref.model.path={folder}/model")
        config = load([*SIZES, *own, *words]).config
        data = read_data(config)
        pool = LocalPool()
        pool.build(RunSpec(config, REWARD, 1))
        workers = WorkerGroup(pool, config)
        prompts = next(iter(data.train))
        result = ppo.step(workers, prompts, ppo.Progress(kl_coef=0.01), config, clock)
        show("Prompts, as the loader gives them", prompts)
        show("Rollout", result.batch.experience.rollout)
        show("Experience", result.batch.experience)
        show("TrainBatch", result.batch)
        limit = micro_batch_sizes(config).actor_update
        share = workers.shares(result.batch, config.actor_rollout_ref.actor, 1, limit)[0][0]
        show(f"MiniBatch of rank 0: {len(share.batch)} rows", share)
        assert result.actor is not None
        show("UpdateReport of the actor", result.actor)
        show("StepResult", result)
        pool.close()


if __name__ == "__main__":
    main(sys.argv[1:])
