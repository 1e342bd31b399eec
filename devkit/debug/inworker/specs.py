"""What a user writes to name a breakpoint: `LOCATION [@TARGET] [if EXPR]`. All of it is pure.

    trainer/ppo.py:88 @Worker[1,4:8] if step == 3
    pkg.mod:Class.method
    raise KeyError @Worker

LOCATION is `FILE:LINE`, `MODULE:QUALNAME`, or `raise TYPE`, which is wherever the program raises such an exception.
TARGET is a role (an actor's class or name; `*` and `?` match as in a shell) and ranks in Python's slice notation; each
may stand alone. EXPR is any Python expression.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .records import Identity

_TAIL = r"(?:\s+@\s*(?P<role>[^\s\[\]@]*)(?:\[(?P<ranks>[^\]]*)\])?)?(?:\s+if\b\s*(?P<condition>.*))?\s*"
_BY_NAME = re.compile(r"\s*(?P<module>[^\W\d][\w.]*):(?P<qualname>[^\W\d][\w.]*)" + _TAIL, re.DOTALL)
_BY_LINE = re.compile(r"\s*(?P<file>\S.*?):(?P<line>[0-9]+)" + _TAIL, re.DOTALL)
_BY_TYPE = re.compile(r"\s*raise\s+(?P<raises>[^\W\d][\w.]*)" + _TAIL, re.DOTALL)
_RANK = re.compile(r"([0-9]+)|([0-9]*):([0-9]*)(?::([0-9]*))?")
_HITS = re.compile(r"(>=|>|%)?([0-9]+)")
_EXAMPLE = "'trainer/ppo.py:88 @Worker[0,4:8] if step == 3', or pkg.mod:Class.method"  # quoted, for a shell
_TYPE_EXAMPLE = "'raise KeyError @Worker[0,4:8] if step == 3', with the name of a type"


class SpecError(ValueError):
    """A breakpoint that cannot be, with what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.hint))


@dataclass(frozen=True)
class Spec:
    """One breakpoint as it was written. Either `file` and `line`, or `module` and `qualname`, or `raises`."""

    file: str = ""
    line: int = 0
    module: str = ""
    qualname: str = ""
    role: str = ""
    ranks: str = ""
    condition: str = ""
    raises: str = ""

    @property
    def location(self) -> str:
        if self.raises:
            return f"raise {self.raises}"
        return f"{self.file}:{self.line}" if self.file else f"{self.module}:{self.qualname}"


def parse(text: str) -> Spec:
    """Reads a SPEC; raises `SpecError`.

    >>> parse("trainer/ppo.py:88 @Worker[1,4:8] if step == 3")
    Spec(file='trainer/ppo.py', line=88, ..., role='Worker', ranks='1,4:8', condition='step == 3', ...)
    >>> parse("pkg.mod:Class.method").qualname
    'Class.method'
    >>> parse("raise KeyError @[0]").raises
    'KeyError'
    """
    found = _BY_TYPE.fullmatch(text) or _BY_NAME.fullmatch(text) or _BY_LINE.fullmatch(text)
    if found is None:
        example = _TYPE_EXAMPLE if text.split()[:1] == ["raise"] else _EXAMPLE
        raise SpecError(f"not a valid breakpoint: {text.strip()!r}", f"use the form {example}")
    parts = {name: value or "" for name, value in found.groupdict().items()}
    if found["role"] == "" and not parts["ranks"].strip():
        raise SpecError("nothing follows @", "name a role, ranks, or both, as in 'trainer/ppo.py:88 @Worker[0:4]'")
    if found["condition"] is not None:
        check_condition(parts["condition"])
    line = int(parts.get("line", 0))
    if "file" in parts and line < 1:
        raise SpecError(f"{parts['file']} has no line {line}", "lines are counted from 1")
    return Spec(
        file=parts.get("file", ""),
        line=line,
        module=parts.get("module", ""),
        qualname=parts.get("qualname", ""),
        role=parts["role"],
        ranks=_normal_ranks(parts["ranks"]),
        condition=parts["condition"].strip(),
        raises=parts.get("raises", ""),
    )


def format(spec: Spec) -> str:  # noqa: A001  the counterpart of parse
    """Writes a SPEC that `parse` reads back.

    >>> format(Spec(file="x.py", line=3, ranks="0"))
    'x.py:3 @[0]'
    """
    ranks = f"[{spec.ranks}]" if spec.ranks else ""
    target = f" @{spec.role}{ranks}" if spec.role or ranks else ""
    return spec.location + target + (f" if {spec.condition}" if spec.condition else "")


def check_condition(condition: str) -> None:
    """Raises `SpecError` for what cannot be the condition of a breakpoint.

    >>> check_condition("step = 3")
    Traceback (most recent call last):
    ...
    devkit.debug.inworker.specs.SpecError: the condition 'step = 3' does not parse: ...
    """
    text = condition.strip()
    try:
        tree = ast.parse(text, "<condition>", "eval")
        compile(tree, "<condition>", "eval", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise SpecError(
            f"the condition {text!r} does not parse: {reason}",
            "a condition is one Python expression, such as step == 3",
        ) from None
    banned = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    for node in ast.walk(tree):
        if isinstance(node, banned):
            raise SpecError(
                f"the condition {text!r} would change the function it is in",
                "a condition takes no await, yield or :=",
            )


def check(source: str, filename: str, line: int) -> int:
    """The line of the statement that a breakpoint at `line` stands before; raises `SpecError` where there is no code.

    >>> check("x = [\\n    1,\\n]\\n", "x.py", 2)
    1
    """
    from .instrument import Mark, Source

    return Source(source, filename).sites(Mark("", line))[0].line


def rank_in(ranks: str, rank: int) -> bool:
    """Whether `rank` is one of `ranks`; empty means all.

    >>> [rank for rank in range(10) if rank_in("1,4:8:2", rank)]
    [1, 4, 6]
    """
    if not ranks.strip():
        return True
    return any(_in_item(item, rank) for item in _rank_items(ranks))


def matches_target(role: str, ranks: str, identity: Identity) -> bool:
    """Whether a process is the target of a breakpoint: its role or its actor's name, and its rank.

    >>> worker = Identity("01", "w", "n", "10.0.0.1", "a", 7, role="Worker", actor="wg_2", rank=2)
    >>> matches_target("Work*", "2:", worker), matches_target("wg_2", "", worker), matches_target("", "0", worker)
    (True, True, False)
    """
    if role and not any(fnmatchcase(name, role) for name in (identity.role, identity.actor) if name):
        return False
    if not ranks.strip():
        return True
    return identity.rank is not None and rank_in(ranks, identity.rank)


def hit_matches(hits: str, count: int) -> bool:
    """Whether the `count`-th hit (from 1) is one to stop at: "3", ">=3", ">3" or "%3"; empty means each.

    >>> [count for count in range(1, 8) if hit_matches("%3", count)]
    [3, 6]
    """
    sign, number = _hits(hits) if hits.strip() else (">=", 1)
    if sign == ">=":
        return count >= number
    if sign == ">":
        return count > number
    return count % number == 0 if sign == "%" else count == number


def check_hits(hits: str) -> None:
    """Raises `SpecError` for a hit count that cannot be."""
    if hits.strip():
        _hits(hits)


def check_log(log: str) -> None:
    """Raises `SpecError` for what a logpoint cannot print: an expression, or a text with {expressions}.

    >>> check_log("loss, k"), check_log("loss is {loss}"), check_log("{'a': 1}")
    (None, None, None)
    >>> check_log("loss +")
    Traceback (most recent call last):
    ...
    devkit.debug.inworker.specs.SpecError: --log 'loss +' does not parse: ...
    """
    problem = _problem(log) if log.strip() else ""
    parts = re.findall(r"\{([^{}]+)\}", log)
    if problem and parts:
        problem = next(filter(None, map(_problem, parts)), "")
    if problem:
        hint = 'it takes an expression, "loss, k", or a message, "loss is {loss}"'
        raise SpecError(f"--log {log!r} does not parse: {problem}", hint)


def _problem(expression: str) -> str:
    try:
        compile(expression.strip(), "<log>", "eval", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return getattr(error, "msg", None) or str(error)
    return ""


def _hits(hits: str) -> tuple[str, int]:
    found = _HITS.fullmatch("".join(hits.split()))
    if found is None or (found[1] in (None, "%") and int(found[2]) == 0):
        hint = "use 3 (the third hit), >=3, >3 or %3 (each third); a shell needs quotes around '>3'"
        raise SpecError(f"{hits!r} is not a hit count", hint)
    return found[1] or "==", int(found[2])


def check_ranks(ranks: str) -> None:
    """Raises `SpecError` for ranks that cannot be."""
    if ranks.strip():
        _rank_items(ranks)


def _normal_ranks(ranks: str) -> str:
    text = "".join(ranks.split())
    if text:
        _rank_items(text)
    return text


def _rank_items(ranks: str) -> list[re.Match[str]]:
    return [_rank_item(item) for item in "".join(ranks.split()).split(",")]


def _rank_item(item: str) -> re.Match[str]:
    found = _RANK.fullmatch(item)
    if found is None:
        hint = "negative ranks need a world size: count from 0" if "-" in item else "use ranks such as 0, 4:8 or ::2"
        raise SpecError(f"{item!r} is not a rank", hint)
    if found[4] and int(found[4]) == 0:
        raise SpecError(f"the ranks {item!r} have a step of 0", "a step is at least 1")
    return found


def _in_item(found: re.Match[str], rank: int) -> bool:
    if found[1]:
        return rank == int(found[1])
    start, step = int(found[2] or 0), int(found[4] or 1)
    return rank >= start and (not found[3] or rank < int(found[3])) and (rank - start) % step == 0
