"""The ranks of `test_world_sizes.py` and `test_megatron.py`: `rank_main.py FOLDER` runs the jobs of FOLDER/jobs.json.

A rank updates on made-up experience and leaves what it found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it
import torch.distributed as dist
import transformers.models.qwen2.modeling_qwen2  # noqa: F401

from trainer.config import load, micro_batch_sizes
from trainer.errors import TrainerError
from trainer.group import WorkerGroup
from trainer.records import Experience, Prompts, Rollout, Row, TrainBatch
from trainer.roles import Roles
from trainer.spec import RunSpec
from trainer.teams import ROLES, Seat

ROWS, PROMPT, RESPONSE = 8, 7, 6
LIMIT_S = 60


def made_up(vocabulary: int, seed: int = 5) -> TrainBatch:
    """Eight sequences of different lengths, the same on every rank."""
    dice = torch.Generator().manual_seed(seed)

    def ids(width: int) -> torch.Tensor:
        return torch.randint(3, vocabulary, (ROWS, width), generator=dice)

    def reals() -> torch.Tensor:
        return torch.randn(ROWS, RESPONSE, generator=dice) * mask

    left, right = (torch.randint(1, width + 1, (ROWS, 1), generator=dice) for width in (PROMPT, RESPONSE))
    prompt_mask = (torch.arange(PROMPT).flip(0) < left).long()
    mask = (torch.arange(RESPONSE) < right).long()
    rows = tuple(Row(i, "made up", "none", "") for i in range(ROWS))
    prompts = Prompts(
        ids(PROMPT) * prompt_mask, prompt_mask, torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.int64), rows
    )
    old = -6.0 * mask + 0.1 * reals()
    rollout = Rollout(prompts, ids(RESPONSE) * mask, mask, old)
    return TrainBatch(Experience(rollout, reals(), old, old + 0.1 * reals(), reals()), reals(), reals(), reals())


def overflowing(batch: TrainBatch) -> TrainBatch:
    """With a last row, which is the last rank's, whose gradient fp16 does not hold."""
    advantages, returns = batch.advantages_BT.clone(), batch.returns_BT.clone()
    advantages[-1, 0] = returns[-1, 0] = 1e12
    return replace(batch, advantages_BT=advantages, returns_BT=returns)


def with_gaps(batch: TrainBatch) -> TrainBatch:
    """As of conversations: every third response token is an observation, and no row ends on one."""
    seen, rollout = batch.experience, batch.experience.rollout
    column_T = torch.arange(RESPONSE)
    last_B1 = rollout.mask_BT.sum(-1, keepdim=True) - 1
    mask = rollout.mask_BT * ((column_T % 3 != 1) | (column_T == last_B1)).long()
    gapped = replace(rollout, mask_BT=mask, logp_BT=rollout.logp_BT * mask, present_BT=rollout.mask_BT)
    return replace(batch, experience=replace(seen, rollout=gapped))


class ThisRank:
    """`Calls` that deal the whole batch and run this rank's share alone; then all ranks have all answers."""

    def __init__(self, roles: Any, rank: int, world: int) -> None:
        self.roles, self.rank, self.world_size = roles, rank, world
        self.own: Any = None  # this rank's last answer

    def all(self, phase: str, args: Any) -> list[Any]:
        self.own = getattr(self.roles, phase)(*args[self.rank])
        answers: list[Any] = [None] * self.world_size
        dist.all_gather_object(answers, self.own)
        return answers


def work(job: dict[str, Any], rank: int) -> dict[str, Any]:
    config = load(job["words"]).config
    world = job["world"]
    roles = Roles(RunSpec(config, None, 10), Seat(rank, rank, world, frozenset(ROLES)))
    calls = ThisRank(roles, rank, world)
    group = WorkerGroup(calls, config)
    batch = made_up(roles.actor.module.config.vocab_size)
    batch = with_gaps(batch) if "gaps" in job else batch
    rollout, limit = batch.experience.rollout, micro_batch_sizes(config).actor_update
    mini_batches = group.shares(batch, config.actor_rollout_ref.actor, 1, limit)[
        group.grid_of("actor").place(rank).data
    ]
    found: dict[str, Any] = {
        **{name: {"actor": [], "critic": []} for name in ("steps", "lr", "untrained", "skipped", "loss_scale")},
        "whole": {"actor": [], "critic": []},
        "rows": [len(share.batch) for share in mini_batches],
        "passes": [len(share.passes) for share in mini_batches],
    }

    def update(step: int) -> None:
        updates: dict[str, Callable[..., Any]] = {"critic": group.update_critic, "actor": group.update_actor}
        for role, call in updates.items():
            whole = call(overflowing(batch) if step == job.get("overflow") else batch, step).now()
            report = calls.own
            found["whole"][role] += whole.steps
            found["steps"][role] += report.steps
            found["skipped"][role].append(report.skipped)
            found["loss_scale"][role].append(report.loss_scale)
            found["lr"][role].append(report.lr)
            found["untrained"][role] = list(report.untrained)

    if "forward" in job:
        found["forward"] = {"log_probs": group.log_probs(rollout).now().logp_BT.tolist()}
        found["forward"]["values"] = group.values(rollout).now().tolist()
    if "load" in job:
        roles.load(job["load"])
        found["loaded"] = {role: roles.checksums(role) for role in ("actor", "critic")}
    else:
        update(1)
        update(2)
        if "save" in job:
            os.makedirs(job["save"], exist_ok=True)
            roles.save(job["save"])
            found["saved"] = {role: roles.checksums(role) for role in ("actor", "critic")}
    if "capsule" in job:
        held = roles.begin_capsule(job["capsule"])
        update(3)
        found["moved"] = roles.moved_since_capsule(job["capsule"])
        found["held"] = {role: [state.steps, state.updates, state.checksums] for role, state in held.models.items()}
    else:
        update(3)
    roles.sync_weights()
    found["checksums"] = {role: roles.checksums(role) for role in ("actor", "critic")}
    found["engine"] = roles.checksums("engine")
    models = {"actor": roles.actor, "critic": roles.critic}
    found["updates"] = {role: model.updates for role, model in models.items() if model is not None}
    found["norms"] = {
        role: {name: [float(t.norm()), float(t.sum())] for name, t in model.full_tensors()}
        for role, model in models.items()
        if model is not None
    }
    return found


def rank_main(folder: Path, job: dict[str, Any], rank: int) -> None:
    store = dist.FileStore(str(folder / "store"), job["world"])
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("cpu:gloo", store=store, rank=rank, world_size=job["world"], timeout=limit)
    try:
        found = work(job, rank)
    except TrainerError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def fork(folder: Path, job: dict[str, Any], rank: int) -> int:
    """A rank as a child that has everything imported already; its pid."""
    if pid := os.fork():
        return pid
    signal.alarm(LIMIT_S)  # ends it, should the others leave it waiting
    status = 1
    try:
        rank_main(folder, job, rank)
        status = 0
    except BaseException:  # noqa: BLE001 - the parent sees the status, the log the trace
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(folder: Path) -> int:
    """The jobs one after the other, each on processes of its own; the exit code."""
    failed, jobs = 0, json.loads((folder / "jobs.json").read_text())
    if any(word.endswith("strategy=megatron") for job in jobs.values() for word in job["words"]):
        from trainer.learner.megatron import checkpoint, network  # noqa: F401 - once, before the ranks are forked
    for name, job in jobs.items():
        (folder / name).mkdir()
        for pid in [fork(folder / name, job, rank) for rank in range(job["world"])]:
            failed += os.waitpid(pid, 0)[1] != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
