"""What a named release of verl, or this trainer, makes of a command: for `devkit lint`.

`check` asks whether a command can run here and now; this asks whether it says what its author means, and looks at no
file. Values that nobody knows yet, such as one from the environment, are left out of every judgement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.config import tree
from trainer.config.batches import arithmetic_problems, size_notes
from trainer.config.check import ENGINE_ONLY, own_findings, setting_notes, setting_problems
from trainer.config.dialects import DIALECTS, choose, closest_release, dead_kl_note
from trainer.config.load import Resolved, near_hint, resolve
from trainer.config.megatron import megatron_notes, megatron_problems, split_problems
from trainer.config.overrides import Override, parse
from trainer.config.problems import Note, Problem
from trainer.config.releases import SEARCH_R1, accepts, has, is_listed, is_search_r1_only
from trainer.config.schema import Config
from trainer.config.upstream import is_section, no_effect, rename, spellings

OURS = "ours"
TARGETS = (*DIALECTS, OURS)
RemarkKind = Literal[
    "unknown",
    "absent",
    "renamed",
    "shifting",
    "added",
    "missing",
    "inert",
    "unmet",
    "deprecated",
    "refused",
    "grammar",
    "uneven",
    "batch",
]
_A, _R, _O = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_KL_COEF = "algorithm.kl_ctrl."
_SINCE_V04 = ("verl-0.4", "verl-0.7", "verl-head")


@dataclass(frozen=True)
class Remark:
    """One thing about `key`. `more` names the other keys that it is true of."""

    kind: RemarkKind
    key: str
    message: str
    hint: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """`target` is one of `TARGETS`. `certain` is False where it was told from the keys alone."""

    target: str
    reason: str
    certain: bool
    config: Config
    remarks: tuple[Remark, ...]


def audit(
    words: Sequence[str], *, unknown: Sequence[str] = (), target: str | None = None, own_config: bool = False
) -> Audit:
    """What `target`, or the generation that the keys are of, makes of the overrides `words`.

    `unknown` are overrides whose value is not known: of these only the keys are judged. With `own_config`, the command
    names a config file of its own: what is in there, and which keys it has, is not known.

    Raises:
        ConfigError: `target` is none of `TARGETS`.
    """
    parsed, problems = parse(words)
    blind = [_blind(word) for word in unknown]
    choice = choose([*parsed, *blind], None if target == OURS else target)
    resolved = resolve(_for_arithmetic(words, parsed), choice.dialect)
    grammar = [Remark("grammar", problem.key, problem.message, problem.hint) for problem in problems]
    if target == OURS:
        found = [*_ours(resolved, blind, {override.key for override in parsed}), *_sizes(resolved, blind, strict=True)]
    else:
        overrides = [*parsed, *blind]
        found = (
            [] if own_config else [*_keys(choice.dialect, overrides), *_missing(choice.dialect, resolved, overrides)]
        )
        found += _effects(choice.dialect, resolved, overrides)
        found += [] if own_config or _is_split_otherwise(overrides, resolved) else _sizes(resolved, blind, strict=False)
    spoken = {(remark.kind, remark.key) for remark in grammar}
    kept = [r for r in found if ("grammar", r.key) not in spoken and (r.kind != "shifting" or target is None)]
    reason = "asked for" if target is not None else choice.reason
    return Audit(
        target or choice.dialect, reason, target is not None, resolved.config, tuple(dict.fromkeys([*grammar, *kept]))
    )


def _blind(word: str) -> Override:
    key = word.partition("=")[0]
    bare = key.lstrip("+~")
    sign = key[: len(key) - len(bare)]
    return Override("+" if sign == "+" else "++" if sign == "++" else "", bare, None)


def _for_arithmetic(words: Sequence[str], overrides: Sequence[Override]) -> list[str]:
    """`words`, and no critic for an estimator that only verl has: none of those needs one."""
    estimator = next((o.value for o in reversed(overrides) if o.key == "algorithm.adv_estimator"), "gae")
    return [*words, *(["critic.enable=False"] if estimator != "gae" else [])]


def _keys(dialect: str, overrides: Sequence[Override]) -> Iterator[Remark]:
    """Keys that no release knows, or not this one."""
    release = closest_release(dialect, overrides)
    engine_of_its_own = _names_megatron(overrides)
    for override in {o.spelling: o for o in overrides}.values():
        key, added = override.key, override.operator in ("+", "++")
        if engine_of_its_own and ".megatron." in key:
            continue  # of a configuration of verl's that is not in the table
        if not _is_known(key):
            if not (engine_of_its_own or added):
                yield Remark("unknown", key, f"{key} is not a key of any release", near_hint(key))
        elif not accepts(release, override):
            if override.operator == "+" and not is_listed(key):
                continue  # of a section that is free, perhaps
            if override.operator == "+":
                message = f"{dialect} has {key} itself, and Hydra refuses a + before it"
                yield Remark("added", key, message, f"write {key}=...")
            else:
                yield _absent(dialect, release, key)


def _is_known(key: str) -> bool:
    renamed, _ = rename(key, None)
    acts = tree.is_key(renamed) or tree.is_section(renamed) or is_section(renamed)
    return acts or any(no_effect(name) is not None for name in (key, renamed)) or is_search_r1_only(key)


def _absent(dialect: str, release: str, key: str) -> Remark:
    other = next((name for name in spellings(key) if name != key and _can_be(release, name)), None)
    if other is not None:
        return Remark("renamed", key, f"{key} is {other} in {dialect}", f"write {other}")
    return Remark("absent", key, f"{dialect} has no key {key}, and Hydra refuses it", "remove it")


def _can_be(release: str, name: str) -> bool:
    """Whether a release has `name`: of the critic's FSDP settings, those that the actor's have too."""
    section, _, leaf = name.rpartition(".")
    return has(release, name) and (section != "critic.fsdp" or has(release, f"{_A}.fsdp_config.{leaf}"))


def _effects(dialect: str, resolved: Resolved, overrides: Sequence[Override]) -> Iterator[Remark]:
    """Keys that are accepted and do nothing, or are on their way out."""
    given = {override.key: override.value for override in overrides}
    config = resolved.config
    unsure = {override.key for override in overrides if override.value is None}
    if not unsure & {"algorithm.use_kl_in_reward", f"{_A}.use_kl_loss"}:
        yield from _kl_effects(dialect, given, config)
    if "data.val_batch_size" in given and dialect in _SINCE_V04:
        message = f"data.val_batch_size is deprecated and has no effect in {dialect}: validation is one batch"
        yield Remark("inert", "data.val_batch_size", message, "remove it")
    critic = [key for key in given if key.startswith("critic.")]
    if critic and "algorithm.adv_estimator" in given and given["algorithm.adv_estimator"] not in ("gae", None):
        why = f"algorithm.adv_estimator={given['algorithm.adv_estimator']} has no critic"
        yield _without_effect(critic, why, "remove it")
    for note in (*size_notes(config), *setting_notes(config)):
        if (
            note.key in given
            and not (note.key in ENGINE_ONLY and given.get(f"{_O}.name") != config.actor_rollout_ref.rollout.name)
            and note.kind in ("inert", "deprecated")
            and not (note.kind == "deprecated" and dialect == SEARCH_R1)
        ):
            yield _of_note(note)


def _missing(dialect: str, resolved: Resolved, overrides: Sequence[Override]) -> Iterator[Remark]:
    """Keys without a default that works."""
    given, config = {override.key for override in overrides}, resolved.config
    engine, size = f"{_O}.name", f"{_O}.log_prob_micro_batch_size"
    if dialect == "verl-head" and engine not in given:
        yield Remark("missing", engine, f"{engine} has no default in {dialect}", f"add {engine}=vllm or sglang")
    dynamic = config.actor_rollout_ref.actor.use_dynamic_bsz or f"{_O}.log_prob_use_dynamic_bsz" in given
    if dialect != SEARCH_R1 and not dynamic and not {size, f"{size}_per_gpu"} & given:
        message = f"neither {size}_per_gpu nor use_dynamic_bsz is given, and {dialect} asks for one of them"
        yield Remark("missing", f"{size}_per_gpu", message, f"add {size}_per_gpu=...")


def _kl_effects(dialect: str, given: Mapping[str, Any], config: Config) -> Iterator[Remark]:
    turn_on = "add algorithm.use_kl_in_reward=True, or remove it"
    switches = ("algorithm.use_kl_in_reward", f"{_A}.use_kl_loss")
    if any(switch in given for switch in switches) and not config.uses_reference:
        return  # turned off by its author
    note = dead_kl_note(dialect, given, config.algorithm.use_kl_in_reward)
    key = next((key for key in given if key.startswith(_KL_COEF)), None)
    if note is not None:
        message = f"{note.key} has no effect in {dialect}: algorithm.use_kl_in_reward is False"
        yield Remark("inert", note.key, message, turn_on)
    elif key is not None and dialect == "verl-0.2" and "algorithm.use_kl_in_reward" not in given:
        message = f"{key} acts in {dialect}, and has no effect from verl v0.4 on unless it is turned on"
        yield Remark("shifting", key, message, "add ++algorithm.use_kl_in_reward=True, which every release takes")
    reference = [key for key in given if key.startswith(f"{_R}.")]
    if reference and dialect in _SINCE_V04 and not config.uses_reference:
        why = "neither KL in the reward nor a KL loss is on, so there is no reference"
        yield _without_effect(reference, why, "turn one of them on, or remove it")
    loss = [key for key in given if key in (f"{_A}.kl_loss_coef", f"{_A}.kl_loss_type")]
    if loss and not config.actor_rollout_ref.actor.use_kl_loss:
        yield _without_effect(loss, f"{_A}.use_kl_loss is False", f"add {_A}.use_kl_loss=True, or remove it")


def _without_effect(keys: Sequence[str], why: str, hint: str) -> Remark:
    more = len(keys) - 1
    others = f" and {more} more key{'s' if more > 1 else ''}" if more else ""
    subject = f"{keys[0]}{others} {'have' if more else 'has'}"
    return Remark("inert", keys[0], f"{subject} no effect: {why}", hint, tuple(keys[1:]))


def _of_note(note: Note) -> Remark:
    kind: RemarkKind = "deprecated" if note.kind == "deprecated" else "inert"
    hint = "write it with _per_gpu" if kind == "deprecated" else "remove it"
    return Remark(kind, note.key, note.message, hint)


def _ours(resolved: Resolved, blind: Sequence[Override], given: Collection[str]) -> Iterator[Remark]:
    """What this trainer says."""
    for problem in resolved.problems:
        kind: RemarkKind = "unknown" if problem.message.startswith("there is no key") else "refused"
        yield Remark(kind, problem.key, problem.message, problem.hint)
    for override in blind:
        if not _is_known(override.key):
            yield Remark("unknown", override.key, f"there is no key {override.key}", near_hint(override.key))
    shared: dict[str, list[Note]] = {}
    config = resolved.config
    names = {rename(key, None)[0] for key in given}
    of_megatron = [note for note in megatron_notes(config) if note.key in names]  # one is on by default
    for note in (*resolved.notes, *size_notes(config), *setting_notes(config), *of_megatron):
        if note.kind == "inert":
            shared.setdefault(note.message.partition(" has no effect: ")[2], []).append(note)
        elif note.kind == "absent":
            yield Remark("inert", note.key, note.message, "remove it")
        elif note.kind == "unmet":
            yield Remark("unmet", note.key, note.message, "remove it, or train with verl or Search-R1")
        elif note.kind == "renamed":
            new, _ = rename(note.key, None)
            yield Remark("renamed", note.key, note.message, f"write {new}")
        elif note.kind == "deprecated" and note.key in given:
            yield _of_note(note)
        elif note.kind == "dialect" and " has no effect in " in note.message:
            yield Remark("inert", note.key, note.message, "turn it on, or remove it")
    for why, notes in shared.items():
        yield _without_effect([note.key for note in notes], why, "remove it")


def _is_split_otherwise(overrides: Sequence[Override], resolved: Resolved) -> bool:
    """Whether several ranks share a sequence, or a model in a way that only verl knows of.

    Then there are fewer data-parallel ranks than we would count.
    """
    sizes = ("ulysses_sequence_parallel_size", "context_parallel_size")
    shared = any(override.key.endswith(sizes) and override.value != 1 for override in overrides)
    return shared or (_names_megatron(overrides) and not resolved.config.uses_megatron)


def _names_megatron(overrides: Sequence[Override]) -> bool:
    return any("megatron" in (override.value, *override.key.split(".")) for override in overrides)


def _sizes(resolved: Resolved, blind: Sequence[Override], *, strict: bool) -> Iterator[Remark]:
    """Batch arithmetic. verl itself takes a last mini-batch that is smaller; this trainer does not."""
    config = resolved.config
    of_megatron = megatron_problems if strict else split_problems  # the rest is what we ask for and verl does not
    found: list[Problem] = [*arithmetic_problems(config), *setting_problems(config), *of_megatron(config)]
    wrong = [override.key for override in blind] + [rename(override.key, None)[0] for override in blind]
    for problem in own_findings(resolved, found, wrong):
        if problem.key == "critic.enable" and not strict:
            continue  # an estimator of verl's own
        if problem.key == f"{_O}.tensor_model_parallel_size" and not strict:
            continue  # has another default there
        part = problem.uses == ("data.train_batch_size",)
        smaller = config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size
        kind: RemarkKind = "uneven" if part and smaller and not strict else "batch"
        yield Remark(kind, problem.key, problem.message, problem.hint)
