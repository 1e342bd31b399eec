"""Overrides in Hydra's grammar: `key=value`, `+key=value`, `++key=value`, `~key`, parsed and formatted.

`parse` and `format_override` are pure and undo each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException

from trainer.config.problems import Problem

Operator = Literal["", "+", "++", "~"]

_OPERATORS: dict[OverrideType, Operator] = {
    OverrideType.CHANGE: "",
    OverrideType.ADD: "+",
    OverrideType.FORCE_ADD: "++",
    OverrideType.DEL: "~",
}
DEEPEST = 40  # brackets in brackets; a value of the schema has one or two
_BARE = re.compile(r"[A-Za-z_/.][\w/.@%+-]*(:[\w/.@%+-]+)*", re.ASCII)
_NOT_TEXT = re.compile(r"true|false|null|[-+]?(inf|nan|\.?\d.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Override:
    """One override.

    >>> parse(["+trainer.logger=[console]"])[0]
    [Override(operator='+', key='trainer.logger', value=['console'])]
    """

    operator: Operator
    key: str
    value: Any  # None | bool | int | float | str, or lists and dicts of them

    @property
    def spelling(self) -> str:
        """The key as the user wrote it: `+trainer.val_only`."""
        return f"{self.operator}{self.key}"


def parse(texts: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides among `texts`, in order, and one problem for each text that is none."""
    parser = OverridesParser.create()
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            _require_depth(text)
            overrides.append(_convert(parser.parse_override(text)))
        except _NotOverride as error:
            problems.append(Problem(text.partition("=")[0].lstrip("+~"), f"{text}: {error}", error.hint))
        except HydraException as error:
            problems.append(_grammar_problem(text, str(error)))
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
            key, shown = text.partition("=")[0].lstrip("+~"), " ".join(text[:80].split())
            message = f"{shown}...: cannot be read ({str(error).splitlines()[0]})"
            problems.append(Problem(key, message, "write a shorter value"))
    return overrides, problems


def _require_depth(text: str) -> None:
    """Raises ValueError for what would keep the parser busy until it gives up."""
    steps = (1 if char in "[{(" else -1 for char in text if char in "[{()}]")
    if max(accumulate(steps), default=0) > DEEPEST:
        raise ValueError(f"more than {DEEPEST} nested brackets")


class _NotOverride(Exception):
    """Grammatical, but of no use to a single run. Ends in a `Problem`."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _convert(parsed: HydraOverride) -> Override:
    key = parsed.key_or_group
    if parsed.is_sweep_override():
        raise _NotOverride(
            "a sweep: one command is one run", f"a list is written {key}=[...], a text with commas '{key}=\"...\"'"
        )
    if parsed.package is not None or "/" in key:
        raise _NotOverride("config groups are not part of this trainer", "give each value as section.key=value")
    if not key:
        raise _NotOverride("there is no key before the =", "write section.key=value")
    operator = _OPERATORS[parsed.type] if parsed.type is not None else ""
    return Override(operator, key, None if operator == "~" else parsed.value())


def _grammar_problem(text: str, said: str) -> Problem:
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    if text.startswith("-"):
        return Problem(name, f"{text} is not an option of this command", "an override is written section.key=value")
    if not equals:
        return Problem(name, f"{text} is not an override", f"write {text}=VALUE")
    reason = said.strip().splitlines()[0] if said.strip() else "not in Hydra's grammar"
    quoted = value.replace("'", "\\'")
    return Problem(name, f"{text}: cannot be read ({reason})", f"quote the value: \"{key}='{quoted}'\"")


def format_override(override: Override) -> str:
    """The text that `parse` reads as `override`.

    >>> format_override(Override("+", "trainer.logger", ["console", "a b"]))
    "+trainer.logger=[console,'a b']"
    """
    return override.spelling if override.operator == "~" else f"{override.spelling}={format_value(override.value)}"


def format_value(value: Any) -> str:
    """A value in Hydra's grammar.

    >>> format_value([None, True, 1e-6, "1", "it's"])
    "[null,True,1e-06,'1','it\\\\'s']"
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) and not _NOT_TEXT.fullmatch(value) else _quote(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{format_value(k)}:{format_value(v)}" for k, v in value.items()) + "}"
    assert isinstance(value, Sequence), f"no such value in Hydra's grammar: {value!r}"
    return "[" + ",".join(format_value(item) for item in value) + "]"


def _quote(text: str) -> str:
    # Backslashes count only before a quote: there, and at the end, each is doubled.
    escaped = re.sub(r"(\\*)'", lambda match: match.group(1) * 2 + "\\'", text)
    return "'" + re.sub(r"(\\+)\Z", lambda match: match.group(1) * 2, escaped) + "'"
