"""`--check`: everything that can be known about a command without starting it.

It judges the command, not this machine: GPUs, engines and nodes that are missing here are notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.source import makes_tasks
from trainer.config.agents import agent_notes, agent_problems, estimator_problems, rows_of
from trainer.config.batches import MicroBatches, arithmetic_problems, micro_batch_sizes, size_notes
from trainer.config.expected import Expected, expected
from trainer.config.files import (
    FOLDER,
    NOTHING,
    PARQUET_HINT,
    Rows,
    count_rows,
    kind_of,
    model_findings,
    reward_problems,
)
from trainer.config.load import Resolved, resolve
from trainer.config.lora import lora_notes, lora_problems
from trainer.config.mapping import capsule_problems, engine_problems, team_problems
from trainer.config.megatron import megatron_notes, megatron_problems
from trainer.config.outputs import output_problems
from trainer.config.problems import Note, Problem, independent
from trainer.config.retrievers import retriever_notes, retriever_problems
from trainer.config.schema import Config, CriticModelConfig, ModelConfig, RolloutConfig
from trainer.config.splits import model_problems
from trainer.config.tree import FOLLOWS
from trainer.rollout.versions import installed, too_old

_BATCH = "data.train_batch_size"
_DEFAULT_ROLLOUT = RolloutConfig()
_RESTRICTED = "with a temperature, its log-probs are of what top_p and top_k leave"
_O = "actor_rollout_ref.rollout"
ENGINE_ONLY = {
    f"{_O}.tensor_model_parallel_size": "generates on each rank independently",
    f"{_O}.gpu_memory_utilization": "has no KV-cache pool",
    f"{_O}.free_cache_engine": "has no KV-cache pool",
    f"{_O}.enforce_eager": "has no CUDA graphs",
    f"{_O}.update_weights_bucket_megabytes": "copies one tensor at a time",
    f"{_O}.engine_timeout": "runs in its rank's own process",
    f"{_O}.engine_kwargs": "has no settings of its own",
}


@dataclass(frozen=True)
class Facts:
    """The size of a run that is fit to start."""

    ranks: int
    rows: Rows
    steps_per_epoch: int
    total_steps: int
    micro_batches: MicroBatches
    expected: Expected


@dataclass(frozen=True)
class Report:
    """What `check` found. `facts` are of a command without problems, else empty."""

    problems: tuple[Problem, ...]
    notes: tuple[Note, ...]
    facts: Facts | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


def check_command(overrides: Sequence[str], dialect: str | None = None) -> Report:
    """`check` of `resolve`: the problems of configuration, arithmetic and files in one report.

    Raises:
        ConfigError: `dialect` is none of `DIALECTS`.
    """
    return check(resolve(overrides, dialect))


def check(resolved: Resolved) -> Report:
    """All problems and notes of a command, those of `resolve` first. Reads a few small files, starts nothing."""
    config = resolved.config
    rows, file_problems = count_rows(config.data)
    rows = rows_of(config.agent) if makes_tasks(config.agent.env) else rows
    findings = [*model_findings(config), *reward_problems(config.custom_reward_function)]
    found = [
        *arithmetic_problems(config),
        *file_problems,
        *_row_problems(config, rows),
        *(finding for finding in findings if isinstance(finding, Problem)),
        *setting_problems(config),
        *output_problems(config),
        *megatron_problems(config),
        *lora_problems(config),
        *model_problems(config),
        *agent_problems(config),
        *retriever_problems(config),
    ]
    problems = (*resolved.problems, *own_findings(resolved, found))
    notes = [
        *resolved.notes,
        *size_notes(config),
        *setting_notes(config),
        *_speed_notes(resolved),
        *_step_notes(config, rows),
        *megatron_notes(config),
        *lora_notes(config),
        *agent_notes(config),
        *retriever_notes(config),
        *(finding for finding in findings if isinstance(finding, Note)),
    ]
    facts = None if problems else _facts(config, rows)
    return Report(problems, tuple(dict.fromkeys(notes)), facts)


def own_findings(resolved: Resolved, found: Sequence[Problem], wrong_keys: Sequence[str] = ()) -> tuple[Problem, ...]:
    """Of the problems `found`, those that are the user's to fix, not echoes of other problems or of `wrong_keys`."""
    wrong = {*(problem.key for problem in resolved.problems), *wrong_keys}  # such a key is at its default
    kept = [problem for problem in found if problem.key not in wrong]
    sources = wrong | {problem.key for problem in kept}

    def echo(problem: Problem) -> bool:
        origins = (resolved.origins.get(key, "") for key in (problem.key, *problem.uses))
        followed = (
            name for origin in origins if origin.startswith(FOLLOWS) for name in origin[len(FOLLOWS) :].split(", ")
        )
        return not sources.isdisjoint(followed)

    return independent([problem for problem in kept if not echo(problem)], wrong)


def _facts(config: Config, rows: Rows) -> Facts:
    return Facts(config.world_size, rows, *_steps(config, rows), micro_batch_sizes(config), expected(config))


def _steps(config: Config, rows: Rows) -> tuple[int, int]:
    """Of an epoch, and of the whole run."""
    per_epoch = (rows.train or 0) // config.data.train_batch_size
    return per_epoch, config.trainer.total_training_steps or per_epoch * config.trainer.total_epochs


def _row_problems(config: Config, rows: Rows) -> Iterator[Problem]:
    data = config.data
    if makes_tasks(config.agent.env):
        if config.agent.episodes < data.train_batch_size:
            message = f"{_BATCH}={data.train_batch_size} is more than agent.episodes={config.agent.episodes}"
            yield Problem(_BATCH, message, f"set {_BATCH} to at most that: not one step", ("agent.episodes",))
        return
    if not data.train_files and not config.trainer.val_only:
        yield Problem("data.train_files", "data.train_files is not set", PARQUET_HINT)
    if not data.val_files and config.trainer.val_only:
        yield Problem("data.val_files", "data.val_files is not set, and val_only has nothing else to do", "give files")
    if rows.train and rows.train < data.train_batch_size and not config.trainer.val_only:
        message = f"{_BATCH}={data.train_batch_size} is more than the {rows.train} rows there are: not one step"
        yield Problem(_BATCH, message, f"set {_BATCH} to at most {rows.train}", ("data.train_files",))


def setting_problems(config: Config) -> Iterator[Problem]:
    validation, trainer = config.actor_rollout_ref.rollout.val_kwargs, config.trainer
    prefix = "actor_rollout_ref.rollout.val_kwargs"
    if validation.do_sample and validation.temperature <= 0:
        message = f"{prefix}.temperature={validation.temperature} cannot be sampled from"
        yield Problem(
            f"{prefix}.temperature", message, f"raise it, or set {prefix}.do_sample=False", (f"{prefix}.do_sample",)
        )
    yield from team_problems(config)
    yield from engine_problems(config)
    yield from capsule_problems(config)
    yield from _restricted_problems(config)
    yield from estimator_problems(config)
    if config.algorithm.adv_estimator == "gae" and not config.uses_critic:
        message = "critic.enable=False leaves algorithm.adv_estimator=gae without values"
        yield Problem("critic.enable", message, "choose an estimator that needs none, such as grpo")
    if config.data.prompt_key == config.data.reward_fn_key:
        message = f"data.prompt_key and data.reward_fn_key are both {config.data.prompt_key}"
        yield Problem("data.prompt_key", message, "prompts and data sources are two columns")
    optimizers = {
        "actor_rollout_ref.actor.optim": config.actor_rollout_ref.actor.optim,
        "critic.optim": config.critic.optim,
    }
    for name, optim in optimizers.items():
        if len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas):
            message = f"{name}.betas={optim.betas} is not two numbers from 0 to below 1"
            yield Problem(f"{name}.betas", message, "AdamW's usual ones are [0.9,0.999]")
    outside = [rank for rank in config.global_profiler.ranks if not 0 <= rank < config.world_size]
    if outside and config.global_profiler.tool is not None:
        message = f"global_profiler.ranks={outside} are not among the {config.world_size} ranks"
        yield Problem("global_profiler.ranks", message, "ranks count from 0", ("trainer.n_gpus_per_node",))
    yield from _precision_problems(config)
    if trainer.resume_mode == "resume_path":
        key = "trainer.resume_from_path"
        if trainer.resume_from_path is None:
            yield Problem(key, f"{key} is not set, and resume_mode=resume_path needs it", "give a global_step_N folder")
        elif (kind := kind_of(trainer.resume_from_path)) != FOLDER:
            what = "does not exist" if kind == NOTHING else f"is {kind}"
            yield Problem(key, f"{key}={trainer.resume_from_path} {what}", "give a global_step_N folder")


def _precision_problems(config: Config) -> Iterator[Problem]:
    sections = {
        "actor_rollout_ref.actor.fsdp_config": config.actor_rollout_ref.actor.fsdp_config,
        "critic.model.fsdp_config": config.critic.model.fsdp_config,
    }
    for name, fsdp in sections.items():
        if fsdp.dtype == "fp16" and fsdp.model_dtype != "fp32":
            message = f"{name}.dtype=fp16 needs weights in fp32, and {name}.model_dtype is {fsdp.model_dtype}"
            hint = f"set {name}.model_dtype=fp32: gradients are unscaled in it"
            yield Problem(f"{name}.dtype", message, hint, (f"{name}.model_dtype",))


def _restricted(rollout: RolloutConfig) -> bool:
    """Whether vLLM's log-probs are of another distribution than the trainer's."""
    scaled, cut = rollout.temperature != 1.0, rollout.top_p < 1.0 or rollout.top_k > 0
    return rollout.name == "vllm" and rollout.do_sample and scaled and cut


def _restricted_problems(config: Config) -> Iterator[Problem]:
    key = "algorithm.rollout_correction.rollout_is"
    rollout, wanted = config.actor_rollout_ref.rollout, config.algorithm.rollout_correction.rollout_is
    if wanted is not None and _restricted(rollout):
        message = f"{key}={wanted} compares log-probs, and vllm has no comparable ones: {_RESTRICTED}"
        hint = f"leave out either {_O}.temperature or {_O}.top_p and top_k, or set {_O}.name=sglang"
        yield Problem(key, message, hint, (f"{_O}.name", f"{_O}.temperature", f"{_O}.top_p", f"{_O}.top_k"))


def _restricted_notes(config: Config) -> Iterator[Note]:
    if _restricted(config.actor_rollout_ref.rollout):
        yield Note("here", f"{_O}.name", f"the drift of {_O}.name=vllm counts the restriction: {_RESTRICTED}")


def _version_notes(name: str) -> Iterator[Note]:
    """An engine whose package is missing on this machine, or does not fit."""
    if name == "hf":
        return
    key, version = f"{_O}.name", installed(name)
    if version is None:
        yield Note("here", key, f"{name} is not installed on this machine: install it, or set {key}=hf")
    elif why := too_old(name, version):
        message = f"{name} {version} is installed on this machine, and {why}: install one, or set {key}=hf"
        yield Note("here", key, message)


def setting_notes(config: Config) -> Iterator[Note]:
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    yield from _version_notes(rollout.name)
    if rollout.name == "hf":
        for key, why in ENGINE_ONLY.items():
            name = key.rpartition(".")[2]
            if getattr(rollout, name) != getattr(_DEFAULT_ROLLOUT, name):
                yield Note("inert", key, f"{key} has no effect: the engine hf {why}")
    yield from _restricted_notes(config)
    if not config.data.val_files and not makes_tasks(config.agent.env):
        yield Note("here", "data.val_files", "data.val_files is not set: validation is off")
    if trainer.resume_from_path is not None and trainer.resume_mode != "resume_path":
        key = "trainer.resume_from_path"
        yield Note("inert", key, f"{key} has no effect: trainer.resume_mode is {trainer.resume_mode}")
    if rollout.val_kwargs.n > 1 and not rollout.val_kwargs.do_sample:
        key = "actor_rollout_ref.rollout.val_kwargs.n"
        yield Note("here", key, f"{key}={rollout.val_kwargs.n} greedy responses are all the same: set do_sample=True")
    if trainer.nnodes > 1 and trainer.save_freq < 1 and not trainer.val_only:
        key = "trainer.save_freq"
        message = (
            f"{key}={trainer.save_freq} writes no checkpoint: losing one of {trainer.nnodes} nodes loses the whole run"
        )
        yield Note("here", key, message)
    yield from _watch_notes(config)
    missing = _gpus_missing(config)
    if missing:
        yield Note("here", "trainer.n_gpus_per_node", missing)


def _speed_notes(resolved: Resolved) -> Iterator[Note]:
    """What is asked for to save time or memory, and does nothing as the rest of the command stands."""
    part, critic = resolved.config.actor_rollout_ref, resolved.config.critic
    models: dict[str, tuple[ModelConfig | CriticModelConfig, str]] = {
        "actor_rollout_ref.model": (part.model, part.actor.strategy)
    }
    if resolved.config.uses_critic and _recomputed(critic.model) != _recomputed(part.model):
        models["critic.model"] = (critic.model, critic.strategy)  # else what is said of the actor's says it
    for section, (model, strategy) in models.items():
        for name in ("recompute_granularity", "activation_memory_budget"):
            if getattr(model, name) not in (None, "full"):
                yield from _recompute_notes(section, name, model, strategy)
    for name, compiles in {"actor": part.actor.use_torch_compile, "ref": part.ref.use_torch_compile}.items():
        key = f"actor_rollout_ref.{name}.use_torch_compile"
        given = resolved.origins[key].startswith("command line")
        if given and compiles and resolved.config.trainer.device == "cpu":
            yield Note(
                "inert", key, f"{key} has no effect: on a CPU nothing but fsdp_config.use_torch_compile compiles"
            )


def _recomputed(model: ModelConfig | CriticModelConfig) -> tuple[str | None, float | None]:
    return model.recompute_granularity, model.activation_memory_budget


def _recompute_notes(section: str, name: str, model: ModelConfig | CriticModelConfig, strategy: str) -> Iterator[Note]:
    """Of a key that says what is recomputed."""
    key, why = f"{section}.{name}", ""
    if strategy == "megatron":
        why = "strategy=megatron has a recompute_granularity of its own"
    elif model.enable_gradient_checkpointing is False:
        why = f"{section}.enable_gradient_checkpointing is False"
    elif name == "activation_memory_budget" and model.recompute_granularity == "full":
        why = f"{section}.recompute_granularity is full"
    if why:
        yield Note("inert", key, f"{key} has no effect: {why}")


def _step_notes(config: Config, rows: Rows) -> Iterator[Note]:
    """Steps that are to be profiled, and that the run does not have."""
    profiler, (_, last) = config.global_profiler, _steps(config, rows)
    beyond = [step for step in profiler.steps or () if not 1 <= step <= last]
    if beyond and last and profiler.tool is not None:
        key, kind = "global_profiler.steps", "has no effect" if beyond == profiler.steps else "has no effect in part"
        yield Note("inert", key, f"{key} {kind}: {beyond} are not among the run's steps, 1 to {last}")


def _watch_notes(config: Config) -> Iterator[Note]:
    """Settings of profiles and capsules that do nothing as they stand."""
    profiler, trainer = config.global_profiler, config.trainer
    if (profiler.tool is None) != (profiler.steps is None):
        given, lacking = ("steps", "tool") if profiler.tool is None else ("tool", "steps")
        key = f"global_profiler.{given}"
        yield Note("inert", key, f"{key} has no effect: global_profiler.{lacking} is null")
    if profiler.tool == "torch_memory" and trainer.device == "cpu":
        yield Note("inert", "global_profiler.tool", "global_profiler.tool=torch_memory has no effect: a CPU has none")
    if trainer.capsule_weights == "checkpoint" and trainer.capsule_dir is not None and trainer.save_freq < 1:
        key = "trainer.capsule_weights"
        yield Note("here", key, f"{key}=checkpoint finds no checkpoint after the first step: set trainer.save_freq=1")


def _gpus_missing(config: Config) -> str:
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    wanted = config.trainer.n_gpus_per_node
    if config.trainer.device != "cuda" or here >= wanted:
        return ""
    return f"trainer.n_gpus_per_node={wanted}, and this machine has {here} GPUs: run it where there are enough"
