"""The sessions of a page, as data: the page is the source of what is typed, and of what has to be printed.

A fence of `console` is a session. In it `$ ` begins what is typed into a shell, `(devkit ...) ` what is typed at the
debugger's prompt, and `^C` is that key; the other lines are what is printed, `...` what is left out of it. A comment
`<!-- terminal 2 -->` says where it is typed from there on, and `<!-- not typed: WHY -->` leaves out the next session.
A fence that only lists commands has such a word, too, since nobody types it.
What the page has saved ("Save this as `job.py`", before a fence) is saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
TERMINAL = re.compile(r"<!-- terminal (\d) -->")
NOT_TYPED = re.compile(r"<!-- not typed: [^>]+ -->\s*$")
SAVE = re.compile(r"[Ss]ave this as\s+`([\w./]+)`[^`]*$")
SHELL, DEBUGGER, INTERRUPT = "$ ", re.compile(r"\(devkit[^)]*\) "), "^C"
# Differs from one run to the next: ids, addresses, times, sizes, and the blanks of a column beside them.
CHANGING = re.compile(r"\S*\d\S*|\s+")
NUMBERS = re.compile(r"\S*\d\S*")
ADDRESS = re.compile(r"192\.0\.2\.\d+")  # of examples, by RFC 5737
SHORTEST_ID = 4  # characters of an id that are typed at least


# What begins a command, in a fence that is no session.
COMMAND = re.compile(
    r"^(?:\$ )?(?:devkit|python3?|make|ray|bash|sh|pip|sed|cat|export|kubectl|dstack|curl|srun|sbatch|openssl)\s",
    re.MULTILINE,
)
SHELLS = ("", "bash", "sh", "console")  # kinds of fences in which commands stand


def untold(page: str) -> list[str]:
    """The first lines of fences with commands that nobody types, and that do not say why."""
    found, read = [], 0
    for fence in FENCE.finditer(page):
        before, read = page[read : fence.start()], fence.end()
        is_plain = fence["kind"] in SHELLS and fence["kind"] != "console"
        told = NOT_TYPED.search(before) or SAVE.search(before) or fence["body"].startswith("#!")
        if is_plain and COMMAND.search(fence["body"]) and not told:
            found.append(fence["body"].partition("\n")[0])
    return found


def commands(page: str) -> list[str]:
    """Each command of the page's fences, on one line, typed or not; without comments and `...`."""
    found = []
    for fence in FENCE.finditer(page):
        body = fence["body"].replace("\\\n", " ") if fence["kind"] in SHELLS else ""
        found += [line.removeprefix(SHELL).split("  #")[0].strip() for line in body.splitlines() if COMMAND.match(line)]
    return [command.removesuffix("...").strip() for command in found]


@dataclass(frozen=True)
class Saved:
    """A file that the reader makes."""

    path: str
    text: str


@dataclass(frozen=True)
class Typed:
    """A line that is typed, at which prompt, and the lines that the page shows below it."""

    terminal: int
    prompt: str  # "$ ", or the debugger's
    text: str
    shown: tuple[str, ...] = ()


def steps(page: str) -> list[Saved | Typed]:
    """What a reader of the page does, in order."""
    return list(_steps(page))


def _steps(page: str) -> Iterator[Saved | Typed]:
    terminal, read = 1, 0
    for fence in FENCE.finditer(page):
        before = page[read : fence.start()]
        read = fence.end()
        for found in TERMINAL.finditer(before):
            terminal = int(found[1])
        if saved := SAVE.search(before):
            yield Saved(saved[1], fence["body"])
        elif fence["kind"] == "console" and not NOT_TYPED.search(before):
            yield from _session(fence["body"], terminal)


def _session(body: str, terminal: int) -> Iterator[Typed]:
    current: Typed | None = None
    for line in body.splitlines():
        prompt, text = _split(line)
        if prompt is None:
            if current is None:
                raise ValueError(f"a session begins with {line!r}, which nobody types")
            current = Typed(terminal, current.prompt, current.text, (*current.shown, line))
            continue
        if current is not None:
            yield current
        current = Typed(terminal, prompt, text)
    if current is not None:
        yield current


def _split(line: str) -> tuple[str | None, str]:
    if line.startswith(SHELL):
        return SHELL, line.removeprefix(SHELL)
    if found := DEBUGGER.match(line):
        return found[0], line[found.end() :]
    return ("", INTERRUPT) if line == INTERRUPT else (None, line)


@dataclass(frozen=True)
class Compared:
    """The first line of a page that was not printed, and which words of this run stand for those of the page."""

    missing: str | None
    meant: dict[str, str]


def compare(shown: tuple[str, ...], said: str) -> Compared:
    """Whether a program printed what the page shows, in the page's order; numbers, ids and addresses may be others."""
    printed = iter(said.splitlines())
    meant: dict[str, str] = {}
    for line in (each.strip() for each in shown):
        if line in ("", "..."):
            continue
        pattern = re.compile(_pattern(line))
        found = next((match for match in map(pattern.search, printed) if match), None)
        if found is None:
            return Compared(line, meant)
        meant.update(zip(NUMBERS.findall(line), found.groups(), strict=True))
    return Compared(None, meant)


def _pattern(line: str) -> str:
    """The line itself, with whatever number where it has one, and anything for its `...`."""
    pieces, read = [], 0
    for found in CHANGING.finditer(line):
        pieces += [re.escape(line[read : found.start()]), r"\s+" if found[0].isspace() else r"(\S+)"]
        read = found.end()
    return "".join([*pieces, re.escape(line[read:])]).replace(re.escape("..."), ".*")


def with_meant(text: str, meant: dict[str, str]) -> str:
    """`text` as it has to be typed here: an id or address of the page is that of this run; an id may be cut short."""
    text = ADDRESS.sub(lambda found: meant.get(found[0], found[0]), text)
    for word in NUMBERS.findall(text):
        page = next((each for each in meant if len(word) >= SHORTEST_ID and each.startswith(word)), word)
        if page != word or word in meant:
            text = text.replace(word, meant[page][: len(word)])
    return text
