"""What is said about a command: a `Note` informs, a `Problem` stops it, `ConfigErrors` carries all problems at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError

NoteKind = Literal["dialect", "duplicate", "renamed", "deprecated", "inert", "absent", "unmet", "risk", "here"]


@dataclass(frozen=True)
class Note:
    """Something to know about a key.

    `dialect`: another verl generation reads it otherwise; `inert`: accepted, without effect; `absent`: a part of its
    value is verl's alone; `unmet`: it asks for what changes the result and is not there, a warning (`unmet.py`);
    `risk`: it may not get what it asks for, a warning, too;
    `here`: of this command on this version, such as a model that comes from the hub.
    """

    kind: NoteKind
    key: str
    message: str


@dataclass(frozen=True)
class Problem:
    """One thing that must change before the command can run.

    `uses` names the other keys that the finding rests on: if one of them is wrong by itself, the finding is left out.
    """

    key: str
    message: str
    hint: str
    uses: tuple[str, ...] = ()


class ConfigErrors(ConfigError):
    """Every problem of a command. Print it with `show.problem_lines(error.problems)`.

    >>> str(ConfigErrors([Problem("a", "a is odd", "double it"), Problem("b", "b is odd", "double it")]))
    '2 problems: a is odd; b is odd'
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        said = "; ".join(problem.message for problem in self.problems)
        hints = dict.fromkeys(problem.hint for problem in self.problems)
        one = len(self.problems) == 1
        super().__init__(said if one else f"{len(self.problems)} problems: {said}", hint="; ".join(hints))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.problems,))


def independent(problems: Sequence[Problem], wrong_keys: Iterable[str] = ()) -> tuple[Problem, ...]:
    """`problems` without those that rest on a key which is wrong by itself, and without repetitions.

    >>> independent([Problem("n", "n is 0", "raise it"), Problem("b", "b is no multiple of n", "", uses=("n",))])
    (Problem(key='n', message='n is 0', hint='raise it', uses=()),)
    """
    wrong = set(wrong_keys) | {problem.key for problem in problems if not problem.uses}
    kept = [p for p in problems if not p.uses or not wrong.intersection((p.key, *p.uses))]
    return tuple(dict.fromkeys(kept))
