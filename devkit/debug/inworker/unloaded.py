"""A `load_state_dict` that changes nothing: with `strict=False`, of other names; or of the module's own memory.

Nothing is raised, and the weights stay what they were.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from .imports import on_import
from .line_warnings import once
from .passing import unframed

NAME = 60  # characters of a tensor's name
_MARK = "__devkit_loads__"


def watch() -> None:
    """Warns once of each line by which nothing was taken."""
    on_import("torch.nn.modules.module", lambda module: _watch(module.Module))


def _watch(kind: Any) -> None:
    original = kind.load_state_dict
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any, *arguments: Any, **options: Any) -> Any:
        told = ""
        with suppress(Exception):  # asked before: with `assign=True` they are its own after it
            told = _its_own(self, state_dict)
        try:
            result = original(self, state_dict, *arguments, **options)
        except BaseException as error:
            unframed(error)
            raise
        with suppress(Exception):  # a class of somebody's own make, which answers otherwise: it has loaded
            if told := _taken_nothing(result, state_dict) or told:
                once("load_state_dict", told, 1)
        return result

    setattr(load_state_dict, _MARK, True)
    kind.load_state_dict = load_state_dict


def _taken_nothing(result: Any, given: Any) -> str:
    missing, unexpected = list(result.missing_keys), list(result.unexpected_keys)
    if not missing or not given or len(unexpected) < len(given):
        return ""
    return (
        f"load_state_dict(strict=False) has taken none of the {len(given)} tensors: "
        f"it is given {_name(unexpected[0])}, ..., and has {_name(missing[0])}, ..."
    )


def _name(key: Any) -> str:
    return repr(str(key)[:NAME])


def _its_own(module: Any, given: Any) -> str:
    """Where all that is given is the module's own memory: what `state_dict()` gives changes as the module does.

    Of a few that were replaced in it nothing is said: those are loaded.
    """
    tables = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    own = {name: each for table in tables for name, each in table}
    if not any(name in own and own[name].numel() for name in given):
        return ""
    for name in given:
        if name not in own or (own[name].numel() and not _is_the_same(given[name], own[name])):
            return ""
    return "load_state_dict was given the module's own tensors, which changes nothing: state_dict() makes no copy"


def _is_the_same(tensor: Any, other: Any) -> bool:
    return bool(other.data_ptr() != 0 and tensor.data_ptr() == other.data_ptr())  # 0: of no memory, as on meta


__all__ = ["watch"]
