"""Proxies that the environment names, where a line asks a host of this machine or of its network for something.

`requests`, `httpx` and `urllib` send such requests to the proxy as well, unless `no_proxy` exempts the host.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from .expressions import known, look

_CLIENTS = frozenset({"requests", "httpx", "urllib"})  # aiohttp asks the environment only if it is told to
_OPENS = "urlopen"
_NEAR = ("localhost", "127.", "10.", "192.168.", "[::1]")


def said(expressions: Iterable[ast.AST], frame: FrameType) -> dict[str, str]:
    """{"http_proxy": "'http://proxy:3128' in its environment, and no_proxy lacks 127.0.0.1"}, if one is in the way."""
    request: Any = sys.modules.get("urllib.request")
    found: dict[str, str] = {}
    for node in (node for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call)):
        if request is None or not _is_client(node.func, frame):
            continue
        for url in _urls(node, frame):
            proxies = request.getproxies_environment()
            host = urlsplit(url).hostname or ""
            scheme = url.partition(":")[0]
            if scheme in proxies and host.startswith(_NEAR) and not request.proxy_bypass_environment(host, proxies):
                found[f"{scheme}_proxy"] = f"{_shown(proxies[scheme])} in its environment, and no_proxy lacks {host}"
    return found


def _is_client(function: ast.expr, frame: FrameType) -> bool:
    """`requests.get`, `self.session.get` of such a client, `urlopen`."""
    if isinstance(function, ast.Name):
        return function.id == _OPENS
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == _OPENS:
        return True
    owner: Any = look(function.value, frame)
    name = getattr(owner, "__name__", None) if isinstance(owner, type(sys)) else type(owner).__module__
    return known(owner) and isinstance(name, str) and name.partition(".")[0] in _CLIENTS


def _urls(call: ast.Call, frame: FrameType) -> Iterator[str]:
    """What its arguments begin with: a name, an attribute, a text, or an f-string of these."""
    for each in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("url", "base_url"))):
        first = each.values[0] if isinstance(each, ast.JoinedStr) and each.values else each
        first = first.left if isinstance(first, ast.BinOp) else first
        value = look(first.value if isinstance(first, ast.FormattedValue) else first, frame)
        if type(value) is str and value.startswith(("http://", "https://")):
            yield value


def _shown(proxy: str) -> str:
    from .redaction import scrub

    return scrub(repr(proxy))


__all__ = ["said"]
