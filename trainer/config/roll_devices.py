"""ROLL's `device_mapping`, which it evaluates as Python: read here, and never evaluated."""

from __future__ import annotations

import ast
from typing import Any


def device_numbers(text: Any) -> list[int]:
    """GPUs of the whole cluster, from what ROLL evaluates: lists, ranges, and sums of them. Raises ValueError.

    >>> device_numbers("list(range(0,3)) + [7]"), device_numbers([0, 1])
    ([0, 1, 2, 7], [0, 1])
    """
    try:
        found = _numbers(ast.parse(str(text), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError("it cannot be read") from error
    if not found or len(set(found)) != len(found) or min(found) < 0 or max(found) >= 2**20:
        raise ValueError("it is no list of GPUs, each once")
    return found


def _numbers(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List) and all(isinstance(each, ast.Constant) for each in node.elts):
        values = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        if all(type(value) is int for value in values):
            return values  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _numbers(node.left) + _numbers(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "list" and len(node.args) == 1:
            return _numbers(node.args[0])
        bounds = [each.value for each in node.args if isinstance(each, ast.Constant) and type(each.value) is int]
        if node.func.id == "range" and 1 <= len(bounds) == len(node.args) <= 3 and max(map(abs, bounds)) < 2**20:
            return list(range(*bounds))
    raise ValueError("it is neither a list of numbers nor list(range(...))")
