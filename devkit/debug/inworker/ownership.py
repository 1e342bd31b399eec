"""Whose an object was that is lost with its owner, and where a process puts its objects: Ray keeps neither."""

from __future__ import annotations

import functools
import importlib
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from .lineage import chain_of
from .passing import unframed
from .shortly import ID
from .stacks import users_lines

LOST = " is lost with its owner"
OWNER_DIED = "OwnerDiedError"
TASK, INDEX = 48, 56  # digits of an object's id: those of its task, then its number among that one's objects
ACTOR, NO_ACTOR = 16, "f" * 24  # where the actor's id begins in that of its task; of a task that is no call, with what
FIRST_PUT = 100_000_000  # Ray's numbers of what `ray.put` makes are above this; below are results
MOST_SITES, MOST_OBJECTS = 5, 20  # that are told

Document = dict[str, Any]
Site = tuple[str, int, str]  # file, line, function

_MARK = "__devkit_puts__"
_sites: dict[Site, deque[str]] = {}


# ---- in the process that asks for it


def lost(error: BaseException) -> Document | None:
    """{"object", "owner", "node"}, by their ids, of an error that tells of an owner's end; None of any other."""
    for _, each in chain_of(error):
        own = getattr(each, "cause", None) if type(each).__name__.startswith("RayTaskError") else each
        if type(own).__name__ == OWNER_DIED:
            worker_id, node_id = _owner_of(own)
            return {"object": str(getattr(own, "object_ref_hex", "")), "owner": worker_id, "node": node_id}
    return None


def _owner_of(error: Any) -> tuple[str, str]:
    """The ids of the worker and of its node."""
    try:
        address = importlib.import_module("ray.core.generated.common_pb2").Address.FromString(error.owner_address)
        return str(address.worker_id.hex()), str(address.node_id.hex())
    except Exception:  # noqa: BLE001 - another Ray's: then its owner is not known
        return "", ""


def _shown(name: str) -> str:
    """An object's id as its references are shown; what a task has put differs in the number alone.

    >>> _shown("00668a65bda616c13375d36a50cd3f90f6e1c7650100000002e1f505")
    '00668a65bda6 #100000002'
    """
    try:
        return f"{name[:ID]} #{int.from_bytes(bytes.fromhex(name[TASK:INDEX]), 'little')}"
    except ValueError:
        return name


def is_put(name: str) -> bool:
    """Whether an object comes from `ray.put`, and not from a task.

    >>> is_put("00668a65bda616c13375d36a50cd3f90f6e1c7650100000002e1f505"), is_put("f" * 48 + "01000000")
    (True, False)
    """
    try:
        return int.from_bytes(bytes.fromhex(name[TASK:INDEX]), "little") > FIRST_PUT
    except ValueError:
        return False


def actor_of(name: str) -> str:
    """The id of the actor in one of whose calls an object was made, or "": it is in the object's own.

    >>> actor_of("00668a65bda616c13375d36a50cd3f90f6e1c7650100000002e1f505"), actor_of("f" * 48 + "01000000")
    ('3375d36a50cd3f90f6e1c76501000000', '')
    """
    found = name[ACTOR:TASK]
    return "" if found.startswith(NO_ACTOR) else found


# ---- in its owner


def watch(module: Any, on_new: Callable[[], object]) -> None:
    """Notes where `ray.put` is called. Calls back at each new place. `module` is `ray._private.worker`."""
    for holder in (module, sys.modules.get("ray")):
        original = getattr(holder, "put", None)
        if original is not None and not hasattr(original, _MARK):
            holder.put = _watched(original, on_new)  # type: ignore[union-attr]


def _watched(original: Callable[..., Any], on_new: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(original)
    def put(*arguments: Any, **options: Any) -> Any:
        try:
            reference = original(*arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        if options.get("_owner") is None and _note(reference.hex(), sys._getframe(1)):
            on_new()
        return reference

    setattr(put, _MARK, True)
    return put


def _note(name: str, frame: FrameType | None) -> bool:
    """Whether it is a new place."""
    at = next(users_lines(frame), None)
    if at is None:
        return False
    site = (at["file"], at["line"], at["function"])
    new = site not in _sites
    if new and len(_sites) >= MOST_SITES:
        _sites.pop(next(iter(_sites)))
    _sites.setdefault(site, deque(maxlen=MOST_OBJECTS)).append(name)
    return new


def puts() -> list[Document]:
    """[{"file", "line", "function", "objects"}], of the last ones."""
    return [
        {"file": file, "line": line, "function": function, "objects": list(names)}
        for (file, line, function), names in list(_sites.items())
    ]


# ---- in the hub


def sentence(name: str, owner: Document | None, puts: list[Document]) -> str:
    """What became of an object's owner, and where the object is from.

    Args:
        owner: {"who", "reason", "ago"}; None: nothing is known of it.
    """
    text = f"the object {_shown(name)}{LOST}"
    if owner is not None:
        text += f", {owner['who']}: {owner['reason'].rstrip('.')}"
        text += f", {owner['ago']:.1f} s before" if owner.get("ago") is not None else ""
    if not is_put(name):
        return f"{text}; it is the result of a task that its owner had called"
    site = next((each for each in puts if name in each["objects"]), puts[0] if len(puts) == 1 else None)
    if site is None:
        return f"{text}; it was put there by ray.put"
    return f"{text}; it was put at {site['file']}:{site['line']} in {site['function']}"
