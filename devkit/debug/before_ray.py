"""Lines of a program's own script that have run before `ray.init`, from where on a driver can be stopped. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from devkit.debug.inworker.records import Breakpoint
from devkit.errors import UsageError

IMPORTS_RAY = re.compile(r"^[ \t]*(?:import|from)[ \t]+ray\b", re.MULTILINE)
NAMES_ADDRESS = re.compile(r"address", re.IGNORECASE)


def refuse(points: Sequence[Breakpoint], command: Sequence[str], folder: Path) -> None:
    """Raises UsageError for a breakpoint that this command can never come to."""
    script = script_of(command, folder)
    for point in points:
        if script is None or not point.line or point.source is None or str(script) != point.paths[0]:
            continue
        start = line_of_init(point.source)
        if start and point.line <= start and _is_before(point.source, point.line, start):
            raise UsageError(
                f"{point.spec} is never hit: devkit is in the driver from ray.init on, line {start}",
                hint="name a line behind that, or one in a function that is called behind it",
            )


def script_of(command: Sequence[str], folder: Path) -> Path | None:
    """The script that `python [OPTIONS] SCRIPT ...` runs; None where the command is another.

    >>> script_of(["python3", "-u", "job.py", "a.py"], Path("/job"))
    PosixPath('/job/job.py')
    >>> script_of(["bash", "run.sh"], Path("/job")), script_of(["python", "-m", "job"], Path("/job"))
    (None, None)
    """
    if not command or not Path(command[0]).name.startswith("python"):
        return None
    first = next((word for word in command[1:] if not word.startswith("-") or word in ("-m", "-c")), "")
    return folder / first if first.endswith(".py") else None


def text_of(command: Sequence[str], folder: Path) -> str:
    """The program of a command that is Python's own; empty where it is another, or lies elsewhere.

    >>> text_of(["python3", "-c", "import ray"], Path("/job")), text_of(["bash", "-c", "import ray"], Path("/job"))
    ('import ray', '')
    """
    if script := script_of(command, folder):
        try:
            return script.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
    is_code = Path(command[0]).name.startswith("python") and "-c" in command[:-1]
    return command[command.index("-c") + 1] if is_code else ""


def leaves_cluster_to_environment(text: str) -> bool:
    """Whether a program has Ray in it, and no address of its own.

    >>> leaves_cluster_to_environment("import ray; ray.init()")
    True
    >>> leaves_cluster_to_environment("import ray; ray.init(address='local')"), leaves_cluster_to_environment("")
    (False, False)
    """
    return bool(IMPORTS_RAY.search(text)) and not NAMES_ADDRESS.search(text)


def line_of_init(text: str) -> int:
    """Of the only `ray.init(...)`, where the module itself runs it and nothing before can have started Ray; else 0.

    >>> line_of_init("import ray\\nx = f()\\nray.init()\\n"), line_of_init("def main():\\n    ray.init()\\n")
    (3, 0)
    """
    tree = ast.parse(text)
    inits = [node for node in ast.walk(tree) if _is_init(node)]
    if len(inits) != 1:
        return 0
    for each in tree.body:
        inside = list(ast.walk(each))
        if inits[0] in inside:
            return each.lineno if isinstance(each, ast.Expr | ast.Assign | ast.AnnAssign) else 0
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and any(map(_may_init, inside)):
            return 0
    return 0


def _is_init(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.init"


def _may_init(node: ast.AST) -> bool:
    """Whether a call starts Ray by itself: `f.remote()`, `ray.put(1)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr == "remote" or ast.unparse(node.func).startswith("ray.")


def _is_before(text: str, line: int, start: int) -> bool:
    """Whether a line is run by the module itself, and not by a function or a lambda of it."""
    for each in ast.walk(ast.parse(text)):
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if each.lineno <= line <= (each.end_lineno or each.lineno):
            return False
    return line <= start
