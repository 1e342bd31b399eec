"""From the command of a full run to one that takes seconds: what decides the maths is kept, sizes are cut.

Pure: overrides in, overrides out, with a list of what was kept and what was cut.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.debug.inworker.settings import lifts_timeouts
from devkit.records import Cut
from devkit.smoke import sizing
from trainer.config import Resolved, check, resolve, warning_lines
from trainer.config.choices import CHOICES
from trainer.config.overrides import format_value, parse
from trainer.config.problems import ConfigErrors, Problem
from trainer.config.schema import Config
from trainer.config.tree import FOLLOWS
from trainer.config.upstream import rename
from trainer.errors import ConfigError
from trainer.learner.megatron.available import require_megatron
from trainer.rollout.versions import require_version
from trainer.teams import KEY as MAPPING
from trainer.teams import teams_of

ENGINES = CHOICES["actor_rollout_ref.rollout.name"]
DAY = 24 * 3600  # seconds
MAX_NODES = 4
MODELS = ("actor_rollout_ref.model", "critic.model")
SAVE_AT, KILL_AT, LAST = 2, 3, 5  # steps of the pipeline run

# A plain `devkit smoke --tiny` runs what most commands use, and nothing at its neutral value: a temperature of 1 and
# a KL coefficient of 0 would hide their mistakes.
DEFAULTS = (
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.kl_coef=0.01",
    "algorithm.gamma=0.98",
    "algorithm.lam=0.95",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.005",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "critic.optim.lr_warmup_steps_ratio=0.1",
    "critic.loss_agg_mode=seq-mean-token-mean",
    "actor_rollout_ref.rollout.temperature=0.9",
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=2",
)
KEPT = (
    "actor_rollout_ref.actor.strategy",
    "critic.strategy",
    "algorithm.adv_estimator",
    "algorithm.gamma",
    "algorithm.lam",
    "algorithm.masked_gae",
    "algorithm.norm_adv_by_std_in_grpo",
    *(f"algorithm.reward_normalization.{name}" for name in ("grouping", "norm_mean_type", "norm_std_type")),
    *("algorithm.reward_clip", "algorithm.whiten_advantages", "algorithm.advantage_clip"),
    "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.kl_coef",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.shuffle",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.optim.betas",
    "actor_rollout_ref.actor.optim.weight_decay",
    "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.model.use_remove_padding",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    *(f"{part}.{name}" for part in MODELS for name in ("lora_rank", "target_modules", "exclude_modules")),
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_p",
    "actor_rollout_ref.rollout.top_k",
    "critic.cliprange_value",
    "custom_reward_function.path",
    "data.train_files",
    "data.val_files",
    "data.shuffle",
    "data.truncation",
    "trainer.nnodes",
)


@dataclass(frozen=True)
class Plan:
    """What the smoke test will run."""

    full: Config
    dialect: str
    nodes: int
    ranks_per_node: int
    overrides: tuple[str, ...]  # of the pipeline run, but for the paths of model, data and checkpoints
    kept: dict[str, Any]
    cut: tuple[Cut, ...]
    own_data: bool  # data.train_files is not set
    like: str | None  # local model folder whose architecture is taken
    warnings: tuple[str, ...] = ()  # what the full command asks for in vain


def make_plan(overrides: Sequence[str], dialect: str | None, rollout: str = "hf") -> Plan:
    """With `rollout` as the engine. Raises ConfigErrors with every problem of the full command; a missing model or
    missing data are none here. ConfigError: an engine is not installed."""
    require_engine(rollout)
    overrides = with_defaults(overrides)
    resolved = resolve(overrides, dialect)
    _require_sound(resolved)
    full = resolved.config
    if full.uses_megatron:
        require_megatron()
    nodes = min(full.trainer.nnodes, MAX_NODES)
    ranks = max(1 if nodes > 1 else 2, math.ceil(len(teams_of(full)) / nodes))
    sizes = sizing.batch_sizes(full, nodes * ranks)
    wanted = _cuts(resolved, nodes, ranks, sizes, rollout)
    cuts = tuple(cut for cut in wanted if cut.full != cut.tiny)
    # Without its environment a command of Search-R1 has other defaults, so what it had is said.
    said = cuts if full.agent.env is None else wanted
    model = Path(os.path.expanduser(full.actor_rollout_ref.model.path))
    return Plan(
        full=full,
        dialect=resolved.dialect,
        nodes=nodes,
        ranks_per_node=ranks,
        overrides=replaced(overrides, {cut.key: cut.tiny for cut in said}),
        kept={
            key: sizing.value(full, key)
            for key in KEPT
            if resolved.origins.get(key) != "default" and key not in {cut.key for cut in cuts}
        },
        cut=cuts,
        own_data=not full.data.train_files,
        like=str(model) if full.actor_rollout_ref.model.path and (model / "config.json").is_file() else None,
        warnings=tuple(warning_lines(resolved.notes)),
    )


def require_engine(name: str) -> None:
    """Raises ConfigError if `name` is no engine, or one whose package is missing or does not fit."""
    if name not in ENGINES:
        raise ConfigError(f"--rollout {name} is not a rollout engine", hint=f"choose from {', '.join(ENGINES)}")
    if name != "hf":
        require_version(name)


def with_defaults(overrides: Sequence[str]) -> tuple[str, ...]:
    """A command that says nothing of batch sizes is no full run's: what it leaves out comes from DEFAULTS.

    >>> with_defaults(["data.train_batch_size=64"])
    ('data.train_batch_size=64',)
    >>> len(with_defaults(["data.val_batch_size=4"])) > 1
    True
    """
    if any("batch_size" in override and "val_batch_size" not in override for override in overrides):
        return tuple(overrides)
    given = {override.split("=")[0].lstrip("+") for override in overrides}
    given |= {key.removesuffix("_ratio") for key in given}  # of a warm-up: steps would take its place
    return (*(default for default in DEFAULTS if default.split("=")[0] not in given), *overrides)


def _deadlines(rollout: str) -> tuple[int, int]:
    """Seconds for a phase, and for ranks to meet. Under `devkit run` a rank that is stopped is no hang."""
    if lifts_timeouts(os.environ):
        return DAY, DAY
    # An engine in processes of its own takes half a minute to start, and more where ranks share few cores.
    return (120 if rollout == "hf" else 420), 90


def _cuts(resolved: Resolved, nodes: int, ranks: int, sizes: sizing.Sizes, rollout: str) -> list[Cut]:
    full = resolved.config
    timeout, meeting = _deadlines(rollout)
    wanted: dict[str, tuple[Any, str]] = {
        "trainer.nnodes": (nodes, f"at most {MAX_NODES} simulated nodes"),
        "trainer.n_gpus_per_node": (ranks, "ranks share this machine's cores"),
        "trainer.device": ("cpu", "runs without a GPU"),
        **{f"{MAPPING}.{role}": (of, "as many teams") for role, of in sizing.mapping(full, nodes * ranks).items()},
        "data.train_batch_size": (sizes.prompts, "the same number of optimizer steps, of fewer rows"),
        "actor_rollout_ref.actor.ppo_mini_batch_size": (sizes.mini, "as above"),
        "actor_rollout_ref.actor.ppo_micro_batch_size": (None, "as above"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (sizes.micro, "the same number of micro-batches"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size": (None, "as above"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (2 * sizes.micro, "as above"),
        "actor_rollout_ref.ref.log_prob_micro_batch_size": (None, "as above"),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (2 * sizes.micro, "as above"),
        "critic.ppo_mini_batch_size": (sizes.mini, "as the actor's"),
        "critic.ppo_micro_batch_size": (None, "as the actor's"),
        "critic.ppo_micro_batch_size_per_gpu": (sizes.critic_micro, "as the actor's"),
        "critic.forward_micro_batch_size": (None, "as the actor's"),
        "critic.forward_micro_batch_size_per_gpu": (2 * sizes.critic_micro, "as the actor's"),
        "actor_rollout_ref.rollout.n": (sizes.samples, f"at most {sizing.MAX_SAMPLES}"),
        "actor_rollout_ref.rollout.name": (rollout, "hf runs anywhere; choose another with --rollout"),
        "actor_rollout_ref.rollout.tensor_model_parallel_size": (1, "one engine per rank"),
        "actor_rollout_ref.rollout.update_weights_bucket_megabytes": (1, "several buckets even for a tiny model"),
        "actor_rollout_ref.rollout.max_num_seqs": (min(full.actor_rollout_ref.rollout.max_num_seqs, 64), "few rows"),
        "actor_rollout_ref.rollout.engine_timeout": (timeout, "a hang is a failure"),
        "actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend": (None, "runs without a GPU"),
        "actor_rollout_ref.rollout.engine_kwargs.sglang.sampling_backend": (None, "runs without a GPU"),
        "actor_rollout_ref.rollout.do_sample": (True, "a greedy policy does not explore"),
        "actor_rollout_ref.rollout.ignore_eos": (False, "responses must end"),
        "actor_rollout_ref.rollout.val_kwargs.n": (1, "one response is enough to test validation"),
        "agent.env": (None, "responses of one turn; devkit agent check plays the environment"),
        "data.max_prompt_length": (min(full.data.max_prompt_length, sizing.PROMPT_TOKENS), "short prompts"),
        "data.max_response_length": (min(full.data.max_response_length, sizing.RESPONSE_TOKENS), "short responses"),
        "data.truncation": (
            _truncation(full),
            "an error would abort the run: most prompts are longer in the tiny model's tokens",
        ),
        "data.filter_overlong_prompts": (False, "prompts are truncated to fit where too few are short"),
        "data.train_max_samples": (3 * sizes.prompts, "enough rows for three steps"),
        "data.val_max_samples": (8, "a few rows"),
        "data.val_batch_size": (None, "all at once"),
        "trainer.critic_warmup": (
            min(full.trainer.critic_warmup, 2),
            "one step without the actor is enough to test it",
        ),
        "trainer.total_training_steps": (LAST, "enough to save, be killed and resume"),
        "trainer.save_freq": (SAVE_AT, "as above"),
        "trainer.test_freq": (LAST, "validates at the end"),
        "trainer.val_before_train": (True, "and before it"),
        "trainer.val_only": (False, "the test has to train"),
        "trainer.resume_mode": ("auto", "resumes its own checkpoint"),
        "trainer.resume_from_path": (None, "resumes its own checkpoint"),
        "trainer.max_actor_ckpt_to_keep": (None, "keeps its own checkpoints"),
        "trainer.logger": (["file"], "metrics stay in the working folder"),
        "trainer.rollout_data_dir": (None, "nothing outside the working folder"),
        "trainer.validation_data_dir": (None, "nothing outside the working folder"),
        "trainer.capsule_dir": (None, "nothing outside the working folder"),
        "global_profiler.tool": (None, "nothing outside the working folder"),
        "trainer.step_timeout": (timeout, "a hang is a failure"),
        "trainer.ray_wait_register_center_timeout": (meeting, "a hang is a failure"),
        "actor_rollout_ref.nccl_timeout": (meeting, "a hang is a failure"),
        "actor_rollout_ref.model.tokenizer_path": (None, "the tiny model's own tokenizer"),
        "actor_rollout_ref.actor.checkpoint.save_contents": (["model", "optimizer", "extra"], "what resuming needs"),
        "actor_rollout_ref.actor.fsdp_config.model_dtype": ("fp32", "exact on a CPU"),
        "actor_rollout_ref.actor.fsdp_config.dtype": ("fp32", "exact on a CPU"),
        "actor_rollout_ref.ref.fsdp_config.model_dtype": ("fp32", "exact on a CPU"),
        "actor_rollout_ref.ref.fsdp_config.dtype": ("fp32", "exact on a CPU"),
        "critic.model.fsdp_config.model_dtype": ("fp32", "exact on a CPU"),
        "critic.model.fsdp_config.dtype": ("fp32", "exact on a CPU"),
        **sizing.megatron(full, nodes * ranks),
        **sizing.passes(full, sizes),
        **sizing.optimizers(full),
        **sizing.adapters(full),
    }
    return [
        Cut(
            key,
            sizing.value(full, key),
            tiny,
            why,
            given=not resolved.origins.get(key, "").startswith(("default", FOLLOWS)),
        )
        for key, (tiny, why) in wanted.items()
    ]


def _truncation(full: Config) -> str:
    return "left" if full.data.truncation == "error" else full.data.truncation


def _require_sound(resolved: Resolved) -> None:
    problems = [problem for problem in check(resolved).problems if not _supplied(problem)]
    if problems:
        raise ConfigErrors(problems)


def _supplied(problem: Problem) -> bool:
    """Whether the smoke test brings what is missing: a model, a folder to write to, data where none are named."""
    own = (
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.tokenizer_path",
        "critic.model.path",
        "trainer.resume_from_path",
        "trainer.default_local_dir",  # of the cluster that the command is for
    )
    unset = problem.key in ("data.train_files", "data.val_files") and "is not set" in problem.message
    elsewhere = problem.key.endswith(".lora_adapter_path") and "is no adapter" in problem.message
    rows = problem.key == "data.train_batch_size" and "rows" in problem.message
    return unset or elsewhere or rows or problem.key.startswith(own)


def replaced(overrides: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """`overrides` with `settings` in place of what they say of the same keys, however they spell them.

    >>> replaced(["data.train_data_num=9", "trainer.nnodes=2"], {"data.train_max_samples": 4})
    ('trainer.nnodes=2', 'data.train_max_samples=4')
    """
    parsed, _ = parse(overrides)
    kept = [
        word for word, given in zip(overrides, parsed, strict=True) if rename(given.key, given.value)[0] not in settings
    ]
    return (*kept, *(f"{key}={format_value(value)}" for key, value in settings.items()))
