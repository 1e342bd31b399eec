"""Rules about keys and batch sizes: what the trainer's own tables say about a command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate

from devkit.lint.launch import MOST_OVERRIDES, MOST_TRAININGS, Launch, Training
from devkit.lint.records import Finding, LintTarget, Severity
from devkit.lint.source import Span
from devkit.lint.values import Argument
from trainer.config.audit import OURS, Audit, Remark, RemarkKind, audit

_RULE_OF: dict[RemarkKind, str] = {
    "unknown": "unknown-key",
    "absent": "absent-key",
    "renamed": "renamed-key",
    "shifting": "version-dependent-key",
    "added": "added-key",
    "missing": "missing-key",
    "inert": "inert-key",
    "unmet": "unmet-request",
    "deprecated": "deprecated-key",
    "refused": "refused-value",
    "grammar": "not-an-override",
    "uneven": "uneven-batch",
    "batch": "batch-arithmetic",
}
_WHY: dict[RemarkKind, str] = {
    "unknown": "Hydra rejects it before anything starts",
    "absent": "the run stops before anything starts",
    "renamed": "the run stops before anything starts",
    "shifting": "the same command trains with a KL penalty on one release and without on another",
    "added": "the run stops before anything starts",
    "missing": "the run stops before the first step",
    "inert": "the run is not the one that the command describes",
    "unmet": "the model learns something else than the command is about",
    "deprecated": "its meaning depends on the number of GPUs, and it is deprecated",
    "refused": "the run stops before anything starts",
    "grammar": "the run stops before anything starts",
    "uneven": "the last optimizer step of each batch uses fewer samples",
    "batch": "the run stops at the first batch, or before",
}
LONGEST = 50_000  # characters of a command's overrides whose values are looked at
_MODEL, _NAME = "actor_rollout_ref.model.path", "trainer.experiment_name"
_CHANGES_TRAINING = re.compile(r"kl_|resume|val_batch_size")  # others may stand there for another run
_SIZE = re.compile(r"(?<!0[_-])(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")


def check(launch: Launch) -> Iterator[Finding]:
    yield from _cut_off(launch)
    for training in launch.trainings:
        said = audited(launch, training)
        yield from (_of_remark(training, said, remark) for remark in said.remarks if _is_told(training, remark))
        yield from _duplicates(training)
        yield from _stray(training)
        yield from _names(training)


def _is_told(training: Training, remark: Remark) -> bool:
    """What is not there may be among what the caller adds."""
    if training.is_abridged:
        return remark.kind not in ("missing", "batch", "uneven", "inert")
    if remark.kind == "grammar" and re.search(r"<[A-Za-z]", remark.message):
        return False  # a placeholder, which another rule tells
    absent = remark.kind == "missing" or remark.message.startswith("neither ")
    return not (absent and training.takes_more)


def _cut_off(launch: Launch) -> Iterator[Finding]:
    """What is more than a launch script has: each command takes the trainer's tables a tenth of a second."""
    hint = "split the file, or check them one at a time"
    if len(launch.trainings) == MOST_TRAININGS:
        message = f"only the first {MOST_TRAININGS} training commands of a file are checked"
        yield Finding(
            "not-parsed", launch.trainings[-1].module.span, message, "there may be more problems", hint, "note"
        )
    for training in launch.trainings:
        if len(training.rest) == MOST_OVERRIDES:
            message = f"only the first {MOST_OVERRIDES} words of a command are checked"
            yield Finding("not-parsed", training.rest[-1].span, message, "there may be more problems", hint, "note")


def audited(launch: Launch, training: Training) -> Audit:
    """What the trainer's tables say, for the release that was asked for or told from the keys."""
    known, unknown, target, own_config = _asked(launch, training)
    return _audit(known, unknown, target, own_config)


@lru_cache(maxsize=MOST_TRAININGS)
def _audit(known: tuple[str, ...], unknown: tuple[str, ...], target: str | None, own_config: bool) -> Audit:
    return audit(known, unknown=unknown, target=target, own_config=own_config)


def _asked(launch: Launch, training: Training) -> tuple[tuple[str, ...], tuple[str, ...], str | None, bool]:
    dialect = next((o.text.partition("=")[2] for o in training.options if o.text.startswith("--dialect=")), None)
    target = launch.asked or (OURS if training.is_ours else dialect)
    ends = accumulate(len(argument.text) for argument in training.overrides)
    judged = [argument.known and end <= LONGEST for argument, end in zip(training.overrides, ends, strict=True)]
    known = tuple(argument.text for argument, is_judged in zip(training.overrides, judged, strict=True) if is_judged)
    unknown = tuple(a.text for a, is_judged in zip(training.overrides, judged, strict=True) if not is_judged)
    own_config = any(re.match(r"--config|-c[npd]\b", option.text) for option in training.options)
    return known, unknown, target, own_config


def targets(launch: Launch) -> Iterator[LintTarget]:
    for training in launch.trainings:
        said = audited(launch, training)
        line = launch.source.place(training.module.span).line
        is_told_by_module = training.is_ours and launch.asked is None
        reason = "the command runs this project's trainer" if is_told_by_module else said.reason
        yield LintTarget(launch.source.name, line, said.target, reason)


def _of_remark(training: Training, said: Audit, remark: Remark) -> Finding:
    argument = training.by_key.get(remark.key) or _followed(training, remark)
    span = argument.span if argument is not None else training.module.span
    return Finding(_RULE_OF[remark.kind], span, remark.message, _WHY[remark.kind], remark.hint, _severity(said, remark))


def _followed(training: Training, remark: Remark) -> Argument | None:
    """A default that doesn't fit is shown at a key that is given and stands in the message."""
    return next((training.by_key[key] for key in training.by_key if key in remark.message.split("=")[0]), None)


def _severity(said: Audit, remark: Remark) -> Severity | None:
    if said.target == OURS and remark.kind in ("renamed", "inert"):
        return "note"  # taken as it is
    if remark.kind == "inert" and not _CHANGES_TRAINING.search(remark.key):
        return "note"
    return "warning" if remark.kind == "missing" and not said.certain else None


def _duplicates(training: Training) -> Iterator[Finding]:
    first: dict[str, Argument] = {}
    for argument in training.overrides:
        before = first.get(argument.key)
        first[argument.key] = argument
        if before is None:
            continue
        if before.text.lstrip("+") == argument.text.lstrip("+"):
            message = f"{argument.key} is given twice, both times {argument.value or 'empty'}"
            why, severity = "editing the first one later will have no effect", "note"
        else:
            message = f"{argument.key} is given twice: {before.value}, then {argument.value}"
            why, severity = "the last one silently wins", "warning"
        yield Finding("duplicate-key", argument.span, message, why, "keep one of them", _SEVERITY[severity])


_SEVERITY: Mapping[str, Severity] = {"note": "note", "warning": "warning"}


def _stray(training: Training) -> Iterator[Finding]:
    for word in training.stray:
        if word.text.strip(".…"):
            message = f"{word.text!r} is not an override"
            yield Finding("not-an-override", word.span, message, _WHY["grammar"], "write section.key=value")


def _names(training: Training) -> Iterator[Finding]:
    """An experiment that is called after another size of model."""
    model, name = training.value(_MODEL), training.value(_NAME)
    if not model or not name:
        return
    said, real = set(_SIZE.findall(name)), set(_SIZE.findall(model))
    if said and real and not said & real:
        message = f"the experiment's name says {_sizes(said)}, but the model is {model}"
        why = "its curves and checkpoints will be mistaken for another model's"
        yield Finding("misleading-name", training.by_key[_NAME].span, message, why, f"name it after {_sizes(real)}")


def _sizes(sizes: set[str]) -> str:
    return " and ".join(f"{size}B" for size in sorted(sizes))


def span_of(training: Training, *keys: str) -> Span:
    """Where the first of `keys` that is given stands, else the command's module."""
    return next((training.by_key[key].span for key in keys if key in training.by_key), training.module.span)
