"""The menu of verbs: in groups on the terminal's whole width, `devkit help VERB`, and "did you mean"."""

from __future__ import annotations

import inspect
import shlex
import shutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from devkit.errors import UsageError

GROUPS = {
    "Debug": ("run", "submit", "stop", "break", "attach", "eval", "continue"),
    "Observe": ("ps", "stacks", "hang", "crashes", "logs", "jobs"),
    "Clusters": ("debug-cluster", "launch"),
    "Check": ("smoke", "lint", "doctor", "agent"),
    "Editor": ("vscode", "dap"),
}
ABOUT = "Debug, check and launch Ray programs and RL training."
FIRST_STEPS = {
    "devkit smoke --tiny": "run a tiny PPO training here, and check it",
    "devkit run -- python train.py": "run a Ray program with the debugger in it",
    "devkit break train.py:88": "pause it at a line, from a second terminal",
    "devkit ps": "see which ranks are paused, and where",
    "devkit attach": "debug a paused rank with pdb's commands",
    "devkit hang": "find what blocks a job that makes no progress",
}
MORE = (
    "`devkit --help` describes each verb, `devkit help VERB` lists a verb's options,",
    "and `devkit vscode install` adds all of it to VS Code.",
)
# Inherited by every verb. Typer would stop at 80 columns.
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 10_000}
# Options of `devkit` itself that may also stand behind any verb.
EVERYWHERE = ("verbose", "quiet")
_WORDS = {"help": "--help", "version": "--version"}


class Verb(TyperCommand):
    """One verb; a mistake on its line is an error that knows whose."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # Typer's parser does not say where it was
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class Verbs(TyperGroup):
    """A verb with others below it: alone it is its own help, unless it does something."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or self.invoke_without_command else ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises UsageError, with the command that was probably meant."""
        if args[0].startswith("-") or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        path = ctx.command_path
        raise UsageError(f"no such command: {path} {args[0]}", hint=self._meant(path, args))

    def _meant(self, path: str, args: list[str]) -> str:
        if close := get_close_matches(args[0], self.commands, n=1):
            return f"did you mean: {shlex.join([*path.split(), close[0], *args[1:]])}"
        return f"{path} --help lists the commands"


class Menu(Verbs):
    """`devkit` itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        everywhere = [each for each in self.params if each.name in EVERYWHERE]
        for command in _below(self):
            command.params.extend(everywhere)
            for each in command.params:
                _without_python(each)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in _WORDS:
            args = [*args[1:], _WORDS[args[0]]]
        return super().parse_args(ctx, args)

    def _meant(self, path: str, args: list[str]) -> str:
        return meant("run", args) if is_program(args) else super()._meant(path, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section for each group, all with the same columns."""
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self.commands[name].short_help) for name in names])


def _without_python(parameter: Any) -> None:
    """Typer puts the Python type behind an argument's name, braces around it, and a float's `.0` behind a default."""
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None
        parameter.get_usage_pieces = lambda ctx: [spelling(parameter)]
    if isinstance(parameter.default, float) and parameter.default.is_integer():
        parameter.default = int(parameter.default)  # what is typed, and so the default, becomes a float when it is read


def spelling(argument: Any) -> str:
    """As in `[FILE:LINE]` and `EXPR...`."""
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}..." if argument.nargs == -1 else str(name)


def first_screen() -> str:
    """What bare `devkit` prints: the verbs by group and the first steps, for a terminal of 24 lines."""
    groups = [f"  {title:<10}{'  '.join(names)}" for title, names in GROUPS.items()]
    width = max(map(len, FIRST_STEPS))
    steps = [f"  {step:<{width}}  {does}" for step, does in FIRST_STEPS.items()]
    return "\n".join([ABOUT, "", *groups, "", "First steps:", *steps, "", *MORE])


def _below(group: TyperGroup) -> Iterator[Any]:
    for command in group.commands.values():
        yield command
        if isinstance(command, TyperGroup):
            yield from _below(command)


def dress(app: typer.Typer) -> None:
    """Gives each command below the app its class and the first paragraph of its help as its line."""
    for command in app.registered_commands:
        command.short_help = _first_paragraph(inspect.getdoc(command.callback) if command.callback else None)
        if command.cls is TyperCommand:
            command.cls = Verb
    for group in app.registered_groups:
        if (inner := group.typer_instance) is not None:
            inner.info.short_help = _first_paragraph(inner.info.help)
            inner.info.cls = Verbs
            dress(inner)


def _first_paragraph(text: str | None) -> str | None:
    return " ".join(text.split("\n\n")[0].split()) if text else None


def is_program(words: Sequence[str]) -> bool:
    """Whether this is a command of its own rather than a mistyped verb.

    >>> is_program(["train.py"]), is_program(["python", "x.py"]), is_program(["smok"])
    (True, True, False)
    """
    # Where only python3 is there, python is a program all the same.
    return words[0].endswith((".py", ".sh")) or words[0] == "python" or shutil.which(words[0]) is not None


def meant(verb: str, words: Sequence[str]) -> str:
    """The hint for a command that was not found or not put behind `--`.

    >>> meant("run", ["train.py", "--lr", "1e-6"])
    'did you mean: devkit run -- python train.py --lr 1e-6'
    """
    return f"did you mean: {with_dashes(verb, words)}"


def with_dashes(verb: str, words: Sequence[str]) -> str:
    """
    >>> with_dashes("submit", ["bash", "run.sh"])
    'devkit submit -- bash run.sh'
    """
    interpreter = {"py": ["python"], "sh": ["bash"]}.get(words[0].rpartition(".")[2], [])
    return f"devkit {verb} -- {shlex.join([*interpreter, *words])}"
