"""Requests that wait until a connection of an HTTP client's pool is free: of aiohttp and of httpx.

A response that is kept, and not read or closed, keeps its connection; once all are kept, every further request waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from .words import CONNECTION

_AIOHTTP, _HTTPX = "aiohttp.connector", "httpcore."


def said(frames: Sequence[FrameType]) -> str:
    """For what a request waits, by the library's frames, innermost first; empty where it waits for no connection."""
    for at, frame in enumerate(frames):
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if module == _AIOHTTP and name == "_wait_for_available_connection":
            return _of_aiohttp(frame.f_locals.get("self"), frame.f_locals.get("key"))
        if module.startswith(_HTTPX) and name == "wait_for_connection" and at + 1 < len(frames):
            return _of_httpx(frames[at + 1].f_locals.get("self"))
    return ""


def _of_aiohttp(connector: Any, host: Any) -> str:
    """All of the connector are in use, or all that one host may have."""
    name, most = type(connector).__name__, getattr(connector, "_limit", 0)
    used = len(getattr(connector, "_acquired", ()))
    if most and used >= most:
        return f"{CONNECTION} of an aiohttp.{name}: all {most} are in use (limit={most})"
    most = getattr(connector, "_limit_per_host", 0)
    used = len(dict(getattr(connector, "_acquired_per_host", {})).get(host, ()))
    if most and used >= most:
        return f"{CONNECTION} of an aiohttp.{name}: all {most} to this host are in use (limit_per_host={most})"
    return f"{CONNECTION} of an aiohttp.{name}"


def _of_httpx(pool: Any) -> str:
    most, used = getattr(pool, "_max_connections", 0), len(getattr(pool, "_connections", ()))
    full = isinstance(most, int) and 0 < most <= used
    return f"{CONNECTION} of httpx" + (f": all {most} are in use (max_connections={most})" if full else "")


__all__ = ["said"]
