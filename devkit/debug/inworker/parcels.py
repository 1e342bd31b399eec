"""What was being unpickled when that failed: which classes' objects it has in it. Nothing of it is run."""

from __future__ import annotations

import os
import pickletools
from collections.abc import Iterator
from typing import Any

from .arrivals import errors_of
from .lineage import places_of

LONGEST = 4_000_000  # bytes that are looked through
MOST = 6  # classes
_RAYS = os.path.join("ray", "_private", "serialization.py")
_PARCEL = "in_band"  # Ray's name for the pickle, without its arrays
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_LIBRARIES = ("numpy.", "torch.", "ray.", "builtins.", "copyreg.", "collections.", "cloudpickle.", "_codecs.")


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
    """`module.name` of the classes and functions that are looked up, in the order in which they are."""
    texts: list[str] = []  # that were put on the stack
    memo: list[str | None] = []
    top: str | None = None  # of the stack, if it is a text
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name == "MEMOIZE":
                memo.append(top)
                continue
            if code.name == "GLOBAL":
                yield str(argument).replace(" ", ".")
            elif code.name == "STACK_GLOBAL" and len(texts) > 1:
                yield f"{texts[-2]}.{texts[-1]}"
            top = str(argument) if code.name in _TEXTS else memo[argument] if code.name in _GETS else None
            texts += [top] if top is not None else []
    except Exception:  # noqa: BLE001 - a pickle that is no pickle: what was seen of it is told
        return


__all__ = ["classes_in", "named_in"]
