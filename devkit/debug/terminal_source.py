"""Functions in a text of Python: which one has a line, and where one of a name begins."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def function_at(lines: Sequence[str], line: int) -> FunctionNode | None:
    """The innermost function that has this line; None in a module's own code, or where Python can't read it."""
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, FunctionNode) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def line_in_function(lines: Sequence[str], name: str) -> int:
    """The first line that runs in the function of this name, or of this `Class.method`; 0 when there is none.

    >>> line_in_function(["class A:", "    def f(self):", "        '''Says hello.'''", "        return 1"], "A.f")
    4
    """
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return 0
    found = next((node for path, node in _functions(tree, "") if f".{path}".endswith(f".{name}")), None)
    if found is None:
        return 0
    body = found.body[1:] if ast.get_docstring(found, clean=False) is not None and len(found.body) > 1 else found.body
    return body[0].lineno


def _functions(node: ast.AST, inside: str) -> Iterator[tuple[str, FunctionNode]]:
    for child in ast.iter_child_nodes(node):
        path = f"{inside}.{child.name}".lstrip(".") if isinstance(child, FunctionNode | ast.ClassDef) else inside
        if isinstance(child, FunctionNode):
            yield path, child
        yield from _functions(child, path)


def parameters(node: FunctionNode) -> list[str]:
    """Names of a function's parameters, in order."""
    given = node.args
    plain = [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]
    return [one.arg for one in plain + ([given.kwarg] if given.kwarg else [])]
