"""Whether a document of `--json` is what its type says: each field is there, of its type, and no other field is."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, is_typeddict

from devkit import records
from devkit.debug import documents
from devkit.debug.cluster_records import DebugCluster
from devkit.debug.inworker import documents as hub_documents
from devkit.doctor.records import DoctorDocument
from devkit.hang.records import HangDocument
from devkit.lint.records import LintDocument
from devkit.logs.records import FirstErrorDocument
from scripts.generate_vscode_types import fields_of


def check(document: Any, kind: Any) -> None:
    """Raises AssertionError that names every place where they differ."""
    found = list(mismatches(document, kind))
    assert not found, "\n".join(found)


def mismatches(value: Any, kind: Any, at: str = "") -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin is Annotated:
        yield from _object(value, kind.__metadata__, at)
    elif origin in (Union, types.UnionType):
        if all(list(mismatches(value, each, at)) for each in arguments):
            yield f"{at}: {value!r} is none of {kind}"
    elif origin is Literal:
        if value not in arguments:
            yield f"{at}: {value!r} is not one of {arguments}"
    elif origin in (list, tuple):
        if not isinstance(value, list):
            yield f"{at}: {value!r} is not a list"
            return
        for index, each in enumerate(value):
            yield from mismatches(each, arguments[0], f"{at}[{index}]")
    elif origin is dict or is_typeddict(kind) or hasattr(kind, "__dataclass_fields__"):
        yield from _object(value, (kind,), at)
    elif not _is_scalar(value, kind):
        yield f"{at}: {value!r} is not a {kind}"


def _is_scalar(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _object(value: Any, parts: tuple[Any, ...], at: str) -> Iterator[str]:
    """An object with the fields of all parts; one that is a dictionary says what the other fields are."""
    if not isinstance(value, dict):
        yield f"{at}: {value!r} is not an object"
        return
    fields = {name: kind for part in parts if get_origin(part) is not dict for name, kind in fields_of(part).items()}
    rest = next((get_args(part)[1] for part in parts if get_origin(part) is dict), None)
    for name, kind in fields.items():
        is_optional = get_origin(kind) is NotRequired
        if name in value:
            yield from mismatches(value[name], get_args(kind)[0] if is_optional else kind, f"{at}.{name}")
        elif not is_optional:
            yield f"{at}.{name} is missing"
    for name in value.keys() - fields.keys():
        if rest is None:
            yield f"{at}.{name} is in no type"
        else:
            yield from mismatches(value[name], rest, f"{at}.{name}")


# What the verbs print; a verb of two words goes before its first one.
KINDS: dict[tuple[str, ...], Any] = {
    ("ps",): hub_documents.PsDocument,
    ("eval",): documents.EvalDocument,
    ("continue",): hub_documents.ContinueDocument,
    ("crashes", "show"): hub_documents.CrashDocument,
    ("crashes",): hub_documents.CrashesDocument,
    ("stacks",): documents.StacksDocument,
    ("break",): documents.BreakDocument,
    ("debug-cluster", "status"): documents.ClustersDocument,
    ("debug-cluster", "stop"): documents.StoppedDocument,
    ("debug-cluster",): DebugCluster,
    ("run",): documents.RunDocument,
    ("submit",): documents.SubmitDocument,
    ("jobs",): documents.JobsDocument,
    ("stop",): documents.StopJobDocument,
    ("smoke",): records.SmokeDocument,
    ("lint",): LintDocument,
    ("doctor",): DoctorDocument,
    ("hang",): HangDocument,
    ("logs",): FirstErrorDocument,
}


def check_output(arguments: Sequence[str], document: Any) -> None:
    """Checks what `devkit ARGUMENTS --json` printed: the verb's document, or an error."""
    if "exit_code" in document:
        error = {name: document[name] for name in ("error", "hint", "exit_code") if name in document}
        check(error, records.ErrorRecord)
        document = {name: value for name, value in document.items() if name not in error}
        if not document:
            return
    check(document, next(kind for verb, kind in KINDS.items() if tuple(arguments[: len(verb)]) == verb))
