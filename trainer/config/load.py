"""From the words of a command to a typed configuration: `resolve` collects what is wrong, `load` raises it.

words -> overrides -> renamed, sorted out (act, inert, refused, unknown) -> dialect's defaults -> Config
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trainer.config import search_r1, tools, tree, unmet
from trainer.config.choices import ELSEWHERE, unalias, value_problem
from trainer.config.dialects import choose, dead_kl_note, difference_notes, differences
from trainer.config.overrides import Override, format_value, parse
from trainer.config.problems import ConfigErrors, Note, NoteKind, Problem, independent
from trainer.config.releases import SEARCH_R1_ONLY
from trainer.config.schema import Config
from trainer.config.upstream import inert_keys, is_section, meanings, no_effect, rename, renamed_keys


@dataclass(frozen=True)
class Resolved:
    """A configuration and the account of how it came about.

    `origins` has an entry per key of `config`: "default", "follows KEY", "command line", "command line, as KEY" or
    "dialect NAME". With `problems`, the wrong keys are at their defaults.
    """

    config: Config
    dialect: str
    dialect_reason: str
    origins: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()


def load(overrides: Sequence[str], dialect: str | None = None) -> Resolved:
    """The configuration that `overrides` ask for.

    Raises:
        ConfigErrors: every unknown key, wrong value and unreadable override, all at once.
        ConfigError: `dialect` is none of `DIALECTS`.
    """
    resolved = resolve(overrides, dialect)
    if resolved.problems:
        raise ConfigErrors(resolved.problems)
    return resolved


def resolve(overrides: Sequence[str], dialect: str | None = None) -> Resolved:
    """As `load`, with the problems in the result.

    Raises:
        ConfigError: `dialect` is none of `DIALECTS`.
    """
    parsed, problems = parse(overrides)
    choice = choose(parsed, dialect)
    given = _sort_out(parsed, choice.dialect, searching=search_r1.searches(choice.dialect, parsed))
    values = {key: value for key, (value, _) in given.values.items()}
    defaults = {difference.key: difference.value for difference in differences(choice.dialect, values)}
    defaults |= search_r1.defaults(values) if given.searching else {}
    with_tools = tools.defaults(values)
    defaults |= with_tools
    built, build_problems = tree.build({**defaults, **values})
    problems += [*given.problems, *build_problems]
    wrong = {problem.key for problem in problems}
    problems += _value_problems(built, [key for key in (*values, *defaults) if key not in wrong])
    wrong |= {problem.key for problem in problems}
    if wrong & values.keys():
        kept = {key: value for key, value in {**defaults, **values}.items() if key not in wrong}
        built, _ = tree.build(kept)
    config = tree.to_config(built)
    searched = search_r1.default_notes(values) if given.searching else ()
    dead_kl = dead_kl_note(choice.dialect, values, config.algorithm.use_kl_in_reward)
    unknown = {problem.key for problem in given.problems}  # here no less
    refused = [note for note in choice.notes if note.key not in unknown]
    notes = [*refused, *difference_notes(choice.dialect, values), *searched, *([dead_kl] if dead_kl else [])]
    notes += given.notes
    origins = {**tree.default_origins(), **dict.fromkeys(defaults, f"dialect {choice.dialect}")}
    origins.update(dict.fromkeys(with_tools, f"{tree.FOLLOWS}{tools.asking(values)}"))
    origins.update({key: origin for key, (_, origin) in given.values.items()})
    return Resolved(
        config,
        choice.dialect,
        choice.reason,
        MappingProxyType(origins),
        tuple(dict.fromkeys(notes)),
        independent(problems),
    )


def _value_problems(built: tree.Tree, keys: Sequence[str]) -> list[Problem]:
    found = (value_problem(key, tree.value_of(built, key)) for key in keys)
    return [problem for problem in found if problem is not None]


@dataclass
class _Given:
    """What the command gives, sorted out."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)  # key -> value and origin
    spelled: dict[str, str] = field(default_factory=dict)  # key -> the key as the user wrote it
    inert: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    searching: bool = False  # by Search-R1's keys

    def note(self, kind: NoteKind, key: str, message: str) -> None:
        self.notes.append(Note(kind, key, message))


def _sort_out(overrides: Sequence[Override], dialect: str, *, searching: bool) -> _Given:
    given = _Given(searching=searching)
    for override in overrides:
        if override.operator == "~":
            given.problems.append(_deletion_problem(override))
            continue
        for key, value in _leaves(override.key, override.value):
            _take(given, key, value)
    _tell_unmet(given)
    values = {key: value for key, (value, _) in given.values.items()}
    _replace(given, *tools.by_release(dialect, values), f"command line, of {dialect}")
    return given


def _replace(given: _Given, chosen: Mapping[str, Any], notes: Sequence[Note], origin: str) -> None:
    """Values that act in place of those of the command, with what is said of that."""
    given.values |= {key: (value, origin.format(value=value)) for key, value in chosen.items()}
    given.notes += notes


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """`section={a: 1, b: {c: 2}}` as single keys. Sections of which no name matters here stay whole."""
    if tree.is_key(key):  # `agent.env_kwargs`, whose names are the environment's
        return [(key, value)]
    has_names = tree.is_section(rename(key, value)[0]) or is_section(key)
    if isinstance(value, dict) and value and (has_names or no_effect(key) is None):
        return [leaf for name, item in value.items() for leaf in _leaves(f"{key}.{name}", item)]
    return [(key, value)]


def _take(given: _Given, written: str, raw: Any) -> None:
    searched = search_r1.meanings(written, raw) if given.searching else None
    if searched is not None and (said := search_r1.explained(written)):
        given.note("dialect", written, said)
    for key, value in searched or meanings(written, raw):
        _take_one(given, written, key, value)


def _take_one(given: _Given, written: str, key: str, value: Any) -> None:
    if tree.is_key(key):
        value = unalias(key, value)
        if others := _others(key, value):
            value = [item for item in value if item not in others] if isinstance(value, list) else []
            _note_others(given, key, others, value)
            if not value:
                return
        _note_repetition(given, key, written, value)
        explained = given.searching and search_r1.explained(written)
        if key != written and given.spelled.get(key) != written and not explained:
            given.note("renamed", written, f"{written} is {key} here")
        given.spelled[key] = written
        given.values[key] = (value, "command line" if key == written else f"command line, as {written}")
        return
    reason = no_effect(key)
    if reason is None and is_section(key) and value in (None, {}):
        return
    if reason is None:
        given.problems.append(_unknown_problem(written))
    elif not reason.allows(value):
        message = f"{written}={format_value(value)} is not supported: {reason.why}"
        given.problems.append(Problem(written, message, reason.instead))
    else:
        if written in given.inert and given.inert[written] != value:
            given.note("duplicate", written, f"{written} is given twice, {_pair(given.inert[written], value)}")
        given.inert[written] = value


def _others(key: str, value: Any) -> list[str]:
    """Items that only verl knows."""
    known = ELSEWHERE.get(key, ())
    return [item for item in (value if isinstance(value, list) else [value]) if item in known]


def _note_others(given: _Given, key: str, others: Sequence[str], left: Sequence[str]) -> None:
    """With nothing left, the default stays."""
    used = format_value(list(left) or tree.default(key))
    given.note("absent", key, f"{key} names {', '.join(others)}, which this trainer does not have: it becomes {used}")


def _tell_unmet(given: _Given) -> None:
    """A note for each key without effect; what changes what is learned is told together, and not as one of those."""
    everything = {**{key: value for key, (value, _) in given.values.items()}, **given.inert}
    asking = {each: each.asking(everything) for each in unmet.TABLE}
    told = {key for keys in asking.values() for key in keys}
    for key in given.inert:
        reason = no_effect(rename(key, None)[0])
        if reason is not None and key not in told:
            given.note("inert", key, f"{key} has no effect: {reason.why}")
    for each, keys in asking.items():
        if keys:
            given.note("unmet", next(iter(keys)), each.line(keys))


def _note_repetition(given: _Given, key: str, written: str, value: Any) -> None:
    if key not in given.values or given.values[key][0] == value:
        return
    before, spelled = given.values[key][0], given.spelled[key]
    if spelled == written:
        given.note("duplicate", written, f"{written} is given twice, {_pair(before, value)}")
    else:
        message = f"{spelled}={format_value(before)} and {written}={format_value(value)} are one key here, {key}"
        given.problems.append(Problem(written, message, f"give {key} alone"))


def _pair(before: Any, after: Any) -> str:
    return f"{format_value(before)} and then {format_value(after)}: the last one counts"


def _deletion_problem(override: Override) -> Problem:
    if not tree.is_key(override.key) and no_effect(override.key) is None:
        return _unknown_problem(override.key)
    return Problem(override.key, f"~{override.key}: keys cannot be deleted", "remove it, or set it to null")


def _unknown_problem(key: str) -> Problem:
    if tree.is_section(key) or is_section(key):
        first = next(name for name in _known() if name.startswith(f"{key}."))
        return Problem(key, f"{key} is a section, not a key", f"for example {first}")
    return Problem(key, f"there is no key {key}", near_hint(key))


def near_hint(key: str) -> str:
    """What to do about a key that nobody knows."""
    near = nearest_key(key)
    return f"did you mean {near}?" if near else "python -m trainer.main_ppo --print-config shows every key there is"


def _known() -> list[str]:
    return [*tree.all_keys(), *renamed_keys(), *inert_keys(), *(name for name in SEARCH_R1_ONLY if "*" not in name)]


def nearest_key(key: str) -> str:
    """The key of any release that `key` was probably meant to be, or nothing."""
    return _nearest(key, _known())


def _nearest(key: str, known: Sequence[str]) -> str:
    """The known key most like `key`: one that ends so, one with its last part in another section, any that is close."""
    endings = [name for name in known if name.endswith(f".{key}")]
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    likely = endings or same_name
    near = difflib.get_close_matches(key, likely or known, n=1, cutoff=0.0 if likely else 0.5)
    return near[0] if near else ""
