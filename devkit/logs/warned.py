"""Warnings of the program's own lines, and numpy's of its numbers. A number that is none is often told of there first,
in another process. Pure.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from devkit.debug.inworker.hub_place import DRIVER_NOTES
from devkit.debug.inworker.identity import DRIVER
from devkit.debug.naming import is_library
from devkit.logs.collect import LogFile, writer

# Of versions, and of what is tidied up later: nothing in them goes wrong now.
_HARMLESS = ("Deprecation", "PendingDeprecation", "Future", "Resource", "Import", "Syntax", "Encoding")
# What a library's warning means in a Ray job, by how it begins.
_EXPLAINED = {
    "The given NumPy array is not writable": (
        "as what ray.get gives: larger ones lie in Ray's object store, and what writes to a tensor that shares their "
        "memory, an optimizer too, changes them in every process of the node that has them; copy it first"
    ),
}
_WARNING = re.compile(
    r"^(?P<file>[^\s:][^\n:]{0,500}\.py):(?P<line>\d{1,7}): (?P<kind>\w{0,80}Warning): (?P<said>[^\n]{1,2000})$",
    re.MULTILINE,
)
OURS = "DevkitWarning"  # which are one sentence, whole
_OURS = re.compile(r"^devkit: ([^\n]{1,2000})$", re.MULTILINE)


class Warned(NamedTuple):
    """One warning, and who gave it."""

    kind: str  # "UserWarning"; empty: devkit's own word of the whole run, without a line
    said: str
    file: str
    line: int
    roles: tuple[str, ...]  # of the processes: "AdvantageWorker pid 5176"


def warned(files: Iterable[LogFile]) -> list[Warned]:
    """Each of them once, those of most processes first.

    Python itself says the same of the same line only once in a process.
    """
    found: dict[tuple[str, str, str, int], Counter[str]] = {}
    for file in files:
        role, pid = writer(file)
        who = f"{role or 'a worker'}{f' pid {pid}' if pid else ''}"
        for each in _in(file.text):
            found.setdefault(each, Counter())
            if not (each[0] == OURS and role == DRIVER):  # which tells what others have counted
                found[each][who] += 1
        for each in _OURS.findall(file.text) if os.path.basename(file.name).startswith(DRIVER_NOTES) else ():
            found.setdefault(("", each, "", 0), Counter())["driver"] += 1
    most = sorted(found.items(), key=lambda one: -max(1, len(one[1])))
    return [Warned(*each, tuple(roles)) for each, roles in most]


def explained(said: str) -> str:
    """What a warning means for a Ray program; "" of most.

    >>> explained("The given NumPy array is not writable, and PyTorch does")[:20], explained("std(): degrees")
    ('as what ray.get give', '')
    """
    return next((why for begins, why in _EXPLAINED.items() if said.startswith(begins)), "")


def _in(text: str) -> Iterator[tuple[str, str, str, int]]:
    """(kind, what was said, file, line).

    >>> list(_in("/a/gae.py:38: UserWarning: std(): degrees of freedom is <= 0.\\n  adv = r / r.std()\\n"))
    [('UserWarning', 'std(): degrees of freedom is <= 0.', '/a/gae.py', 38)]
    >>> list(_in("/a/gae.py:3: FutureWarning: pass weights_only\\n/v/site-packages/x.py:3: UserWarning: later\\n"))
    []
    >>> list(_in("/v/site-packages/numpy/_core/_methods.py:211: RuntimeWarning: invalid value in divide\\n"))
    [('RuntimeWarning', 'invalid value in divide', '/v/site-packages/numpy/_core/_methods.py', 211)]
    """
    for each in _WARNING.finditer(text):
        harmless = each["kind"].startswith(_HARMLESS)
        of_numbers = each["kind"] == "RuntimeWarning" and "/numpy/" in each["file"]  # its own line: not the caller's
        if of_numbers or (not harmless and not is_library(each["file"])):
            yield each["kind"], each["said"], each["file"], int(each["line"])


__all__ = ["Warned", "explained", "warned"]
