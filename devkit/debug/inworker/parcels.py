"""What was being unpickled when that failed: which classes' objects it has in it. Nothing of it is run."""

from __future__ import annotations

import os
import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

from .arrivals import errors_of
from .lineage import places_of

LONGEST = 4_000_000  # bytes that are looked through
MOST = 6  # classes
_RAYS = os.path.join("ray", "_private", "serialization.py")
_PARCEL = "in_band"  # Ray's name for the pickle, without its arrays
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_MAKES = "_make_skeleton_class"  # cloudpickle's function for a class that came whole: of its type, with its name
_NOTHING, _TYPE, _NAME = range(3)  # what comes next of such a class
_LIBRARIES = ("numpy.", "torch.", "ray.", "builtins.", "copyreg.", "collections.", "cloudpickle.", "_codecs.")


class _Top(NamedTuple):
    """A text on a pickle's stack, or a class or function that was found by its name."""

    text: str | None = None
    found: str = ""


def classes_in(error: BaseException) -> list[str]:
    """`Config`, `rewards.Batch`: what objects were made of, the program's own first; none: the error is another one."""
    for each in errors_of(error):
        for frame, _ in places_of(each.__traceback__):
            if frame.f_code.co_filename.endswith(_RAYS) and _PARCEL in frame.f_code.co_varnames:
                return named_in(frame.f_locals.get(_PARCEL))
    return []


def named_in(pickled: Any) -> list[str]:
    """Of a pickle's bytes; what is damaged, or no pickle, has what is named before that.

    >>> import pickle, fractions
    >>> some = [fractions.Fraction(1, 2), fractions.Decimal(1), fractions.Fraction(1, 3)]
    >>> named_in(pickle.dumps(some, 5)), named_in(b"?"), named_in(None)
    (['fractions.Fraction', 'decimal.Decimal'], [], [])
    """
    try:
        found = list(dict.fromkeys(_globals(bytes(memoryview(pickled)[:LONGEST]))))
    except TypeError:
        return []
    own = [name for name in found if not name.startswith(_LIBRARIES) and not name.startswith("ray_")]
    return [name.removeprefix("__main__.") for name in own][:MOST]


def _globals(pickled: bytes) -> Iterator[str]:
    """Names of the classes and functions that are looked up, and of the classes that are made here, in this order."""
    texts: list[str] = []  # that were put on the stack
    memo: list[_Top] = []
    top, made = _Top(), _NOTHING
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name == "MEMOIZE":
                memo.append(top)
                continue
            top = _top(code.name, argument, texts, memo)
            if top.text is not None:
                texts.append(top.text)
                if made == _NAME:
                    yield top.text
                    made = _NOTHING
            elif top.found and made == _TYPE:
                made = _NAME
            elif top.found:
                made = _TYPE if top.found.endswith(_MAKES) else made
                yield top.found
    except Exception:  # noqa: BLE001 - a pickle that is no pickle: what was seen of it is told
        return


def _top(code: str, argument: Any, texts: list[str], memo: list[_Top]) -> _Top:
    """What an instruction has put on the stack, as far as it is asked for."""
    if code in _TEXTS:
        return _Top(str(argument))
    if code in _GETS:
        return memo[int(argument)]
    if code == "STACK_GLOBAL" and len(texts) > 1:
        return _Top(None, f"{texts[-2]}.{texts[-1]}")
    return _Top(None, str(argument).replace(" ", ".") if code == "GLOBAL" else "")


__all__ = ["classes_in", "named_in"]
