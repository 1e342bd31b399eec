"""Errors that a loop passes over: a `try` in it whose handler goes on, so that what fails each time shows nowhere.

Read from the text of the loop; nothing of the program is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

TEXT = 80  # characters of the exceptions' names
_LEAVES = (ast.Raise, ast.Return, ast.Break)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

Document = dict[str, Any]


def of(loop: ast.While | ast.For | ast.AsyncFor, looked_at: Iterable[ast.AST]) -> Document | None:
    """{"errors": "requests.RequestException", "line"} of the handler that goes on after what the loop looks at fails.

    >>> def said(text):
    ...     loop = ast.parse(text).body[0]
    ...     return of(loop, [node.test for node in ast.walk(loop) if isinstance(node, ast.If)])
    >>> tried = "while True:\\n  try:\\n    if ready(url): break\\n  except {}:\\n    {}"
    >>> said(tried.format("OSError", "pass")), said(tried.format("OSError as error", "raise"))
    ({'errors': 'OSError', 'line': 4}, None)
    >>> said(tried.format("(KeyError, OSError)", "n += 1")), said("while True:\\n  if ready(url): break")
    ({'errors': '(KeyError, OSError)', 'line': 4}, None)
    """
    wanted = {id(each) for each in looked_at}
    for tried in _tries(loop.body):
        inside = {id(node) for each in tried.body for node in ast.walk(each)}
        if wanted & inside or _calls(tried.body):
            goes_on = next((each for each in tried.handlers if not any(map(_leaves, each.body))), None)
            if goes_on is not None:
                return {"errors": _errors(goes_on), "line": goes_on.lineno}
    return None


def _tries(body: Iterable[ast.stmt]) -> Iterator[ast.Try]:
    """Those of the loop itself."""
    for each in body:
        if isinstance(each, ast.Try):
            yield each
        elif isinstance(each, ast.With | ast.AsyncWith | ast.If):
            yield from _tries(each.body)


def _calls(body: Iterable[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Call) for each in body for node in ast.walk(each))


def _leaves(node: ast.AST) -> bool:
    if isinstance(node, _LEAVES):
        return True
    return not isinstance(node, _SCOPES) and any(map(_leaves, ast.iter_child_nodes(node)))


def _errors(handler: ast.ExceptHandler) -> str:
    text = ast.unparse(handler.type) if handler.type is not None else "any exception"
    return text if len(text) <= TEXT else f"{text[: TEXT - 3]}..."


__all__ = ["of"]
