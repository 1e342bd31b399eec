"""What Ray and the driver add to a step: the trainer's own loop over 64 workers that have no model and answer at once.

    python benchmarks/ray_overhead.py [--workers 64] [--hosts 2] [--rows 4] [--tokens 64] [--steps 15] [--limit 50]

The driver's side is the real one: `ppo.step`, `WorkerGroup`, `WorkerPool` and the packing of records, one Ray call per
worker and phase. The workers share `--hosts` processes, since 64 would need 64 cores: each call is still one of its
own, but the workers' side of it (unpack, answer, pack) takes turns, where a cluster does it side by side. Beside it,
measured in turn in the same run:

    floor    as many bare calls to the same actors: submit, run nothing, fetch
    no Ray   the same step with the workers as plain objects: splitting, packing, joining, advantages

Exit code 1 when the median step is above the limit, in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.address import prepare_own_cluster

prepare_own_cluster()

import ray  # noqa: E402 - it reads its environment when it is loaded
import torch  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

from trainer import ppo  # noqa: E402
from trainer.cluster import WorkerPool, start_ray  # noqa: E402
from trainer.config import load  # noqa: E402
from trainer.config.schema import Config  # noqa: E402
from trainer.group import WorkerGroup  # noqa: E402
from trainer.memory import Memory  # noqa: E402
from trainer.records import LogProbs, MiniBatch, Prompts, Rollout, Row, Scores, UpdateReport  # noqa: E402
from trainer.transport import Packed, pack, pack_each, unpack  # noqa: E402


class Pretender:
    """A rank without models: random tokens, zeros for the rest."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def generate(self, prompts: Prompts, _sampling: object) -> Rollout:
        shape = (len(prompts), self.tokens)
        return Rollout(prompts, torch.ones(shape).long(), torch.ones(shape).long(), torch.zeros(shape))

    def score(self, rollout: Rollout) -> Scores:
        return Scores(torch.rand(len(rollout)), {})

    def log_probs(self, rollout: Rollout, _passes: object) -> LogProbs:
        return LogProbs(rollout.logp_BT, rollout.logp_BT)

    def ref_log_probs(self, rollout: Rollout, _passes: object) -> torch.Tensor:
        return rollout.logp_BT

    values = ref_log_probs

    def update_actor(self, shares: Sequence[MiniBatch]) -> UpdateReport:
        return UpdateReport(tuple({"grad_norm": 1.0} for _ in shares), (), 0.1, 0)

    update_critic = update_actor

    def sync_weights(self) -> None: ...

    def call(self, phase: str, packed_args: Packed) -> Packed:
        """As `worker.PPOWorker.call`."""
        return pack((getattr(self, phase)(*unpack(packed_args)), Memory(0, 0, 0)))

    def nothing(self) -> None: ...


class SharedPool(WorkerPool):
    """The pool of a run whose ranks share a few processes."""

    def __init__(self, config: Config, hosts: int, tokens: int) -> None:
        self.hosts, self.tokens = hosts, tokens
        super().__init__(config, name="overhead")
        ray.get([actor.nothing.remote() for actor in self._actors], timeout=120)

    def _create(self, config: Config) -> None:
        remote = ray.remote(num_cpus=1)(Pretender)
        places = [PlacementGroupSchedulingStrategy(self._groups[0], index) for index in range(self.hosts)]
        processes = [remote.options(scheduling_strategy=place).remote(self.tokens) for place in places]
        self._actors = [processes[rank % self.hosts] for rank in range(self.world_size)]

    def floor(self, calls: int) -> None:
        for _ in range(calls):
            ray.get([actor.nothing.remote() for actor in self._actors], timeout=60)


class Direct:
    """The same ranks without Ray; counts the phases."""

    def __init__(self, world_size: int, tokens: int) -> None:
        self.world_size, self.rank, self.phases = world_size, Pretender(tokens), 0

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.phases += 1
        return [unpack(self.rank.call(phase, packed))[0] for packed in pack_each(args) if packed is not None]


def configuration(workers: int, rows: int, tokens: int) -> Config:
    words = {
        "data.train_batch_size": workers * rows,
        "data.max_prompt_length": tokens,
        "data.max_response_length": tokens,
        "actor_rollout_ref.actor.ppo_mini_batch_size": workers * rows,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": rows,
        "critic.ppo_micro_batch_size_per_gpu": rows,
        "algorithm.use_kl_in_reward": True,
        "trainer.n_gpus_per_node": workers,
        "trainer.device": "cpu",
    }
    return load([f"{key}={value}" for key, value in words.items()]).config


def prompts_of(count: int, tokens: int) -> Prompts:
    ones = torch.ones(count, tokens).long()
    rows = tuple(Row(i, "train.parquet", "openai/gsm8k", "72", {"split": "train", "index": i}) for i in range(count))
    return Prompts(ones, ones, torch.arange(count), torch.zeros(count).long(), rows)


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def measure(options: argparse.Namespace, config: Config) -> dict[str, list[float]]:
    """Milliseconds of each kind, one after the other in each round; the first two rounds warm up."""
    prompts = prompts_of(config.data.train_batch_size, options.tokens)
    direct = Direct(options.workers, options.tokens)
    found: dict[str, list[float]] = {"step": [], "floor": [], "no Ray": []}

    def step(calls: Any) -> None:
        ppo.step(WorkerGroup(calls, config), prompts, ppo.Progress(kl_coef=0.001), config, lambda name: nullcontext())

    step(direct)
    phases = direct.phases
    with closing(SharedPool(config, options.hosts, options.tokens)) as pool:
        for number in range(options.steps + 2):
            times = {
                "step": milliseconds(lambda: step(pool)),
                "floor": milliseconds(lambda: pool.floor(phases)),
                "no Ray": milliseconds(lambda: step(direct)),
            }
            for kind, value in times.items():
                found[kind] += [value] if number >= 2 else []
    print(f"{options.workers} workers in {options.hosts} processes, {phases} phases a step, {len(prompts)} sequences "
          f"of {options.tokens} + {options.tokens} tokens, {options.steps} steps")  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--hosts", type=int, default=2, help="processes that the workers share")
    parser.add_argument("--rows", type=int, default=4, help="sequences per worker")
    parser.add_argument("--tokens", type=int, default=64, help="of a prompt, and of a response")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--limit", type=float, default=50.0, help="milliseconds")
    options = parser.parse_args()
    config = configuration(options.workers, options.rows, options.tokens)
    start_ray(config)
    try:
        found = measure(options, config)
    finally:
        ray.shutdown()
    names = {
        "step": "step, Ray and driver",
        "floor": "floor: bare calls alone",
        "no Ray": "no Ray: driver and pretended work",
    }
    for kind, name in names.items():
        times = found[kind]
        print(f"{name:<36}median {statistics.median(times):7.1f} ms, least {min(times):7.1f}, most {max(times):7.1f}")
    ratio = statistics.median(a / (b + c) for a, b, c in zip(*found.values(), strict=True))
    print(f"step over floor + no Ray: {ratio:.2f}; limit {options.limit:g} ms")
    return 0 if statistics.median(found["step"]) <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
