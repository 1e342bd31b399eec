"""Values as JSON within a time: what takes too long is shown part by part, and of large arrays the first elements."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from types import ModuleType
from typing import Any

from .as_documents import has_texts, keyed, listed, to_json, told
from .insides import as_items, as_mapping, fields, size_of, telling, type_name
from .redaction import REDACTED, hidden_items, hidden_pairs, redact, scrub_start
from .values import Limits, summarise

# Costs are counted in elements of an array, of which some 200 are looked at in a microsecond.
MOST = 200_000  # what is shown at once, without a look at the clock
CHEAP = 60_000  # what need not wait until the others are shown
ARRAY, THING = 20_000, 2_000  # an array, or another object, however small
KEY = 200  # characters of a dictionary's key
PATIENCE = 100  # how many seconds of waiting count as one of work
SHARE = 0.3  # of the time that is left, for one value: a model must not take that of the variables after it

_SCALARS = frozenset((int, float, bool, str, type(None)))


class Clock:
    """Seconds since it was made, as this thread has worked: on a busy machine a value takes no longer for that.

    Waiting counts a little, since a device that hangs makes us wait.
    """

    def __init__(self) -> None:
        self._worked, self._began = time.thread_time(), time.perf_counter()

    def now(self) -> float:
        return max(time.thread_time() - self._worked, (time.perf_counter() - self._began) / PATIENCE)


class Showing:
    """Shows values for so many seconds; afterwards large ones by their types, and `late` counts those."""

    def __init__(self, seconds: float) -> None:
        self._clock = Clock()
        self._deadline = seconds
        self._known: dict[tuple[int, Limits], Any] = {}
        self.late = 0

    @property
    def is_over(self) -> bool:
        return self._clock.now() >= self._deadline

    def of(self, name: object, value: Any, limits: Limits) -> Any:
        """The value as JSON; a secret by its name as `<redacted>`. The same object is not looked into twice.

        All values must live as long as this object does: they are known by their `id`.
        """
        known = self._known.get((id(value), limits))
        if known is None or redact(name, value) is not value:
            now = self._clock.now()
            known = self._of(name, value, limits, now + (self._deadline - now) * SHARE)
            if redact(name, value) is value:
                self._known[id(value), limits] = known
        return known

    def _of(self, name: object, value: Any, limits: Limits, until: float) -> Any:
        shown = redact(name, value)
        if shown is not value:
            return shown
        count = elements(value)
        if self._clock.now() >= until and type(value) not in _SCALARS:
            self.late += 1
            return {"type": type_name(type(value)), "cut": "time"} if count is None else _outside_of_array(value)
        if count is not None and count > MOST:
            return _head_of_array(value, count)
        if cost(value, limits, MOST) <= MOST:
            return to_json(value, limits)
        return self._parts(value, replace(limits, depth=limits.depth - 1), until)

    def _parts(self, value: Any, limits: Limits, until: float) -> Any:
        if limits.depth < 0:
            return told(value, replace(limits, depth=0))
        named = fields(value)
        items = as_items(value, limits.items) if named is None else None
        if items is not None:
            secret = hidden_items(items, size_of(value))
            shown = [REDACTED if at in secret else self._of("", each, limits, until) for at, each in enumerate(items)]
            more = [f"... {size_of(value) - len(shown)} more"] if len(shown) < size_of(value) else []
            return listed(value, shown + more)
        mapping = as_mapping(value)
        pairs = list(dict.items(mapping)) if mapping is not None else named or telling(value)
        secret, texts = hidden_pairs(pairs[: limits.items]), has_texts(pairs[: limits.items])
        inner = {
            str_of(key) if texts else summarise(key): REDACTED if at in secret else self._of(key, each, limits, until)
            for at, (key, each) in enumerate(pairs[: limits.items])
        }
        if len(pairs) > len(inner):
            inner["..."] = f"{len(pairs) - len(inner)} more"
        if mapping is not None:
            return keyed(pairs[: limits.items], inner)
        return {"type": type_name(type(value)), "attributes": inner}


def str_of(key: object) -> str:
    return scrub_start(key, KEY) if type(key) is str else summarise(key)


def cost(value: Any, limits: Limits, most: int) -> int:
    """What `to_json` will take; counting ends a little above `most`."""
    count = elements(value)
    if count is not None:
        return ARRAY + count
    total = THING
    if limits.depth > 0:
        for each in _inside(value, limits.items):
            total += cost(each, replace(limits, depth=limits.depth - 1), most - total)
            if total > most:
                break
    return total


def _inside(value: Any, most: int) -> Iterator[Any]:
    if type(value) in _SCALARS or issubclass(type(value), ModuleType):  # a module is told by its name
        return
    mapping = as_mapping(value)
    if mapping is not None:
        yield from islice(dict.values(mapping), most)
        return
    items = as_items(value, most)
    if items is not None:
        yield from items
    elif (not isinstance(value, type) and not callable(value)) or hasattr(value, "_modules"):
        yield from (each for _, each in telling(value)[:most])


def elements(value: Any) -> int | None:
    """How many a tensor or an array has; None for anything else."""
    kind = type(value)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if tensor is not None and issubclass(kind, tensor):
        return int(tensor.numel(value))
    return int(array.size.__get__(value)) if array is not None and issubclass(kind, array) else None


def order(value: Any, limits: Limits) -> int:
    """In which order values are best shown: one of the last kind may take the time of many."""
    if cost(value, limits, CHEAP) <= CHEAP:
        return 0
    return 1 if elements(value) is not None else 2


def _outside_of_array(value: Any) -> dict[str, Any]:
    """What is known of an array without a look at its elements."""
    facts = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    is_tensor = hasattr(value, "layout")
    facts |= {"device": str(value.device)} if is_tensor else {}
    return {"tensor" if is_tensor else "array": facts | {"note": "not looked into"}}


def _head_of_array(value: Any, count: int) -> dict[str, Any]:
    """The facts of the first elements, where they can be had without a copy of all."""
    shown = _outside_of_array(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    head = None
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.layout is torch.strided and value.is_contiguous():
            head = value.detach().reshape(-1)[:MOST]
    elif numpy is not None and type(value) is numpy.ndarray and value.flags.c_contiguous:
        head = value.reshape(-1)[:MOST]
    if head is None:
        return shown
    ((kind, facts),) = to_json(head).items()
    facts.pop("hash", None)  # it would look like that of the whole
    return {kind: {**facts, "shape": shown[kind]["shape"], "note": f"of the first {MOST} of {count} elements"}}
