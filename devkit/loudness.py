"""How much the command says: `--verbose` and `--quiet`, wherever they stand on the command line."""

from __future__ import annotations

_verbose = False
_quiet = False


def verbose(given: bool) -> None:
    """What the command line says; the callback of the option. A verb that doesn't repeat it leaves it as it is."""
    global _verbose
    _verbose = _verbose or given


def quiet(given: bool) -> None:
    global _quiet
    _quiet = _quiet or given


def is_verbose() -> bool:
    return _verbose


def is_quiet() -> bool:
    return _quiet


def forget() -> None:
    """Another command line begins."""
    global _verbose, _quiet
    _verbose = _quiet = False
