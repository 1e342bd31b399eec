"""How ranks, files and times are called when a person reads them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where Ray unpacks a job's code; the part with the hash says nothing to its author.
UNPACKED = re.compile(r"^.*/(?:working_dir_files|py_modules_files)/_ray_pkg_[0-9a-f]+/")
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
CYTHON = re.compile(r"[^/].*/[^/]+\.p(?:yx|xi)$")  # as Cython wrote it down where a package was built
TRAINER = re.compile(r"^.*/(?:site|dist)-packages/trainer/")
INSIDE = re.compile(r"(^|/)devkit_inworker/")  # what devkit puts into the program's processes
STANDARD = re.compile(r"^.*/lib(?:64)?/python3\.\d+/(?!site-packages/|dist-packages/)")
MINUTE, HOUR, DAY = 60, 3600, 86400


@dataclass(frozen=True, order=True)
class Who:
    """One participant: its role and rank as the program has them, and an id that is its own."""

    role: str
    rank: int | None
    id: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Who:
        rank = document.get("rank")
        return cls(str(document.get("role") or ""), rank if isinstance(rank, int) else None, str(document["id"]))


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks as a person writes them.

    >>> rank_list([5, 0, 1, 2])
    '0-2,5'
    >>> rank_list([0, 1])
    '0,1'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def label(who: Who) -> str:
    """One participant in a column.

    >>> label(Who("Worker", 1, "s1")), label(Who("driver", None, "s2"))
    ('Worker[1]', 'driver')
    """
    role = who.role or "worker"
    return role if who.rank is None else f"{role}[{who.rank}]"


def name_members(members: Iterable[Who], among: Iterable[Who] = ()) -> str:
    """Names for some of `among`, as short as can be while nobody else is meant.

    >>> workers = [Who("Worker", rank, f"s{rank}") for rank in range(4)]
    >>> name_members(workers[:3], workers), name_members(workers[3:], workers)
    ('ranks 0-2', 'rank 3')
    >>> name_members([Who("Actor", 0, "a"), Who("Critic", 0, "c"), Who("f", None, "d")])
    'Actor rank 0; Critic rank 0; f d'
    """
    members = sorted(set(members), key=_order)
    everyone = set(among) | set(members)
    one_role = len({who.role for who in everyone}) == 1
    counted = Counter((who.role, who.rank) for who in everyone)
    plain = [who for who in members if who.rank is not None and counted[who.role, who.rank] == 1]
    others = [who for who in members if who not in plain]
    parts = []
    for role in dict.fromkeys(who.role for who in plain):
        ranks = [who.rank for who in plain if who.role == role and who.rank is not None]
        word = f"rank{'s' * (len(ranks) > 1)} {rank_list(ranks)}"
        parts.append(word if one_role or role.lower() in ("", "rank") else f"{role} {word}")
    return "; ".join(parts + [_single(who, counted[who.role, who.rank]) for who in others])


def _single(who: Who, count: int) -> str:
    if who.rank is not None or " pid " in who.role:  # of a child of that process
        return f"{label(who)}{',' * (' pid ' in who.role)} {who.id}"
    return label(who) if count == 1 and who.role == "driver" else f"{label(who)} {who.id}"


def _order(who: Who) -> tuple[str, int, str]:
    return who.role, -1 if who.rank is None else who.rank, who.id


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "crash"), count(2, "crash"), count(0, "worker")
    ('1 crash', '2 crashes', '0 workers')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'sh', 'ch')) else 's'}"


def several(number: int, role: str) -> str:
    """So many of a role, which is a name and has no plural of its own.

    >>> several(2, "Engine"), several(4, "task load"), several(2, "child of Engine pid 7"), several(2, "Policy")
    ('2 Engines', '4 tasks load', '2 children of Engine pid 7', '2 x Policy')
    """
    for one, many in (("task ", "tasks "), ("child ", "children ")):
        if role.startswith(one):
            return f"{number} {many}{role.removeprefix(one)}"
    return f"{number} x {role}" if role.endswith(("s", "x", "z", "y", "h", "_")) else f"{number} {role}s"


def size(number: int) -> str:
    """Bytes to two or three figures.

    >>> size(300), size(187 << 20), size(3 << 29)
    ('0 MiB', '187 MiB', '1.5 GiB')
    """
    return f"{number / 2**30:.1f} GiB" if number >= 1 << 30 else f"{number >> 20} MiB"


def ago(seconds: float) -> str:
    """A span of time to two figures at most.

    >>> ago(12.3), ago(200), ago(7500), ago(200_000), ago(-1)
    ('12 s', '3 min', '2 h 5 min', '2 d 7 h', '0 s')
    """
    whole = max(0, int(seconds))
    if whole < 2 * MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


_PLACE = re.compile(r"(?<![\w./])/[^\s:'\"]{1,300}\.py(?=:\d)")


def short_path(path: str, cwd: str | None = None) -> str:
    """A file as the reader knows it: below the working folder, below a package, below home, else in full.

    >>> short_path("/home/a/job/train.py", "/home/a/job")
    'train.py'
    >>> short_path("/tmp/ray/s/runtime_resources/working_dir_files/_ray_pkg_0f3a/pkg/m.py")
    'pkg/m.py'
    >>> short_path("/v/lib/python3.11/site-packages/torch/nn/modules/module.py")
    'torch/nn/modules/module.py'
    >>> short_path("/srv/train.py", "/")
    '/srv/train.py'
    """
    here = (os.getcwd() if cwd is None else cwd).rstrip("/")
    if here and path.startswith(here + "/"):
        path = path[len(here) + 1 :]
    for prefix in (UNPACKED, INSTALLED, STANDARD):
        path = prefix.sub("", path)
    home = str(Path.home()).rstrip("/")
    return "~" + path[len(home) :] if home and path.startswith(home + "/") else path


def short_places(text: str, cwd: str | None = None) -> str:
    """The same of each FILE:LINE in a text.

    >>> short_places("killed by the driver at /home/a/job/train.py:49 in fit; put at /srv/x.py:1", "/home/a/job")
    'killed by the driver at train.py:49 in fit; put at /srv/x.py:1'
    >>> short_places("raised at /home/a/my job/train.py:49", "/home/a/my job")
    'raised at train.py:49'
    """
    here = (os.getcwd() if cwd is None else cwd).rstrip("/")
    if " " in here:  # what ends there can't be told from the text, but what begins so is known
        text = text.replace(f"{here}/", "")
    return _PLACE.sub(lambda found: short_path(found[0], cwd), text)


def fit_path(path: str, width: int) -> str:
    """The end of a path, which tells most, in `width` columns.

    >>> fit_path("trainer/workers/ppo.py:88", 16)
    '…rkers/ppo.py:88'
    """
    return path if len(path) <= width else "…" + path[len(path) - max(1, width - 1) :]


def is_library(path: str) -> bool:
    """Whether a file came with an installation and isn't the user's own. Our trainer is the program, also installed.

    >>> is_library("/v/lib/python3.11/site-packages/torch/nn/functional.py"), is_library("<frozen runpy>")
    (True, True)
    >>> is_library("/home/a/train.py"), is_library("/v/lib/python3.11/site-packages/trainer/roles.py")
    (False, False)
    >>> is_library("/home/a/.cache/devkit/0a1b/devkit_inworker/lookups.py"), is_library("python/ray/_raylet.pyx")
    (True, True)
    """
    if TRAINER.match(path):
        return False
    if CYTHON.match(path):
        return True
    if path.startswith("<"):
        return not path.startswith(("<stdin>", "<ipython", "<string>"))
    return bool(INSTALLED.match(path) or STANDARD.match(path) or INSIDE.search(path))


def nearest(wanted: str, known: Sequence[str], most: int = 3) -> list[str]:
    """The known names that `wanted` was most likely meant to be."""
    from difflib import get_close_matches

    return get_close_matches(wanted, known, n=most, cutoff=0.4) or list(known[:most])
