"""An update computed once more (`devkit/smoke/plain_update.py`): it agrees with the trainer's, and mistakes show."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from devkit.smoke import plain_update
from devkit.smoke.checks import updates
from devkit.smoke.checks.outcome import Outcome
from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from trainer import ppo
from trainer.config import load
from trainer.config.schema import Config, FsdpConfig
from trainer.learner import checkpoint, fsdp
from trainer.learner import models as loading
from trainer.learner.forward import ForwardOptions
from trainer.learner.lora import adapters_of
from trainer.learner.models import Source, sharded
from trainer.records import MiniBatch, TrainBatch
from trainer.rows import take

ROOT = Path(ppo.__file__).parents[1]
TOTAL_STEPS = 10
A, C, R = "actor_rollout_ref.actor", "critic", "actor_rollout_ref.rollout"
ALL_TERMS = (f"{A}.entropy_coeff=0.05", f"{A}.use_kl_loss=True", f"{A}.kl_loss_coef=0.1", f"{R}.temperature=0.8")
MODELS = ("actor_rollout_ref.model", "critic.model")
ADAPTERS = [f"{section}.{word}" for section in MODELS for word in ("lora_rank=2", "lora_alpha=3")]
SETTINGS = {
    "all terms": ALL_TERMS,
    "nothing more": (f"{A}.clip_ratio_c=null",),
    "clips where ratios would be": (f"{A}.clip_ratio_low=0.1", f"{A}.clip_ratio_high=0.1", f"{A}.clip_ratio_c=4.0"),
    "two clips, four epochs": (*ALL_TERMS, f"{A}.clip_ratio_high=0.4", f"{A}.ppo_epochs=3", f"{C}.ppo_epochs=3"),
    "other modes": (*ALL_TERMS, f"{A}.loss_agg_mode=seq-mean-token-mean", f"{A}.kl_loss_type=mse"),
    "sums": (*ALL_TERMS, f"{A}.loss_agg_mode=seq-mean-token-sum-norm", f"{A}.kl_loss_type=low_var_kl+"),
    "sequence sums": (*ALL_TERMS, f"{A}.loss_agg_mode=seq-mean-token-sum", f"{A}.kl_loss_type=abs"),
    "packed": (*ALL_TERMS, "actor_rollout_ref.model.use_remove_padding=True"),
    "adapters": (*ALL_TERMS, *ADAPTERS),
    "adapters of some modules, three epochs": (
        *(*ALL_TERMS, *ADAPTERS, f"{A}.ppo_epochs=3", f"{C}.ppo_epochs=3"),
        *(f"{section}.target_modules=[q_proj,down_proj]" for section in MODELS),
    ),
    "a schedule": (
        *(f"{role}.optim.{setting}" for role in (A, C) for setting in ("lr_warmup_steps=5", "weight_decay=0.1")),
        *(f"{role}.optim.{setting}" for role in (A, C) for setting in ("lr_scheduler_type=cosine", "lr=1e-3")),
    ),
}
ON_DISK = ("all terms", "adapters")  # what they save is on disk; the others' has the same names, and stays in memory
Run = Callable[..., list[Outcome]]


@lru_cache
def configured(words: tuple[str, ...]) -> Config:
    return load(words).config


@pytest.fixture
def run(models: Path, mesh: Any, words: Words, tmp_path: Path) -> Run:
    """The three findings on an update by these modules, in place of the trainer's own."""

    def findings(role: str, changes: Sequence[str], algorithm: Any = ppo, learner: Any = fsdp) -> list[Outcome]:
        config = configured(tuple(words(*changes)))
        model = trained(config, role, models / "qwen2", mesh, learner)
        loss = partial(*_loss(algorithm, role, model, config))
        batch = train_batch(8)
        for _ in range(2):  # the optimizer has a past
            with model.training():
                algorithm.update(model, shares(batch, config, algorithm), loss)
        rollout = batch.experience.rollout
        with torch.no_grad():
            if role == "actor":
                logp, values = model.log_probs(rollout, entropy=False).logp_BT, None
            else:
                logp, values = rollout.logp_BT, model.values(rollout)
        made = plain_update.made_up(batch, logp, values, config, 1)
        plain_update.write(made, logp if values is None else values, tmp_path, role)
        checkpoint.save(model, tmp_path / "before" / role)
        epochs = config.actor_rollout_ref.actor.ppo_epochs
        with model.training():
            report = algorithm.update(model, shares(made, config, algorithm) * epochs, loss)
        checkpoint.save(model, tmp_path / "after" / role)
        settings = plain_update.settings_of(config, role, TOTAL_STEPS)
        expected = plain_update.expected_of(tmp_path, str(models / "qwen2"), settings)
        return [
            check(role, report, expected)
            for check in (
                updates.forward_as_computed,
                updates.losses_as_computed,
                updates.gradient_as_computed,
                updates.moved_as_computed,
            )
        ]

    return findings


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints stay there: to write and read two takes longer than the updates do."""
    kept: dict[Path, dict[str, torch.Tensor]] = {}

    def save(state: dict[str, Any], checkpoint_id: Path) -> None:
        flat, _ = flatten_state_dict(state)
        whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in flat.items()}
        kept[checkpoint_id] = {name: x.detach().clone() for name, x in whole.items() if isinstance(x, torch.Tensor)}

    monkeypatch.setattr(checkpoint, "dcp", SimpleNamespace(save=save, api=dcp.api))
    monkeypatch.setattr(checkpoint, "read_tensors", lambda folder, _prefix="": kept[folder])


def _loss(algorithm: Any, role: str, model: Any, config: Config) -> tuple[Any, ...]:
    if role == "actor":
        return partial(algorithm.actor_loss, config=config.actor_rollout_ref.actor), model
    return partial(algorithm.critic_loss, config=config.critic), model


def trained(config: Config, role: str, folder: Path, mesh: Any, learner: Any) -> Any:
    kind = "causal_lm" if role == "actor" else "value"
    own: Any = config.actor_rollout_ref.actor if role == "actor" else config.critic
    adapters = adapters_of(config.actor_rollout_ref.model if role == "actor" else config.critic.model, 1)
    source, memory = Source(str(folder), False, 1), FsdpConfig(dtype="fp32")
    module = sharded(kind, source, memory, mesh, checkpointing=False, adapters=adapters)
    if role == "actor":  # an untrained model's entropy is at its largest, and has no gradient
        module.lm_head.weight.data.mul_(10)
    return learner.Trained(
        module,
        torch.device("cpu"),
        own.optim,
        grad_clip=own.grad_clip,
        total_steps=TOTAL_STEPS,
        temperature=config.actor_rollout_ref.rollout.temperature,
        options=ForwardOptions(config.actor_rollout_ref.model.use_remove_padding),
    )


def shares(batch: TrainBatch, config: Config, algorithm: Any) -> list[MiniBatch]:
    totals = algorithm.totals_of(batch.experience.rollout.mask_BT, config.data.max_response_length)
    return [MiniBatch(take(batch, slice(0, 8)), totals, torch.arange(8).split(3))]


@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize("name", SETTINGS)
def test_they_agree(run: Run, role: str, name: str, request: pytest.FixtureRequest) -> None:
    if name not in ON_DISK:
        request.getfixturevalue("in_memory")
    for found in run(role, SETTINGS[name]):
        assert found.ok is True, found.detail


PPO, FSDP, SCHEDULE = "trainer/ppo.py", "trainer/learner/fsdp.py", "trainer/learner/schedule.py"
FORWARD, LOSSES, GRADIENT, MOVED = range(4)
# role, the finding that must be the first to fail, the file, and what is written in place of what
MISTAKES = {
    "KL loss with the wrong sign": (
        "actor",
        GRADIENT,
        PPO,
        "loss = loss + config.kl_loss_coef * kl",
        "loss = loss - config.kl_loss_coef * kl",
    ),
    "entropy with the wrong sign": (
        "actor",
        GRADIENT,
        PPO,
        "loss = loss - config.entropy_coeff",
        "loss = loss + config.entropy_coeff",
    ),
    "no entropy bonus": ("actor", GRADIENT, PPO, "loss = loss - config.entropy_coeff", "loss = loss - 0.0"),
    "clipped on the optimistic side": (
        "actor",
        LOSSES,
        PPO,
        "loss = torch.maximum(plain, clipped)",
        "loss = torch.minimum(plain, clipped)",
    ),
    "not clipped": ("actor", LOSSES, PPO, "loss = torch.maximum(plain, clipped)", "loss = plain"),
    "the clips swapped": (
        "actor",
        LOSSES,
        PPO,
        "ratio.clamp(1 - clip_low, 1 + clip_high)",
        "ratio.clamp(1 - clip_high, 1 + clip_low)",
    ),
    "a ratio that is always one": (
        "actor",
        LOSSES,
        PPO,
        "log_ratio = (logp - old_logp)",
        "log_ratio = (logp - logp.detach())",
    ),
    "dual clip on good actions": (
        "actor",
        LOSSES,
        PPO,
        "floored = (advantages < 0) & (loss > floor)",
        "floored = (advantages > 0) & (loss < floor * -1)",
    ),
    "no dual clip": (
        "actor",
        LOSSES,
        PPO,
        "loss = torch.where(floored, floor, loss)",
        "pass",
    ),
    "the KL to the old policy": (
        "actor",
        LOSSES,
        PPO,
        "kl_penalty(new.logp_BT, seen.ref_logp_BT",
        "kl_penalty(new.logp_BT, seen.old_logp_BT",
    ),
    "a whole squared error": (
        "critic",
        LOSSES,
        PPO,
        "loss = 0.5 * aggregate(torch.maximum(error",
        "loss = 1.0 * aggregate(torch.maximum(error",
    ),
    "values not clipped": ("critic", LOSSES, PPO, "torch.maximum(error, clipped_error), mask", "error, mask"),
    "values clipped on the optimistic side": (
        "critic",
        LOSSES,
        PPO,
        "torch.maximum(error, clipped_error), mask",
        "torch.minimum(error, clipped_error), mask",
    ),
    "the betas swapped": (
        "actor",
        MOVED,
        FSDP,
        "betas=(optim.betas[0], optim.betas[1])",
        "betas=(optim.betas[1], optim.betas[0])",
    ),
    "a hundred times the decay": (
        "actor",
        MOVED,
        FSDP,
        "weight_decay=optim.weight_decay",
        "weight_decay=optim.weight_decay * 100",
    ),
    "no decay": ("critic", MOVED, FSDP, "weight_decay=optim.weight_decay", "weight_decay=0.0"),
    "ten times the rate": (
        "actor",
        MOVED,
        FSDP,
        "Scheduled.__init__(self, optimizer, optim, total_steps)",
        "Scheduled.__init__(self, optimizer, __import__('dataclasses').replace(optim, lr=optim.lr * 10), total_steps)",
    ),
    "the gradient not cut": (
        "critic",
        MOVED,
        FSDP,
        "Limits(self.grad_clip, self._scale)",
        "Limits(1e9, self._scale)",
    ),
    "values of the token before": (
        "critic",
        FORWARD,
        FSDP,
        "layout.spread(self.forward.values(layout))",
        "layout.spread(self.forward.values(layout).roll(1))",
    ),
    "no temperature": (
        "actor",
        FORWARD,
        FSDP,
        "self.forward.log_probs(layout, self.temperature, entropy=entropy)",
        "self.forward.log_probs(layout, 1.0, entropy=entropy)",
    ),
    "plain Adam": ("actor", MOVED, FSDP, "torch.optim.AdamW(", "torch.optim.Adam("),
}
NOTICEABLE = (
    f"{A}.optim.weight_decay=0.3",
    f"{C}.optim.weight_decay=0.3",
    f"{A}.clip_ratio_high=0.4",
    f"{C}.grad_clip=0.1",
)


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(run: Run, name: str) -> None:
    role, first, file, old, new = MISTAKES[name]
    module = changed(file, old, new)
    replaced = {"algorithm": module} if file == PPO else {"learner": module}
    found = run(role, (*ALL_TERMS, *NOTICEABLE), **replaced)
    assert [each.ok for each in found[:first]] == [True] * first, found
    assert found[first].ok is False and "look at trainer/" in found[first].detail, found[first].detail


LORA = "trainer/learner/lora.py"
OF_ADAPTERS = {
    "counted once": (FORWARD, "self.lora_scale * self.lora_B", "self.lora_B"),
    "weights trained beside them": (GRADIENT, "model.requires_grad_(False)", "model.requires_grad_(True)"),
    "a B that does not train": (
        GRADIENT,
        "    module.lora_scale, ",
        "    module.lora_B.requires_grad_(False)\n    module.lora_scale, ",
    ),
}


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize("name", OF_ADAPTERS)
def test_a_mistake_with_adapters_shows(run: Run, role: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, old, new = OF_ADAPTERS[name]
    module = changed(LORA, old, new)
    monkeypatch.setattr(loading, "adapt", module.adapt)
    monkeypatch.setattr(checkpoint, "lora", module)
    found = run(role, (*ALL_TERMS, *NOTICEABLE, *ADAPTERS))
    assert [each.ok for each in found[:first]] == [True] * first, found
    assert found[first].ok is False and "look at trainer/" in found[first].detail, found[first].detail


def changed(file: str, old: str, new: str) -> types.ModuleType:
    """A module of the trainer with this text in place of that."""
    source, name = (ROOT / file).read_text(), file.removesuffix(".py").replace("/", ".")
    assert source.count(old) == 1, old
    module = types.ModuleType(name)
    with pytest.MonkeyPatch.context() as patch:  # its dataclasses look themselves up
        patch.setitem(sys.modules, name, module)
        exec(compile(source.replace(old, new), str(ROOT / file), "exec"), module.__dict__)
    return module
