"""Which version of a package a process has: found out where one has failed, for what it may have failed by.

Only the folder that a module is from is looked at: all that is installed takes long, and may be of other folders.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .identity import WORKER

if TYPE_CHECKING:
    from importlib.metadata import Distribution

MOST = 12  # packages that are looked at
MOST_TOLD = 8  # of one crash
PYTHON = "Python"
# A package's files are read as they are: damaged ones are as good as none.
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)
_NOT_ASKED = frozenset({*sys.stdlib_module_names, "", "__main__", "__mp_main__", "devkit", "devkit_inworker", "ray"})

Document = dict[str, Any]


def of_modules(names: Iterable[str]) -> dict[str, Document]:
    """{key: {"package", "version", "own"} or {"missing": true}} of the packages that these modules belong to.

    A key is a module's top-level name, or the two first parts of one in a namespace that several packages share. `own`
    is the module's own `__version__`, which may be written in another way. What has no version is left out.
    """
    keys = [key for key in dict.fromkeys(map(_key, names)) if key.partition(".")[0] not in _NOT_ASKED][:MOST]
    return {key: found for key in keys if (found := _facts(key))}


def _key(name: str) -> str:
    top, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return f"{top}.{second}" if second and _file(top) is None and _paths(top) else top


def _facts(key: str) -> Document:
    folders = _folders(key)
    if folders is None:
        return {}
    if not folders:
        return {"missing": True}
    package, version = _distribution(key, folders[0])
    own = _of_module(key, "__version__")
    found = {"package": package or key, "version": version, "own": own if isinstance(own, str) else ""}
    return found if found["version"] or found["own"] else {}


# ---- where a module is


def _folders(key: str) -> list[str] | None:
    """Those that it is imported from, the first one first; none: it is missing; None: nobody can tell."""
    top, _, second = key.partition(".")
    file, paths = _file(top), _paths(top)
    if file is not None:
        folder, name = os.path.split(file)
        return [os.path.dirname(folder) if name.startswith("__init__.") else folder] if os.path.isabs(file) else None
    if paths:
        inside = [path for path in paths if _has(path, second)] if second else None
        return None if inside is None else [os.path.dirname(path) for path in inside]
    return None if top in sys.modules or _spec(top) is not None else []


def _file(top: str) -> str | None:
    if top in sys.modules:
        file = _of_module(top, "__file__")
    else:
        spec = _spec(top)
        file = spec.origin if spec is not None and spec.has_location else None
    return file if isinstance(file, str) else None


def _paths(top: str) -> list[str]:
    """The folders of a package."""
    if top in sys.modules:
        paths: Any = _of_module(top, "__path__")
    else:
        spec = _spec(top)
        paths = spec.submodule_search_locations if spec is not None else None
    with suppress(*DAMAGED):
        return [each for each in paths or () if isinstance(each, str)]
    return []


def _of_module(name: str, attribute: str) -> Any:
    """Without the module's own `__getattr__`, which may do anything."""
    module = sys.modules.get(name)
    return vars(module).get(attribute) if isinstance(module, ModuleType) else None


def _spec(top: str) -> Any:
    with suppress(ImportError, *DAMAGED):
        return importlib.util.find_spec(top)
    return None


def _has(folder: str, name: str) -> bool:
    with suppress(OSError):
        return any(each.partition(".")[0] == name for each in os.listdir(folder))
    return False


# ---- what it is of


@functools.cache
def _distribution(key: str, folder: str) -> tuple[str, str]:
    """The name and version of what has put it into that folder; empty: nothing has, or more than one."""
    from importlib.metadata import distributions

    likely = distributions(name=key.replace(".", "-"), path=[folder])  # what most are called; the others take longer
    for candidates in (likely, distributions(path=[folder])):
        found = {named for each in candidates if _provides(each, key) and (named := _named(each)) is not None}
        if found:
            return next(iter(found)) if len(found) == 1 else ("", "")
    return "", ""


def _provides(distribution: Distribution, key: str) -> bool:
    with suppress(*DAMAGED):
        tops = distribution.read_text("top_level.txt")
        if tops and "." not in key:
            return key in tops.split()
        record, prefix = distribution.read_text("RECORD") or "", key.replace(".", "/")
        return any(f"\n{prefix}{end}" in f"\n{record}" for end in ("/", "."))
    return False


def _named(distribution: Distribution) -> tuple[str, str] | None:
    with suppress(*DAMAGED):
        name, version = distribution.metadata["Name"], distribution.version
        return (name, version) if isinstance(name, str) and isinstance(version, str) else None
    return None


# ---- which differ


def differing(here: Document, there: Document, whose: str) -> Iterator[Document]:
    """{"package", "here", "there", "whose"} where both versions are known; `here` is null where it is missing.

    >>> numpy, newer = ({"package": "numpy", "version": each, "own": each} for each in ("1.26.4", "2.1.0"))
    >>> list(differing({"numpy": numpy}, {"numpy": newer}, "driver"))
    [{'package': 'numpy', 'here': '1.26.4', 'there': '2.1.0', 'whose': 'driver'}]
    >>> list(differing({"numpy": numpy}, {"numpy": numpy}, "driver")), list(differing({"numpy": numpy}, {}, "driver"))
    ([], [])
    """
    for key, own in here.items():
        other = there.get(key)
        if not isinstance(other, dict):
            continue
        both = next((pair for each in ("version", "own") if (pair := _pair(own, other, each))), None)
        if both and both[0] != both[1]:
            yield {"package": str(other.get("package") or key), "here": both[0], "there": both[1], "whose": whose}


def _pair(own: Document, other: Document, which: str) -> tuple[str | None, str] | None:
    """Both versions, said in the same way."""
    mine, others = None if own.get("missing") else own.get(which), other.get(which)
    return (mine, others) if mine != "" and isinstance(others, str) and others else None


def other_python(here: str, there: str, whose: str) -> Iterator[Document]:
    """Where bytecode of the one is not bytecode of the other.

    >>> [each["there"] for each in other_python("3.11.7", "3.12.1", "driver")]
    ['3.12.1']
    >>> list(other_python("3.11.7", "3.11.9", "driver"))
    []
    """
    minors = [each.split(".")[:2] for each in (here, there)]
    if here and there and minors[0] != minors[1]:
        yield {"package": PYTHON, "here": here, "there": there, "whose": whose}


def once(versions: Iterable[Document]) -> list[Document]:
    """Each version once, with one of those that have it: an actor or a task sooner than a process between two tasks.

    >>> numpy = {"package": "numpy", "here": "2.1.0", "there": "1.26.4"}
    >>> [each["whose"] for each in once([{**numpy, "whose": "worker"}, {**numpy, "whose": "Reader"}])]
    ['Reader']
    """
    known: dict[tuple[str, str], Document] = {}
    for each in sorted(versions, key=lambda each: each["whose"] == WORKER):
        known.setdefault((each["package"], each["there"]), each)
    return list(known.values())[:MOST_TOLD]
