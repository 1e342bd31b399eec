"""The stages of a step, done again from its capsule: models built on one rank, every input as the run saw it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from trainer import ppo, shaping, views
from trainer.agent import keep
from trainer.capsules import Capsule
from trainer.config.schema import (
    ActorConfig,
    Config,
    CriticConfig,
    DeviceMappingConfig,
    FsdpConfig,
    MegatronConfig,
)
from trainer.errors import CapsuleError
from trainer.findings import STAGES, Finding
from trainer.group import WorkerGroup
from trainer.learner import checkpoint as checkpoints
from trainer.learner.lora import adapted, is_factor
from trainer.learner.models import VALUE_HEAD_FILE
from trainer.learner.offload import local
from trainer.learner.scaling import LossScale
from trainer.learner.snapshot import digest, distances, restore_optimizer
from trainer.learner.tensor_files import save_tensors
from trainer.learner.unadapted import Unadapted
from trainer.local import LocalPool
from trainer.records import UpdateReport
from trainer.resuming import require_whole
from trainer.rewards import build_scorer
from trainer.roles import Roles, score_responses
from trainer.spec import RunSpec
from trainer.tokenizer import load_tokenizer

Fsdp = TypeVar("Fsdp", bound=FsdpConfig)

EXACT = 1e-5  # of what the driver computes: the same code in fp32, on another CPU perhaps


class Limits(NamedTuple):
    """How far apart may be what models compute: ranks, devices and kernels sum in another order."""

    forward: float  # log-probs and values
    update: float  # losses and gradient norms
    step: float  # norms of changes, relative: Adam makes a whole step of the smallest gradient


# By the precision of the computation.
LIMITS = {
    "fp32": Limits(1e-4, 1e-4, 1e-3),
    "fp16": Limits(0.03, 0.03, 0.03),
    "bf16": Limits(0.25, 0.1, 0.1),
}


class Restaging:
    """One capsule's stages."""

    def __init__(
        self, capsule: Capsule, folder: Path, stack: ExitStack, tolerance: float | None, checkpoint: Path | None
    ) -> None:
        """`folder` is for models on their way in; `stack` closes what is opened."""
        self.seen = capsule.seen
        self._capsule, self._folder, self._stack = capsule, folder, stack
        self._limits = LIMITS[self.seen.held.dtype] if tolerance is None else Limits(tolerance, tolerance, tolerance)
        self._checkpoint = checkpoint or (Path(self.seen.checkpoint) if self.seen.checkpoint else None)
        self._inside = capsule.has("weights/actor")
        self._updates: dict[str, tuple[UpdateReport, dict[str, float]]] = {}

    def run(self, stages: Sequence[str]) -> Iterator[Finding]:
        """The findings of `stages`, in the order of a step."""
        does: dict[str, Callable[[], Iterator[Finding]]] = {
            "weights": self._weights,
            "rollout": self._rollout,
            "reward": self._reward,
            "old_log_prob": self._old_log_prob,
            "ref": self._ref,
            "values": self._values,
            "adv": self._adv,
            "mini_batches": self._mini_batches,
        }
        for role in ("critic", "actor"):
            does[f"{role}_loss"] = partial(self._losses, role)
            does[f"{role}_gradients"] = partial(self._gradients, role)
            does[f"{role}_step"] = partial(self._step, role)
        for stage in STAGES:
            if stage in stages:
                yield from does[stage]()

    # -- without models

    def _reward(self) -> Iterator[Finding]:
        rollout, scores = self.seen.batch.experience.rollout, self.seen.scores
        if self.seen.config.environment_scores:  # what environments gave lies in their turns
            given = keep.scores(rollout, self.seen.config.agent.reward)
            yield compared("reward", "score", given.score_B, scores.score_B, EXACT)
            yield compared("reward", "rewards of turns", given.placed_BT, scores.placed_BT, EXACT)
            return
        config = self.seen.config
        scorer = build_scorer(config.custom_reward_function, self.seen.reward_source, config.reward_model)
        ours = score_responses(rollout, self._tokenizer, scorer)
        yield compared("reward", "score", ours.score_B, scores.score_B, EXACT)
        for name, extra_B in scores.extras.items():
            missing = torch.full_like(extra_B, torch.nan)
            yield compared("reward", name, ours.extras.get(name, missing), extra_B, EXACT)

    @cached_property
    def _tokenizer(self) -> object:
        if not self._inside:
            return load_tokenizer(self.seen.config.actor_rollout_ref.model)
        self._capsule.extract("identity/actor", self._folder / "actor")
        return load_tokenizer(self._config().actor_rollout_ref.model)

    def _adv(self) -> Iterator[Finding]:
        theirs, algorithm = self.seen.batch, self.seen.config.algorithm
        placed = shaping.place_scores(self.seen.scores, theirs.experience.rollout.mask_BT)
        ours, mean_kl = ppo.train_batch(theirs.experience, self.seen.kl_coef, self.seen.config)
        coef = ppo.next_kl_coef(self.seen.kl_coef, mean_kl, len(theirs), algorithm.kl_ctrl)
        yield compared("adv", "scores at the last token", placed, theirs.experience.scores_BT, EXACT)
        for name in ("rewards", "advantages", "returns", "weights"):
            mine, other = getattr(ours, f"{name}_BT"), getattr(theirs, f"{name}_BT")
            if other is not None or mine is not None:
                yield compared("adv", name, mine, other, EXACT)
        yield compared("adv", "next KL coefficient", torch.tensor(coef), torch.tensor(self.seen.next_kl_coef), EXACT)

    def _mini_batches(self) -> Iterator[Finding]:
        config = self.seen.config
        parts: dict[str, ActorConfig | CriticConfig] = {
            "actor": config.actor_rollout_ref.actor,
            "critic": config.critic,
        }
        for role, theirs in self.seen.order.items():
            made = WorkerGroup(_Nobody(), self._config()).order(self.seen.batch, parts[role], self.seen.step)
            ours = [rows.tolist() for rows in made]
            yield Finding("mini_batches", f"{role}: rows of {len(theirs)} steps", float(ours != theirs), 0.0)
            yield from self._trained(role, theirs)

    def _trained(self, role: str, order: Sequence[Sequence[int]]) -> Iterator[Finding]:
        """Whether the run computed losses of those rows, each once. Older capsules do not say."""
        report, samples = self._report(role), self.seen.batch.experience.rollout.prompts.samples
        if report is not None and report.trained:
            planned = [sorted(samples[row] for row in rows) for rows in order]
            had = [sorted(sample for of_copy in by_copy for sample in of_copy) for by_copy in report.trained]
            yield Finding("mini_batches", f"{role}: rows that losses had", float(planned != had), 0.0)

    # -- forward passes

    def _weights(self) -> Iterator[Finding]:
        for role, state in self.seen.held.models.items():
            if not self._has_models:
                yield self._skipped("weights", f"{role}: {len(state.checksums)} tensors")
                continue
            ours = {name: digest(tensor) for name, tensor in getattr(self._roles, role).kept_tensors()}
            wrong = [
                name for name in state.checksums.keys() | ours.keys() if ours.get(name) != state.checksums.get(name)
            ]
            note = f"{min(wrong)} and {len(wrong) - 1} more differ" if wrong else ""
            yield Finding("weights", f"{role}: {len(state.checksums)} tensors", float(len(wrong)), 0.0, note)

    def _rollout(self) -> Iterator[Finding]:
        theirs, config = self.seen.batch.experience.rollout, self.seen.config
        if theirs.episodes is not None:
            yield Finding("rollout", "tokens", None, 0.0, "an environment took part, and is not played again")
        elif config.actor_rollout_ref.rollout.name != "hf" or self.seen.held.device != "cpu":
            yield Finding("rollout", "tokens", None, 0.0, "another engine or device may draw other tokens")
        elif not self._has_models:
            yield self._skipped("rollout", "tokens")
        else:
            ours = self._group.generate(theirs.prompts, self.seen.step, validate=False)
            other = sum(
                a[m.bool()].tolist() != b[n.bool()].tolist()
                for a, m, b, n in zip(ours.response_BT, ours.mask_BT, theirs.response_BT, theirs.mask_BT, strict=True)
            )
            yield Finding("rollout", f"tokens of {len(theirs)} responses", float(other), 0.0)

    def _old_log_prob(self) -> Iterator[Finding]:
        if not self._has_models:
            yield self._skipped("old_log_prob", "log-probs")
            return
        experience = self.seen.batch.experience
        ours = self._group.log_probs(views.of_actor(experience.rollout, self.seen.config)).now().logp_BT
        yield compared("old_log_prob", "log-probs", ours, experience.old_logp_BT, self._limits.forward)

    def _ref(self) -> Iterator[Finding]:
        experience = self.seen.batch.experience
        if experience.ref_logp_BT is None:
            return
        if not self._has_models:
            yield self._skipped("ref", "log-probs")
            return
        ours = self._group.ref_log_probs(views.of_actor(experience.rollout, self.seen.config)).now()
        yield compared("ref", "log-probs", ours, experience.ref_logp_BT, self._limits.forward)

    def _values(self) -> Iterator[Finding]:
        experience = self.seen.batch.experience
        if experience.values_BT is None:
            return
        if not self._has_models:
            yield self._skipped("values", "values")
            return
        yield compared(
            "values",
            "values",
            self._group.values(views.of_critic(experience.rollout, self.seen.config)).now(),
            experience.values_BT,
            self._limits.forward,
        )

    # -- updates

    def _losses(self, role: str) -> Iterator[Finding]:
        yield from self._of_steps(role, "loss", lambda name: name != "grad_norm")

    def _gradients(self, role: str) -> Iterator[Finding]:
        yield from self._of_steps(role, "gradients", lambda name: name == "grad_norm")

    def _of_steps(self, role: str, stage: str, wanted: Callable[[str], bool]) -> Iterator[Finding]:
        """Each number of the report, at the optimizer step where it is furthest off."""
        theirs = self._report(role)
        if theirs is None:
            return
        if not self._has_models:
            yield self._skipped(f"{role}_{stage}", "all optimizer steps")
            return
        ours, _ = self._updated(role)
        count = len(theirs.steps) if self._has_optimizer(role) else 1
        for name in filter(wanted, theirs.steps[0]):
            pairs = list(zip(ours.steps, theirs.steps, strict=True))[:count]
            gaps = [gap(torch.tensor(a.get(name, math.nan)), torch.tensor(b[name])) for a, b in pairs]
            worst = max(range(count), key=lambda i: math.inf if math.isnan(gaps[i]) else gaps[i])
            note = (
                f"only the first of {len(theirs.steps)} steps: no optimizer state" if count < len(theirs.steps) else ""
            )
            what = f"{name}, step {worst + 1} of {len(theirs.steps)}"
            yield Finding(f"{role}_{stage}", what, gaps[worst], self._limits.update, note)

    def _step(self, role: str) -> Iterator[Finding]:
        """The optimizer: the norm of each tensor's change, over that of the run's."""
        theirs = self.seen.moved.get(role)
        if self._report(role) is None:
            return
        if not theirs or not self._has_models or not self._has_optimizer(role):
            why = "no optimizer state" if self._has_models else "no weights"
            yield Finding(f"{role}_step", "each tensor's change", None, self._limits.step, why)
            return
        _, ours = self._updated(role)
        gaps = {name: relative(ours.get(name, math.nan), norm) for name, norm in theirs.items()}
        worst = max(gaps, key=lambda name: math.inf if math.isnan(gaps[name]) else gaps[name])
        yield Finding(f"{role}_step", f"change of {len(theirs)} tensors; {worst}", gaps[worst], self._limits.step)

    def _report(self, role: str) -> UpdateReport | None:
        return self.seen.actor if role == "actor" else self.seen.critic

    def _updated(self, role: str) -> tuple[UpdateReport, dict[str, float]]:
        """The update done again, and how far it moved the weights; the model is put back after it."""
        if role not in self._updates:
            model = getattr(self._roles, role)
            before = {name: tensor.clone() for name, tensor in model.kept_tensors()}
            self._set_optimizer(role)
            update = self._group.update_actor if role == "actor" else self._group.update_critic
            view = views.of_actor if role == "actor" else views.of_critic
            batch = views.seen_as(view(self.seen.batch.experience.rollout, self.seen.config), self.seen.batch)
            report = update(batch, self.seen.step).now()
            self._updates[role] = report, distances(model, before.__getitem__)
            for name, parameter in model.module.named_parameters():
                local(parameter.detach()).copy_(before[name])
        return self._updates[role]

    def _set_optimizer(self, role: str) -> None:
        model, state = getattr(self._roles, role), self.seen.held.models[role]
        if self._inside:
            restore_optimizer(model, self._capsule.tensors(f"optimizer/{role}"))
        model.set_updates(state.updates)
        if model.loss_scale is not None and state.loss_scale is not None:
            model.loss_scale = LossScale(state.loss_scale, state.good_steps)

    def _has_optimizer(self, role: str) -> bool:
        fresh = self.seen.held.models[role].steps == 0
        return fresh or self._capsule.has(f"optimizer/{role}") or (not self._inside and self._checkpoint is not None)

    # -- models

    @property
    def _has_models(self) -> bool:
        """Inside, in a checkpoint, or those that the run began with."""
        return self._inside or self._checkpoint is not None or self.seen.step == 1

    def _skipped(self, stage: str, what: str) -> Finding:
        return Finding(stage, what, None, 0.0, "no weights in the capsule: give --checkpoint")

    @cached_property
    def _group(self) -> WorkerGroup:
        """One rank in this process, with the models as they were before the step."""
        pool = self._stack.enter_context(closing(LocalPool()))
        if self._inside:
            self._extract()
        pool.build(RunSpec(self._config(), None, self.seen.total_steps))  # loading a reward function runs its module
        roles = pool.roles
        if self._inside:
            self._put_in_place(roles)
        elif not self._inside and self._checkpoint is not None:
            require_whole(self._checkpoint)
            roles.load(str(self._checkpoint))
        self._pool = pool
        return WorkerGroup(pool, self._config())

    @property
    def _roles(self) -> Roles:
        _ = self._group
        return self._pool.roles

    def _put_in_place(self, roles: Roles) -> None:
        """What a model's folder does not hold: what trains in place of its weights, and a reference of its own."""
        for role in ("actor", "critic", "reference"):
            model = getattr(roles, role)
            if model is None or isinstance(model, Unadapted):
                continue  # the last is the actor
            places = {
                name: parameter
                for name, parameter in model.module.named_parameters()
                if role == "reference" or (parameter.requires_grad and adapted(model.module))
            }
            given = {n: t for n, t in self._capsule.tensors(f"weights/{role}") if n in places} if places else {}
            for name, parameter in places.items():
                if name not in given or given[name].shape != parameter.shape:
                    raise CapsuleError(
                        f"the {role} of {self._capsule.path} does not fit its configuration: {name}",
                        hint="give a complete step_N.capsule of this version",
                    )
                local(parameter.detach()).copy_(given[name])
            if role == "actor" and places:
                roles.sync_weights()

    def _extract(self) -> None:
        """Actor and critic as folders that the trainer reads."""
        actor, critic = self._folder / "actor", self._folder / "critic"
        self._capsule.extract("identity/actor", actor)
        weights = {name: tensor for name, tensor in self._capsule.tensors("weights/actor") if not is_factor(name)}
        checkpoints.write_safetensors(weights, actor)
        if "critic" in self.seen.held.models:
            self._capsule.extract("identity/critic", critic)
            tensors = dict(self._capsule.tensors("weights/critic"))
            split = {
                part: {
                    name.removeprefix(part): t
                    for name, t in tensors.items()
                    if name.startswith(part) and not is_factor(name)
                }
                for part in ("backbone.", "value_head.")
            }
            checkpoints.write_safetensors(split["backbone."], critic)
            save_tensors(split["value_head."], critic / VALUE_HEAD_FILE)

    def _config(self) -> Config:
        config = on_one_cpu(self.seen.config, self._folder if self._inside else None, self.seen.held.dtype)
        if not self._inside and self._checkpoint is None:
            return config
        part = config.actor_rollout_ref  # what its adapters began with is not needed
        part = replace(part, model=replace(part.model, lora_adapter_path=None))
        return replace(config, actor_rollout_ref=part)


class _Nobody:
    """Ranks that are not asked."""

    world_size = 1

    def all(self, phase: str, args: Sequence[tuple[object, ...] | None]) -> list[object]:
        raise NotImplementedError(phase)


def on_one_cpu(config: Config, folder: Path | None, dtype: str) -> Config:
    """`config` for one rank on a CPU in the run's precision, under FSDP2, its models in `folder` if given."""
    part, critic = config.actor_rollout_ref, config.critic
    model, critic_model = part.model, critic.model
    if folder is not None:
        model = replace(model, path=str(folder / "actor"), tokenizer_path=None)
        critic_model = replace(critic_model, path=str(folder / "critic" if config.uses_critic else folder / "actor"))

    def plain(fsdp: Fsdp, strategy: str, megatron: MegatronConfig) -> Fsdp:
        """In the run's precision, and nothing waits in host memory. What Megatron keeps of a model is in fp32."""
        offload: dict[str, Any] = {each.name: False for each in fields(fsdp) if each.name.endswith("_offload")}
        ran, kept = (fsdp.dtype, fsdp.model_dtype) if strategy != "megatron" else (megatron.dtype, "fp32")
        return replace(fsdp, dtype=dtype if ran == "auto" else ran, model_dtype=kept, **offload)

    ran_on = (part.actor.strategy, part.actor.megatron)
    part = replace(
        part,
        model=model,
        actor=replace(part.actor, strategy="fsdp", fsdp_config=plain(part.actor.fsdp_config, *ran_on)),
        ref=replace(part.ref, fsdp_config=plain(part.ref.fsdp_config, *ran_on)),
        rollout=replace(part.rollout, name="hf"),
    )
    return replace(
        config,
        actor_rollout_ref=part,
        agent=replace(config.agent, env=None),  # a capsule starts no environment
        critic=replace(
            critic,
            strategy="fsdp",
            model=replace(critic_model, fsdp_config=plain(critic_model.fsdp_config, critic.strategy, critic.megatron)),
        ),
        trainer=replace(
            config.trainer,
            nnodes=1,
            n_gpus_per_node=1,
            device="cpu",
            device_mapping=DeviceMappingConfig(),
            capsule_dir=None,
        ),
    )


def gap(ours: Tensor | None, theirs: Tensor | None) -> float:
    """The largest |difference| over max(1, |theirs|); infinite for other shapes or where one alone is not a number."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return math.inf
    a, b = ours.double(), theirs.double()
    apart = (a - b).abs() / b.abs().clamp(min=1)
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), torch.zeros_like(apart), apart)
    return float(apart.nan_to_num(nan=math.inf).max()) if apart.numel() else 0.0


def relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / abs(theirs) if theirs else abs(ours)


def compared(stage: str, what: str, ours: Tensor | None, theirs: Tensor | None, limit: float) -> Finding:
    return Finding(stage, what, gap(ours, theirs), limit)
