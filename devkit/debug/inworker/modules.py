"""What a torch module consists of: names and shapes of its parameters, as `named_parameters` gives them.

Read from the dictionaries in which torch keeps them, so that no code of the program's runs, nothing is fetched from a
device, and no other rank is asked: a shape is known without the numbers. Of layers alike one stands for all.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from .insides import attributes, type_name

MOST = 2000  # parameters that are counted
KINDS = 60  # different ones that are passed on
FIRST, LAST = 2, 1  # that are shown
TIES = 2
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer
# Where a wrapper of torch's keeps the module that it wraps.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_FLAT = "_flat_param"
_INNER = re.compile(r"(?<![^.])_(?:orig_mod|fsdp_wrapped_module|checkpoint_wrapped_module)\.")

Document = dict[str, Any]


class _Parameters(NamedTuple):
    """Of a module, as far as they were counted."""

    named: list[tuple[str, str]]  # (name, shape)
    tied: dict[str, str]  # further names of the same: "lm_head.weight" -> "embed.weight"
    more: bool  # there are more


def text(value: Any) -> str | None:
    """In one line: how many parameters it has, and the first and the last ones; None for what is no such module."""
    if not is_module(value):
        return None
    title, known = _title(value), _parameters(_unwrapped(value))
    if not known.named:
        return None if _is_torchs(value) else f"{title} without parameters"
    plain = Counter(_plain(*each) for each in known.named)
    kinds = list(dict.fromkeys(_said(*each, plain[_plain(*each)]) for each in known.named))
    shown = kinds if len(kinds) <= FIRST + LAST + 1 else [*kinds[:FIRST], "...", *kinds[-LAST:]]
    ties = [f"{name} is {first}" for name, first in islice(known.tied.items(), TIES)]
    ties += [f"{len(known.tied) - TIES} more are tied"] if len(known.tied) > TIES else []
    of = (
        f"more than {MOST} parameters" if known.more else f"{len(known.named)} parameter{'s' * (len(known.named) != 1)}"
    )
    beside = f" ({', '.join(ties)})" if ties else ""
    return f"{title} of {of}{beside}: {', '.join(shown)}"


def consists_of(value: Any) -> Document | None:
    """{"class", "parameters": {"layers.*.weight [16, 16]": how many}, "tied": {name: the first name}}; None for what is
    no such module, and for one of which not all could be told, as where FSDP has made one of many.
    """
    known = _parameters(inner := _unwrapped(value)) if is_module(value) else None
    if known is None:
        return None
    kinds = Counter(_plain(*each) for each in known.named)
    is_flat = any(name.rpartition(".")[2] == _FLAT for name, _ in known.named)
    if known.more or is_flat or len(kinds) > KINDS or len(known.tied) > KINDS:
        return None
    return {"class": type_name(_class(inner)), "parameters": dict(kinds), "tied": known.tied}


def is_module(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch.nn"), "Module", None)
    return kind is not None and issubclass(type(value), kind) and _group(value, "_modules") is not None


def _group(module: Any, name: str) -> list[tuple[str, Any]] | None:
    """What a module keeps of one kind; None of one that keeps them elsewhere, as a scripted one does."""
    own = object.__getattribute__(module, "__dict__").get(name)
    return [(str(key), each) for key, each in list(dict.items(own))] if isinstance(own, dict) else None


def _unwrapped(value: Any) -> Any:
    while (inner := _wrapped(value)) is not None:
        value = inner
    return value


def _wrapped(value: Any) -> Any:
    """What a wrapper of torch's has inside, as DistributedDataParallel."""
    inside = _group(value, "_modules") or []
    only = inside[0][1] if _is_torchs(value) and len(inside) == 1 and inside[0][0] in _WRAPPED else None
    return only if only is not None and is_module(only) else None


def _class(value: Any) -> type:
    """Without what `fully_shard` makes of it."""
    bases = type(value).__bases__
    return bases[1] if len(bases) == 2 and type_name(bases[0]) == "FSDPModule" else type(value)


def _is_torchs(value: Any) -> bool:
    return str(_class(value).__module__).partition(".")[0] == "torch"


def _title(value: Any) -> str:
    inner = _wrapped(value)
    return type_name(_class(value)) + (f"({_title(inner)})" if inner is not None else "")


def _parameters(module: Any) -> _Parameters:
    """As `named_parameters` gives them: a tied one once, in torch's order."""
    named: list[tuple[str, str]] = []
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, parameter in _walk(module):
        if len(named) >= MOST:
            return _Parameters(named, tied, more=True)
        if (first := names.setdefault(id(parameter), name)) == name:
            named.append((name, _shape(parameter)))
        else:
            tied[name] = first
    return _Parameters(named, tied, more=False)


def _walk(module: Any) -> Iterator[tuple[str, Any]]:
    """(name, parameter), by each name; what is inside of a module that comes a second time not again."""
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        prefix, each = waiting.pop()
        for name, parameter in _group(each, "_parameters") or ():
            if parameter is not None:
                yield _INNER.sub("", prefix + name), parameter
        if id(each) not in seen:
            seen.add(id(each))
            inside = _group(each, "_modules") or []
            waiting += [(f"{prefix}{name}.", inner) for name, inner in reversed(inside) if inner is not None]


def _plain(name: str, shape: str) -> str:
    """The same for layers alike.

    >>> _plain("layers.11.up.weight", "[8, 4]"), _plain("fc1.weight", "[4]")
    ('layers.*.up.weight [8, 4]', 'fc1.weight [4]')
    """
    return f"{_NUMBER.sub('*', name)} {shape}"


def _said(name: str, shape: str, count: int) -> str:
    return f"{name} {shape}" if count == 1 else f"{_plain(name, shape)} x{count}"


def _shape(parameter: Any) -> str:
    """Without asking a subclass of somebody else's make. Of a sharded one it is what this rank's object says."""
    torch: Any = sys.modules["torch"]
    kind = type(parameter)
    own = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or _is_torchs(parameter)
    try:
        with torch._C.DisableTorchFunction():
            sizes = ", ".join(str(int(size)) for size in parameter.shape) if own else None
            meta = " meta" if own and parameter.is_meta else ""
    except Exception:  # noqa: BLE001 - a lazy one has no shape yet
        return "(no shape yet)"
    return f"[{sizes}]{meta}" if sizes is not None else f"({type_name(kind)})"


def of_attributes(owner: Any, most: int) -> Document:
    """{name: as `consists_of`} of the modules that an object keeps in itself."""
    from .redaction import scrub

    found: Document = {}
    for name, value in attributes(owner):
        known = consists_of(value) if len(found) < most and not name.startswith("__") else None
        if known is not None:
            parts = {scrub(kind): count for kind, count in known["parameters"].items()}
            tied = {scrub(name): scrub(first) for name, first in known["tied"].items()}
            found[name] = {**known, "parameters": parts, "tied": tied}
    return found


__all__ = ["consists_of", "is_module", "of_attributes", "text"]
