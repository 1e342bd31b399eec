"""ROLL's agentic YAML as overrides of this trainer: what each key becomes, has no effect on, or asks for in vain.

    start_agentic_pipeline.py --config_path DIR --config_name NAME     main_agentic.py with the same words

What a file leaves out is ROLL's default, where that differs. The tables: `roll_keys.py`; its environments:
`roll_envs.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.agent import by_turn_names as turns
from trainer.config import roll_envs
from trainer.config.overrides import Override, format_override, format_value
from trainer.config.problems import Note, NoteKind, Problem
from trainer.config.roll_devices import device_numbers
from trainer.config.roll_file import RollFile
from trainer.config.roll_keys import ACTOR, IGNORED, LORA, REF, REFUSED, RENAMED, ROLLOUT, SAME, TOGETHER

ROLL = "roll"
DEFAULTS: Mapping[str, Any] = {  # of ROLL, by the names that they have here
    "trainer.seed": 42,
    "trainer.total_training_steps": 500,
    "trainer.save_freq": 50,
    "trainer.test_freq": 10,
    "trainer.resume_mode": "disable",
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.kl_loss_coef": 0.0,
    f"{ACTOR}.optim.lr": 5e-5,
    f"{ACTOR}.optim.weight_decay": 0.0,
    f"{ACTOR}.optim.lr_warmup_steps": 0,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8,
    f"{ROLLOUT}.temperature": 0.95,
    f"{ROLLOUT}.top_p": 0.7,
    f"{ROLLOUT}.top_k": 50,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 16,
    "algorithm.lam": 0.95,
    "algorithm.whiten_advantages": False,
}
_ESTIMATORS = {"gae": "gae", "reinforce": "reinforce", "grpo": "reinforce", **{name: name for name in turns.ESTIMATORS}}
_METHODS = {"identity": (False, False), "mean": (True, False), "mean_std": (True, True), "asym_clip": (True, True)}
_DTYPES = {"fp16": "fp16", "bf16": "bf16", "fp32": "fp32"}
NO_LIMIT = 1e6  # of a clip that is off


@dataclass(frozen=True)
class Translation:
    """The words of a command that does the same, and what is to be said of it."""

    overrides: tuple[str, ...]
    origins: Mapping[str, str]  # our key -> ROLL's
    notes: tuple[Note, ...]
    problems: tuple[Problem, ...]


@dataclass
class Told:
    """What is found of a file, part by part."""

    given: dict[str, Any]  # ROLL's keys with dots, by today's names
    values: dict[str, Any] = field(default_factory=dict)  # ours
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def get(self, key: str, default: Any, least: int | None = None) -> Any:
        """ROLL's; null counts as left out. What is of another kind than `default`, or less than `least`, is a problem,
        and counts as left out, too."""
        value = self.given.get(key)
        if value is None:
            return default
        found = _of_kind(value, default)
        if found is not None and (least is None or found >= least):
            return found
        if all(each.key != key for each in self.problems):
            kind = f"{_KINDS[type(default)]}{'' if least is None else f' from {least}'}"
            such = default if least is None else max(default, least)
            self.problem(key, f"{key}={format_value(value):.80} is not {kind}", f"such as {format_value(such)}")
        return default

    def set(self, ours: str, value: Any, key: str, why: str = "") -> None:
        self.values[ours], self.origins[ours] = value, f"ROLL's {key}"
        if key in self.given or key.startswith("custom_envs"):
            self.note("renamed", key, f"{key} is {ours}={format_value(value)} here{f': {why}' if why else ''}")

    def note(self, kind: NoteKind, key: str, message: str) -> None:
        self.notes.append(Note(kind, key, message))

    def problem(self, key: str, message: str, hint: str) -> None:
        self.problems.append(Problem(key, message, hint))


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list of texts"}


def _of_kind(value: Any, default: Any) -> Any:
    """The value, if it is what a key with such a default has; None if not.

    >>> _of_kind(8.0, 1), _of_kind(1, True), _of_kind("8", 1), _of_kind([8], ["a"]), _of_kind([8], None)
    (8, True, None, None, [8])
    """
    if isinstance(default, bool):
        return bool(value) if isinstance(value, (bool, int)) and value in (0, 1) else None
    if isinstance(default, (int, float)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53
        if isinstance(default, float):
            return value if is_number else None
        return int(value) if is_number and value == int(value) else None
    if isinstance(default, list):
        return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None
    return value if default is None or isinstance(value, str) else None


def translate(file: RollFile) -> Translation:
    """Everything wrong is in the problems."""
    told = Told(dict(_flat({key: value for key, value in file.values.items() if key not in roll_envs.WHOLE})))
    _rename(told)
    for part in (_plain, _batches, _algorithm, _clips, _model, _run):
        part(told)
    for key in _others(told, file.variables):
        near = difflib.get_close_matches(key, [*SAME, *TOGETHER, *IGNORED, *REFUSED], n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else "remove it; ROLL itself would not read it"
        told.problem(key, f"ROLL has no key {key}", hint)
    roll_envs.environments(told, file.values)
    values = {**DEFAULTS, **told.values}
    origins = {**dict.fromkeys(DEFAULTS, "ROLL's default"), **told.origins}
    words = [format_override(Override("", key, value)) for key, value in values.items()]
    return Translation(tuple(words), origins, tuple(told.notes), tuple(told.problems))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _rename(told: Told) -> None:
    """Names of older releases."""
    for old, new in RENAMED.items():
        for key in [key for key in told.given if key == old or key.startswith(f"{old}.")]:
            now = new + key.removeprefix(old)
            told.given[now] = told.given.pop(key)
            told.note("renamed", key, f"{key} is {now} in today's ROLL, which ignores the old name without a word")


def _plain(told: Told) -> None:
    """Keys that one of ours says, that have no effect, or that are not there."""
    for key, value in told.given.items():
        if key in SAME and value is not None:
            for ours in SAME[key]:
                told.set(ours, value, key)
        elif key in REFUSED:
            allowed, hint = REFUSED[key]
            if value not in allowed:
                told.problem(key, f"{key}={format_value(value)} is not there", hint)
            else:
                told.note("inert", key, f"{key} has no effect: what it says is how it is here")
        elif (why := _ignored(key)) is not None and key not in TOGETHER:
            told.note("inert", key, f"{key} has no effect: {why}")


def _others(told: Told, variables: frozenset[str]) -> list[str]:
    """Keys that nobody knows, and that are no variables of the file."""
    known = (*SAME, *TOGETHER, *REFUSED)
    return [
        key
        for key in told.given
        if key not in known
        and _ignored(key) is None
        and key.partition(".")[0] not in {*variables, *roll_envs.VARIABLES}
    ]


def _ignored(key: str) -> str | None:
    if key in IGNORED:
        return IGNORED[key]
    return next((why for name, why in IGNORED.items() if name.endswith(".*") and key.startswith(name[:-1])), None)


# -- batches and GPUs


def _batches(told: Told) -> None:
    """Rows per step and per optimizer step, and the ranks that they are for."""
    samples, rows = told.get("train_env_manager.group_size", 1, 1), told.get("rollout_batch_size", 128, 1)
    if rows % samples:
        message = f"rollout_batch_size={rows} is no multiple of train_env_manager.group_size={samples}"
        told.problem("rollout_batch_size", message, "make it one: a step takes whole groups")
        return
    told.set("data.train_batch_size", rows // samples, "rollout_batch_size", "groups, of group_size each")
    told.set(f"{ROLLOUT}.n", samples, "train_env_manager.group_size")
    steps = max(1, told.get("max_steps", 500))
    told.set("agent.episodes", min(2**24, rows // samples * steps), "max_steps", "each group of the run has a new seed")
    workers = _ranks(told)
    section = "actor_train.training_args"
    each = told.get(f"{section}.per_device_train_batch_size", 8, 1)
    each *= told.get(f"{section}.gradient_accumulation_steps", 1, 1)
    mini = min(each * workers, rows)
    key = f"{section}.gradient_accumulation_steps"
    if mini % samples:
        message = f"an optimizer step is of {mini} rows, {each} on each of {workers} workers, and a group of {samples}"
        told.problem(key, message, "make the former a multiple of the latter")
        return
    why = f"{each} rows on each of {workers} workers" + (", cut to rollout_batch_size" if each * workers > rows else "")
    told.set(f"{ACTOR}.ppo_mini_batch_size", mini // samples, key, why)


def _ranks(told: Told) -> int:
    """Nodes, GPUs and which role is where; gives the copies of the actor."""
    roles = {"actor": "actor_train", "rollout": "actor_infer", "ref": "reference", "critic": "critic"}
    found: dict[str, list[int]] = {}
    for role, name in roles.items():
        key = f"{name}.device_mapping"
        text = told.given.get(key)
        if text is not None:
            try:
                found[role] = device_numbers(text)
            except ValueError as error:
                told.problem(key, f"{key}={text}: {error}", "write list(range(0,8)), or a list of numbers")
    per_node = told.get("num_gpus_per_node", 8, 1)
    if "actor" not in found:
        told.set("trainer.device", "cpu", "actor_train.device_mapping", "it is null")
        told.set(
            "trainer.n_gpus_per_node", told.get("num_gpus_per_node", 1, 1), "num_gpus_per_node", "workers, on a CPU"
        )
        return int(told.get("num_gpus_per_node", 1, 1))
    count = 1 + max(number for numbers in found.values() for number in numbers)
    nodes = -(-count // per_node)
    told.set("trainer.nnodes", nodes, "actor_train.device_mapping", f"{count} GPUs, {per_node} a node")
    told.set("trainer.n_gpus_per_node", count if nodes == 1 else per_node, "num_gpus_per_node")
    if nodes > 1 and count % per_node:
        message = f"device_mapping goes up to GPU {count - 1}, which leaves nodes of {per_node} GPUs not whole"
        told.problem("num_gpus_per_node", message, f"use all of them, up to {nodes * per_node - 1}")
    apart = any(numbers != list(range(count)) for numbers in found.values())
    for role, numbers in found.items():
        key = f"{roles[role]}.device_mapping"
        if apart and (role in ("actor", "rollout") or (numbers != found["actor"] and _has(told, role))):
            told.set(f"trainer.device_mapping.{role}", numbers, key)
        elif role != "actor":
            told.note("renamed", key, f"{key} needs no key here: {roles[role]} is where the actor is")
    shared = 1
    if told.get("actor_train.strategy_args.strategy_name", "fsdp2_train") == "megatron_train":
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
            shared *= told.get(f"actor_train.strategy_args.strategy_config.{name}", 1, 1)
    return max(1, len(found["actor"]) // shared)


def _has(told: Told, role: str) -> bool:
    """Whether the run has a model for a role beside actor and engines."""
    if role == "critic":
        return bool(told.get("adv_estimator", "gae") == "gae")
    return bool(told.get("use_kl_loss", False) or told.get("add_token_level_kl", False))


# -- what is learned


def _algorithm(told: Told) -> None:
    name = told.get("adv_estimator", "gae")
    if name not in _ESTIMATORS:
        told.problem("adv_estimator", f"adv_estimator={name} is none", f"choose from {', '.join(_ESTIMATORS)}")
        return
    why = "its rewards are compared by reward_normalization" if name == "grpo" else ""
    told.set("algorithm.adv_estimator", _ESTIMATORS[name], "adv_estimator", why)
    by_turns = name in turns.COMPARE_TURNS
    told.set("agent.reward", "turn" if by_turns else "last", "adv_estimator", "where rewards lie")
    norm = "reward_normalization"
    method, grouping = told.get(f"{norm}.method", "identity"), told.get(f"{norm}.grouping", "batch")
    if method not in _METHODS:
        told.problem(f"{norm}.method", f"{norm}.method={method} is none", f"choose from {', '.join(_METHODS)}")
        return
    of = "batch" if grouping == "batch" else "group"
    for part, wanted in zip(("mean", "std"), _METHODS[method], strict=True):
        key = f"{norm}.norm_{part}_type"
        value = told.get(key, of if wanted else None)
        told.set(f"algorithm.{key}", value, key if told.given.get(key) is not None else f"{norm}.method")
    if told.get("add_token_level_kl", False):
        told.set("algorithm.kl_ctrl.kl_coef", told.get("init_kl_coef", 0.2), "init_kl_coef")
        if told.get("target_kl", None) is not None:
            told.set("algorithm.kl_ctrl.type", "adaptive", "target_kl")
            told.set("algorithm.kl_ctrl.target_kl", told.given["target_kl"], "target_kl")
    elif "init_kl_coef" in told.given:
        told.note("inert", "init_kl_coef", "init_kl_coef has no effect: add_token_level_kl is false")
    if name == "agentic_reinforce":
        said = "all of a conversation's reward lies on its last token, as in ROLL; agent.reward=turn leaves each turn's"
        told.note("dialect", "adv_estimator", f"adv_estimator=agentic_reinforce: {said}")


def _clips(told: Told) -> None:
    low = high = told.get("pg_clip", 0.2)
    if told.get("use_pg_clip_range", False):
        low, high = told.get("pg_clip_low", 0.2), told.get("pg_clip_high", 0.2)
    told.set(f"{ACTOR}.clip_ratio_low", low, "pg_clip")
    told.set(f"{ACTOR}.clip_ratio_high", high, "pg_clip")
    dual = 1 + 2 * told.get("pg_clip", 0.2) if told.get("dual_clip_loss", False) else None
    told.set(f"{ACTOR}.clip_ratio_c", dual, "dual_clip_loss", "1 + 2 pg_clip" if dual else "")
    if told.get("adv_estimator", "gae") == "gae":
        told.set("critic.cliprange_value", told.get("value_clip", NO_LIMIT), "value_clip")


# -- the model and its engines


def _model(told: Told) -> None:
    for role, section in {"actor_train": ACTOR, "critic": "critic"}.items():
        if role == "critic" and not _has(told, "critic"):
            continue
        off = told.given.get(f"{role}.model_args.disable_gradient_checkpointing")
        if off is not None:
            part = "critic.model" if role == "critic" else "actor_rollout_ref.model"
            key = f"{role}.model_args.disable_gradient_checkpointing"
            told.set(f"{part}.enable_gradient_checkpointing", not off, key)
        _adapters(told, role)
        shape = told.get(f"{role}.training_args.lr_scheduler_type", "linear")
        if shape not in ("constant", "cosine"):
            message = f"{role}.training_args.lr_scheduler_type={shape} is not there: the learning rate stays constant"
            told.note("risk", f"{role}.training_args.lr_scheduler_type", message)
            shape = "constant"
        told.set(f"{section}.optim.lr_scheduler_type", shape, f"{role}.training_args.lr_scheduler_type")
    betas = [told.get(f"actor_train.training_args.adam_beta{i}", usual) for i, usual in ((1, 0.9), (2, 0.999))]
    told.set(f"{ACTOR}.optim.betas", betas, "actor_train.training_args.adam_beta1")
    _strategy(told)
    name = told.get("actor_infer.strategy_args.strategy_name", "vllm")
    if name not in ("vllm", "sglang", "hf_infer"):
        told.problem(
            "actor_infer.strategy_args.strategy_name", f"{name} generates nothing here", "choose vllm or sglang"
        )
    told.set(f"{ROLLOUT}.name", "hf" if name == "hf_infer" else name, "actor_infer.strategy_args.strategy_name")


def _adapters(told: Told, role: str) -> None:
    """LoRA is on where it has a target; its rank is 8 then, and its alpha twice that, where nothing else is said."""
    section, part = f"{role}.model_args", "critic.model" if role == "critic" else "actor_rollout_ref.model"
    target = told.get(f"{section}.lora_target", None)
    if target is None:
        for key in [f"{section}.lora_{name}" for name in LORA if f"{section}.lora_{name}" in told.given]:
            told.note("inert", key, f"{key} has no effect: {section}.lora_target is not set")
        return
    rank = told.get(f"{section}.lora_rank", 8)
    told.set(f"{part}.lora_rank", rank, f"{section}.lora_rank")
    alpha = told.get(f"{section}.lora_alpha", None)
    why = "" if alpha else "twice the rank"
    told.set(f"{part}.lora_alpha", alpha or 2 * rank, f"{section}.lora_alpha", why)
    if isinstance(target, str) and not any(sign in target for sign in "*$|("):  # as ROLL tells an expression
        target = [name.strip() for name in target.split(",")]
    told.set(f"{part}.target_modules", "all-linear" if target == ["all"] else target, f"{section}.lora_target")


def _strategy(told: Told) -> None:
    """Megatron, or FSDP2; Megatron in fp16, without parallel sizes, is FSDP2, too."""
    key, section = "actor_train.strategy_args.strategy_name", "actor_train.strategy_args.strategy_config"
    name, dtype = told.get(key, "fsdp2_train"), told.get("actor_train.model_args.dtype", "bf16")
    if dtype not in _DTYPES:
        told.problem("actor_train.model_args.dtype", f"dtype={dtype} is none", f"choose from {', '.join(_DTYPES)}")
        return
    sizes = {size: told.get(f"{section}.{size}", 1, 1) for size in _SIZES}
    megatron = name == "megatron_train"
    if megatron and dtype == "fp16" and set(sizes.values()) == {1}:
        said = (
            f"{key}=megatron_train in fp16 is fsdp2 here, which has fp16: no model is split, so both compute the same"
        )
        told.note("risk", key, said)
        megatron = False
    elif name not in ("megatron_train", "fsdp2_train", "deepspeed_train"):
        told.problem(key, f"{key}={name} does not train", "choose megatron_train or fsdp2_train")
    told.set(f"{ACTOR}.strategy", "megatron" if megatron else "fsdp2", key)
    on_cpu = told.values.get("trainer.device") == "cpu"
    told.set(
        f"{ACTOR}.megatron.dtype" if megatron else f"{ACTOR}.fsdp_config.dtype",
        "auto" if on_cpu else dtype,
        "actor_train.model_args.dtype",
        "fp32, on a CPU" if on_cpu else "",
    )
    if not megatron:
        for key in [key for key in told.given if key.startswith(f"{section}.") and key in TOGETHER]:
            told.note("inert", key, f"{key} has no effect: it is Megatron's, and the actor is FSDP2's")
        return
    for size, value in sizes.items():
        told.set(f"{ACTOR}.megatron.{size}", value, f"{section}.{size}")
    for option in ("use_distributed_optimizer", "sequence_parallel"):
        if (value := told.given.get(f"{section}.{option}")) is not None:
            told.set(f"{ACTOR}.megatron.{option}", value, f"{section}.{option}")
    full = told.given.get(f"{section}.recompute_granularity") == "full"
    usual = {"recompute_method": "uniform", "recompute_num_layers": 1} if full else {}
    for option in ("recompute_granularity", "recompute_method", "recompute_num_layers"):
        if (value := told.get(f"{section}.{option}", usual.get(option))) is not None:
            told.set(f"{ACTOR}.megatron.override_transformer_config.{option}", value, f"{section}.{option}")


_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")


# -- the run


def _run(told: Told) -> None:
    tracker = told.get("track_with", "tensorboard")
    known = [tracker] if tracker in ("tensorboard", "wandb") else []
    told.set("trainer.logger", ["console", "file", *known], "track_with")
    resume = told.given.get("resume_from_checkpoint")
    if isinstance(resume, str):
        told.set("trainer.resume_mode", "resume_path", "resume_from_checkpoint")
        told.set("trainer.resume_from_path", resume, "resume_from_checkpoint")
    else:
        told.set("trainer.resume_mode", "auto" if resume else "disable", "resume_from_checkpoint")
    told.set("trainer.project_name", ROLL, "exp_name")
    samples, rows = told.get("val_env_manager.group_size", 1, 1), told.get("val_batch_size", 128)
    if rows < 0:
        told.problem("val_batch_size", f"val_batch_size={rows} asks for validation without an end", "give a number")
    else:
        told.set("agent.val_episodes", rows // samples, "val_batch_size", "groups, of group_size each")
    told.set(f"{ROLLOUT}.val_kwargs.n", samples, "val_env_manager.group_size")
    told.set(f"{ROLLOUT}.val_kwargs.do_sample", True, "actor_infer.generating_args.do_sample")
    for name in ("temperature", "top_p", "top_k"):
        value = told.values.get(f"{ROLLOUT}.{name}", DEFAULTS[f"{ROLLOUT}.{name}"])
        told.values[f"{ROLLOUT}.val_kwargs.{name}"] = value
        told.origins[f"{ROLLOUT}.val_kwargs.{name}"] = f"ROLL's actor_infer.generating_args.{name}"


def without(words: Sequence[str], given: Sequence[Override]) -> list[str]:
    """`words` but for keys that the command itself gives."""
    keys = {each.key for each in given}
    return [word for word in words if word.partition("=")[0] not in keys]
