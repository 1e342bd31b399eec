"""What can be typed in `devkit attach`: pdb's words, and code. Pure: a line becomes a command, and back."""

from __future__ import annotations

import codeop
import re
import warnings
from dataclasses import dataclass

from devkit.errors import UsageError

RUN = "run"  # code: an expression or a statement
AGAIN = "again"  # an empty line
WORD = re.compile(r"([A-Za-z_]\w*)(.*)", re.DOTALL)
ASSIGNED = re.compile(r"(=(?!=)|(\*\*|//|>>|<<|[-+*/%&|^@:])=|:\s*\w+\s*=)")
COUNT = re.compile(r"\d*")
LINES = re.compile(r"\.?|\d+(\s*,\s*\d+)?")
NUMBERS = re.compile(r"(\d+(\s+\d+)*)?")
LOCATION = re.compile(
    r"(?:(?P<file>[^\s,:][^,:]*):)?(?:(?P<line>\d+)|(?P<function>[A-Za-z_][\w.]*))(?:\s*,\s*(?P<condition>\S.*))?"
)
MEMBERS = re.compile(r"[\w.:\[][\w.:\[\]-]*(\s*,\s*[\w.:\[\]-]+)*")
ANYTHING = re.compile(r".+", re.DOTALL)
NOTHING = re.compile(r"")


@dataclass(frozen=True)
class Word:
    """One command: its names, the first of which is the canonical one, what may follow, and what it does."""

    names: tuple[str, ...]
    usage: str
    help: str
    argument: re.Pattern[str] = NOTHING


WORDS = (
    Word(("next", "n"), "n", "run to the next line of this function"),
    Word(("step", "s"), "s", "run to the next line, into calls"),
    Word(("return", "r"), "r", "run until this function returns"),
    Word(("continue", "c", "cont"), "c", "continue to the next stop"),
    Word(("wait",), "wait", "wait for ranks that still run"),
    Word(("where", "w", "bt"), "w", "show the stack"),
    Word(("up", "u"), "u [N]", "go to the caller's frame", COUNT),
    Word(("down", "d"), "d [N]", "go to the called frame", COUNT),
    Word(("list", "l"), "l [LINE[, LAST]]", "show source around here, then on; `l .`: around here again", LINES),
    Word(("longlist", "ll"), "ll", "show the source of the whole function"),
    Word(("args", "a"), "a", "show the arguments of this function"),
    Word(("p",), "p EXPR", "show a value", ANYTHING),
    Word(("pp",), "pp EXPR", "show a value and what is in it", ANYTHING),
    Word(("retval", "rv"), "rv", "show the last return value"),
    Word(("break", "b"), "b [PLACE]", "set a breakpoint; alone: list those set here", LOCATION),
    Word(("tbreak",), "tbreak PLACE", "set one that is removed after its first hit", LOCATION),
    Word(("clear", "cl"), "cl [N...]", "remove breakpoints N, or all set here", NUMBERS),
    Word(("threads",), "threads", "list the threads of these processes"),
    Word(("ranks",), "ranks [0,2:4]", "address only these ranks; alone: all", MEMBERS),
    Word(("all",), "all", "address all ranks"),
    Word(("quit", "q", "exit"), "q", "quit; paused ranks stay paused"),
    Word(("help", "h"), "h [WORD]", "show this list, or one line of it", re.compile(r"[\w!]*")),
)
PLACE = "PLACE is a LINE, FILE:LINE or a function's name; `, CONDITION` may follow."
MAY_STAND_ALONE = frozenset({"break", "ranks", "help"})
BY_NAME = {name: word for word in WORDS for name in word.names}


@dataclass(frozen=True)
class Command:
    word: str  # canonical
    argument: str = ""


@dataclass(frozen=True)
class Location:
    """Where `b` sets a breakpoint: a line, of this file if none is named, or a function."""

    file: str = ""
    line: int = 0
    function: str = ""
    condition: str = ""


def parse(line: str) -> Command:
    """The command that a line is. Raises UsageError with one line to print.

    A word with what it may take is a command; everything else is code, so `n` steps, `n + 1` and `!n` evaluate.

    >>> parse("n"), parse("b 88, step == 3"), parse("n + 1"), parse("!n")
    (Command(word='next', argument=''), Command(word='break', argument='88, step == 3'),
     Command(word='run', argument='n + 1'), Command(word='run', argument='n'))
    """
    line = line.strip()
    if not line:
        return Command(AGAIN)
    if line.startswith("!"):
        return _code(line[1:].strip())
    if line.startswith("?"):
        return parse(f"help {line[1:]}")
    found = WORD.fullmatch(line)
    word = BY_NAME.get(found[1]) if found else None
    if found is None or word is None or not _stands_apart(found[1], found[2]):
        return _code(line)
    argument = found[2].strip()
    if _takes(word, argument):
        return Command(word.names[0], argument)
    if argument and is_code(line):
        return Command(RUN, line)
    raise UsageError(f"usage: {word.usage}", hint=word.help)


def _stands_apart(name: str, rest: str) -> bool:
    """Whether a word is meant as a command and not as the beginning of code: `list(x)`, `b.c`, `n = 1` are code."""
    if rest and not rest[0].isspace():
        return name in ("p", "pp") and rest[0] in "([{\"'"
    return not ASSIGNED.match(rest.strip())


def _takes(word: Word, argument: str) -> bool:
    if not argument:
        return bool(word.argument.fullmatch("")) or word.names[0] in MAY_STAND_ALONE
    return bool(word.argument.fullmatch(argument))


def _code(text: str) -> Command:
    if not text:
        raise UsageError("usage: !STATEMENT", hint="runs a statement of Python in this frame")
    return Command(RUN, text)


def write(command: Command) -> str:
    """The line that is this command.

    >>> write(Command("run", "n")), write(Command("next"))
    ('!n', 'next')
    """
    if command.word == AGAIN:
        return ""
    return f"!{command.argument}" if command.word == RUN else f"{command.word} {command.argument}".rstrip()


def location(text: str) -> Location:
    """Where a breakpoint is to be, from the argument of `b`.

    >>> location("train.py:88, step == 3")
    Location(file='train.py', line=88, function='', condition='step == 3')
    """
    found = LOCATION.fullmatch(text.strip())
    if found is None:
        raise UsageError("usage: b PLACE", hint=PLACE)
    return Location(
        found["file"] or "", int(found["line"] or 0), found["function"] or "", (found["condition"] or "").strip()
    )


def is_code(text: str) -> bool:
    """Whether Python can read it."""
    try:
        return _compiled(text) is not None
    except (SyntaxError, ValueError, OverflowError):
        return False


def is_unfinished(text: str) -> bool:
    """Whether it is the beginning of a statement of several lines, such as `for x in y:`."""
    try:
        return _compiled(text) is None
    except (SyntaxError, ValueError, OverflowError):
        return False


def _compiled(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `x is 3` is the user's own business
        return codeop.compile_command(text, "<command>", "single")


def help_text(name: str = "") -> str:
    """All words, or one."""
    if name == "!":
        return "!STATEMENT  run a statement of Python in this frame"
    if name and name not in BY_NAME:
        raise UsageError(f"unknown command: {name!r}", hint="type h for the list")
    if name:
        word = BY_NAME[name]
        return f"{word.usage}  {word.help} ({', '.join(word.names)})"
    width = max(len(word.usage) for word in WORDS)
    lines = [f"  {word.usage:<{width}}  {word.help}" for word in WORDS]
    code = f"  {'anything else':<{width}}  is evaluated as Python in this frame; prefix ! to be sure"
    return "\n".join([*lines, code, PLACE])
