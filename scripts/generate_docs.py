"""Writes the parts of the documentation that are made from the code, or checks them.

    python scripts/generate_docs.py [--check]

Each lies in its file between `<!-- generated: NAME -->` and `<!-- end -->`. `docs/files.md` takes a package's line
from the first line of its docstring; `docs/cli.md` is made from the command line, `docs/config.md` from the
configuration. In all of `docs/`, a link whose text is the name of something in a Python file,
such as [`gae`](../trainer/ppo.py), is given the number of the line where it stands; so is the place at which the
examples stop.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))
# What a folder is, unless it is a package, whose `__init__.py` says so. Those of `WHOLE` have a single line.
FOLDERS = {
    "trainer": "",
    "devkit": "",
    "benchmarks": "What is measured, each figure beside a yardstick from the same run.",
    "scripts": "Set-up, and the documentation that is made from the code.",
    ".ci": "What CI runs.",
    "vscode": "The VS Code extension, in TypeScript, and `e2e/`, which tests it in a real editor.",
    "tests": "The tests, by package; `walks/` types the sessions of these pages.",
    "docs": "These pages; `decisions/` and `results/` hold short notes and figures.",
}
WHOLE = ("vscode", "tests", "docs")
INNER = {
    "debugger_parts": "The figures of `debugger.py`: without Ray, on Ray, and the table of them.",
    "end_to_end_parts": "What `end_to_end.py` gives both trainers, and what verl has where flash-attn does not fit.",
    "learning_curve_parts": "What `learning_curve.py` gives both trainers, and a run of each.",
    "sglang_cpu": "What SGLang needs on a CPU beside its own wheel; `setup-engine` puts it into place.",
    "vllm_cpu": "What vLLM needs on a CPU beside its own wheel; `setup-engine` installs it.",
    "vscode_parts": "The ranks and the editor's side of `vscode.py`.",
}


def tree(root: Path = ROOT) -> str:
    """A line for each folder of the project: a file that comes or goes changes none of them."""
    lines = [line for folder in FOLDERS for line in _branch(root / folder, depth=0)]
    width = max(len(name) for name, _ in lines)
    return "```\n" + "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in lines) + "\n```"


def _branch(folder: Path, depth: int) -> Iterator[tuple[str, str]]:
    init = folder / "__init__.py"
    about = first_line(init) if init.exists() else {**FOLDERS, **INNER}.get(folder.name, "")
    yield f"{'  ' * depth}{folder.name}/", about
    if folder.name not in WHOLE:
        for inner in sorted(path for path in folder.iterdir() if _has_code(path)):
            yield from _branch(inner, depth + 1)


def _has_code(path: Path) -> bool:
    """Whether it is a folder with more in it than what Python leaves behind."""
    left = path.name.startswith((".", "__")) or not path.is_dir()
    return not left and any(entry.name != "__pycache__" for entry in path.iterdir())


_DOCSTRING = re.compile(r'(?:#[^\n]*\n|\s)*"""([^\n\\]*?)(?:"""|\n)')


def first_line(path: Path) -> str:
    """What a file says of itself in one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        if plain := _DOCSTRING.match(text):  # a hundredth of the time that parsing takes
            return plain[1].strip()
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    return comments[0].removeprefix("# ") if comments else ""


FAULTS = ROOT / "docs/results/faults.jsonl"  # what `make record-faults` has written


def faults() -> str:
    """Each fault of `tests/faults`: what a user sees of it, what devkit says, and after how long."""
    told = [json.loads(line) for line in FAULTS.read_text(encoding="utf-8").splitlines()]
    seconds = sorted(each["seconds"] for each in told)
    verdicts = f"{len(told)} faults; from the symptom to the verdict {median(seconds):.1f} s in the median, "
    pieces = [verdicts + f"{seconds[-1]:.1f} s at most."]
    part = ""
    for each in told:
        if each["part"] != part:
            part = each["part"]
            pieces.append(f"## {part}")
        said = "\n".join(each["said"])
        pieces.append(f"### {each['title']}\n\n{each['symptom']}")
        pieces.append(f"```console\n$ {each['command']}\n{said}\n```\n\n{each['seconds']:.1f} s")
    return "\n\n".join(pieces)


def fault_titles() -> list[str]:
    """Those that the tests have, in their order."""
    files = sorted((ROOT / "tests/faults").glob("test_*.py"))
    decorators = (
        decorator
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    )
    return [
        str(ast.literal_eval(each.args[0]))
        for each in decorators
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "fault"
    ]


def cli_reference() -> str:
    """Every verb with its arguments and options."""
    import typer.main

    from devkit.cli import app

    return "\n\n".join(_commands("devkit", typer.main.get_command(app)))


def _commands(path: str, command: Any) -> Iterator[str]:
    """This one and those below it."""
    yield _command(path, command)
    for name, verb in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", verb)


def _command(path: str, command: Any) -> str:
    from devkit.menu import EVERYWHERE

    # Typer's own options differ with its version and the shell.
    ours = [p for p in command.params if getattr(p, "help", None) and not p.name.endswith("_completion")]
    if path != "devkit":
        ours = [p for p in ours if p.name not in EVERYWHERE]
    rows = [f"| `{_spelling(p)}` | {p.help} |" for p in ours]
    return "\n".join([f"## `{path}`", "", command.help or "", "", "| | |", "|---|---|", *rows])


def _spelling(parameter: Any) -> str:
    from devkit.menu import spelling

    if parameter.param_type_name == "argument":
        return spelling(parameter)
    text = " ".join([", ".join(parameter.opts), parameter.metavar or ""]).strip()
    return text.replace("|", "\\|")  # it would end a cell of the table


def config_table(name: str) -> Callable[[], str]:
    """A table of `config_reference.py`, which is loaded when it is asked for."""

    def make() -> str:
        return str(getattr(importlib.import_module("scripts.config_reference"), name)())

    return make


def lint_rules() -> str:
    """Every rule of `devkit lint`."""
    from devkit.lint.rules import RULES

    rows = [f"| `{rule.name}` | {rule.severity} | {rule.about} | `{rule.example}` |" for rule in RULES.values()]
    cells = [row.replace("| tee", "\\| tee").replace("| bash", "\\| bash").replace("`` ", "` ") for row in rows]
    return "\n".join(["| rule | severity | what it is about | for example |", "|---|---|---|---|", *cells])


def doctor_rules() -> str:
    """Every rule of `devkit doctor`."""
    from devkit.doctor.rules.table import RULES

    rows = [f"| `{rule.name}` | {rule.severity} | {rule.about} |" for rule in RULES.values()]
    return "\n".join(["| rule | severity | what it is about |", "|---|---|---|", *rows])


def time_limits() -> str:
    """Every limit that the debugger lifts."""
    from devkit.debug.inworker.timeouts import DAY, TABLE

    rows = []
    for limit in TABLE:
        variable = f"`{limit.variable}`" if limit.variable else ""
        rows.append(f"| {limit.name} | {limit.read} | {variable} | {'a day' if limit.least == DAY else 'an hour'} |")
    return "\n".join(["| limit | read from | variable | becomes |", "|---|---|---|---|", *rows])


def reading_list() -> str:
    """The files that the walkthrough goes through, each with its number of lines, and their sum."""
    sizes = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in STEP_FILES}
    rows = [f"| [{file}](../{file}) | {lines} |" for file, lines in sizes.items()]
    return "\n".join(["| file | lines |", "|---|---|", *rows, f"| **together** | **{sum(sizes.values()):,}** |"])


# What one reads to follow a step, in the order of the walkthrough.
STEP_FILES = (
    "trainer/run.py",
    "trainer/ppo.py",
    "trainer/records.py",
    "trainer/group.py",
    "trainer/asked.py",
    "trainer/worker.py",
    "trainer/roles.py",
    "trainer/rollout/hf.py",
    "trainer/learner/fsdp.py",
    "trainer/metrics.py",
)

GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/files.md", "tree"): tree,
    ("docs/cli.md", "cli"): cli_reference,
    ("docs/config.md", "keys"): config_table("keys"),
    ("docs/config.md", "renames"): config_table("renames"),
    ("docs/config.md", "unmet requests"): config_table("unmet_requests"),
    ("docs/config.md", "no effect"): config_table("no_effect"),
    ("docs/lint.md", "rules"): lint_rules,
    ("docs/doctor.md", "rules"): doctor_rules,
    ("docs/faults.md", "faults"): faults,
    ("docs/time-limits.md", "time limits"): time_limits,
    ("docs/trainer.md", "dialects"): config_table("dialects"),
    ("docs/walkthrough.md", "lines"): reading_list,
}

# [`Model.log_probs`](../trainer/learner/fsdp.py#L45)
CODE_LINK = re.compile(r"\[`(?P<name>[A-Za-z_][\w.]*)`\]\((?P<file>[\w./-]+\.py)(?:#L\d+)?\)")


def with_code_links(text: str, folder: Path) -> str:
    """`text` with the line of each name that a link leads to. Raises SystemExit for a name that is not there."""

    def to_line(match: re.Match[str]) -> str:
        name, file = match["name"], match["file"]
        if name.endswith(".py"):
            return match[0]
        path = folder / file
        line = line_of(path, name) if path.is_file() else None
        if line is None:
            raise SystemExit(f"error: there is no {name} in {file}\nhint: a link in {folder} leads there")
        return f"[`{name}`]({file}#L{line})"

    return CODE_LINK.sub(to_line, text)


# The line of a file at which the examples of the documentation stop, by how it begins.
STOPS = {"trainer/roles.py": "return Scores("}


def with_stops(text: str) -> str:
    """`text` with the present line number behind each file of `STOPS`."""
    for file, start in STOPS.items():
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        [number] = [number for number, line in enumerate(lines, 1) if line.strip().startswith(start)]
        text = re.sub(rf"\b{re.escape(file)}:\d+", f"{file}:{number}", text)
    return text


def line_of(path: Path, name: str) -> int | None:
    """The line of a function, class, method, field or constant, by its qualified name."""
    found: ast.AST | None = _parsed(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        found = next((node for node in getattr(found, "body", ()) if part in _names(node)), None)
    return getattr(found, "lineno", None)


@lru_cache
def _parsed(text: str) -> ast.AST:
    return ast.parse(text)


def _names(node: ast.AST) -> list[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [target.id for target in flat if isinstance(target, ast.Name)]


def with_generated(text: str, name: str, body: str) -> str:
    """`text` with `body` between the marks of `name`."""
    pattern = rf"(<!-- generated: {re.escape(name)} -->\n).*?(\n<!-- end -->)"
    new, count = re.subn(pattern, lambda match: match[1] + body + match[2], text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"error: {count} places for {name}\nhint: one pair of marks has to be there")
    return new


def stale(*, write: bool) -> list[str]:
    """Files whose generated parts are not those of the code; with `write`, they are mended."""
    found = []
    for path in documents():
        text = new = path.read_text(encoding="utf-8")
        for (file, name), make in GENERATED.items():
            if path == ROOT / file:
                new = with_generated(new, name, make())
        new = with_stops(with_code_links(new, path.parent))
        if new != text:
            found.append(str(path.relative_to(ROOT)))
            if write:
                path.write_text(new, encoding="utf-8")
    return found


def documents() -> list[Path]:
    """Every page of the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is stale")
    check = parser.parse_args().check
    for file in (found := stale(write=not check)):
        print(f"{file}: {'stale; make docs writes it anew' if check else 'written'}")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
