"""What Ray says at length, in one sentence: an exception as it is listed and headed. Pure.

The whole text stays in the snapshot; `devkit crashes show --all` has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNPICKLED = re.compile(r"(Could not serialize the [^\n]{1,300}?):\n.*?FAIL serialization: ([^\n]{1,300})", re.DOTALL)


@dataclass(frozen=True)
class Brief:
    """An exception in few words."""

    type: str
    message: str

    @property
    def said(self) -> str:
        """In one line.

        >>> Brief("ValueError", "no such\\n  word").said, Brief("KeyError", "").said
        ('ValueError: no such word', 'KeyError')
        """
        message = " ".join(self.message.split())
        return f"{self.type}: {message}" if message else self.type


def brief(kind: str, message: str) -> Brief:
    """Of whatever is not known here, what was given.

    >>> brief("ValueError", "no")
    Brief(type='ValueError', message='no')
    """
    if found := _UNPICKLED.search(message):
        return Brief(kind, f"{found[1]}: {found[2]}")
    return Brief(kind, message)
