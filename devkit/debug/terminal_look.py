"""The commands that look: where, list, up and down, values, arguments, threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from devkit.debug.crash_table import clip
from devkit.debug.dap_peer import Reply, Request
from devkit.debug.naming import count, is_library, short_path
from devkit.debug.protocols import Document
from devkit.debug.terminal_commands import RUN
from devkit.debug.terminal_input import DELIMITERS
from devkit.debug.terminal_screen import Listing, listing
from devkit.debug.terminal_session import Frame, Member, Session
from devkit.debug.terminal_source import function_at, parameters
from devkit.errors import UsageError
from devkit.palette import CAUTION, NAME

if TYPE_CHECKING:
    from rich.text import Text

AROUND = 5  # lines that `l` shows before the current one
PAGE = 11
CHILDREN_SHOWN = 50
ARGUMENT_WIDTH = 240  # `p` shows the whole value
WHOLE = "clipboard"  # the protocol's word for a value that is wanted in full, None too


def where(session: Session, _argument: str = "") -> None:
    """The stack, the oldest frame first, as pdb has it."""
    members = session.with_frames(session.stopped())
    session.answer((one, _stack(session, one)) for one in members)


def _stack(session: Session, one: Member) -> Text:
    """What started the program's code is folded, unless somebody looks at it."""
    from rich.text import Text

    first = max([one.index, *(index for index, frame in enumerate(one.frames) if not frame.subtle)])
    folded = len(one.frames) - 1 - first
    lines = [Text(f"  ({count(folded, 'frame')} of Ray and Python)", style="dim")] if folded else []
    for index in reversed(range(first + 1)):
        frame = one.frames[index]
        mark, library = ("> " if index == one.index else "  "), is_library(frame.path)
        lines.append(Text.assemble((mark, f"bold {NAME}"), place(frame), style="dim" if library else ""))
        code = "" if library else code_at(session, one, frame)
        if code:
            lines.append(Text(f"      {code}"))
    return Text("\n").join(lines)


def place(frame: Frame) -> Text:
    from rich.text import Text

    return Text.assemble((f"{short_path(frame.path)}:{frame.line}", "bold"), f" in {frame.function}")


def code_at(session: Session, one: Member, frame: Frame) -> str:
    lines = session.source(one, frame)
    return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""


def show_position(session: Session, members: Sequence[Member]) -> None:
    """Where these stand now, and why if that is worth a word."""
    from rich.text import Text

    session.listed.clear()
    answers = []
    for one in session.with_frames(members):
        text = place(one.frame)
        if one.reason not in ("", "step", "breakpoint", "pause", "entry"):
            text.append(f"  {one.reason}", style="red" if "xcept" in one.reason else "dim")
        code = code_at(session, one, one.frame)
        answers.append((one, Text.assemble(text, ("\n-> ", f"bold {NAME}"), code) if code else text))
    session.answer(answers)


def up(session: Session, argument: str = "") -> None:
    _move_frame(session, int(argument or 1), "the oldest frame")


def down(session: Session, argument: str = "") -> None:
    _move_frame(session, -int(argument or 1), "the newest frame")


def _move_frame(session: Session, by: int, end: str) -> None:
    members = session.with_frames(session.stopped())
    moved = []
    for one in members:
        index = min(max(one.index + by, 0), len(one.frames) - 1)
        moved += [one] if index != one.index else []
        one.index = index
    if not moved:
        raise UsageError(f"this is {end}", hint="type w for the whole stack")
    show_position(session, members)


def list_source(session: Session, argument: str = "") -> None:
    """`l`: around the current line and then on; `l .`: around it again; `l FIRST, LAST`."""
    answers = []
    shown: dict[tuple[str, int], int] = {}
    for one in session.with_frames(session.stopped()):
        lines, at = session.source(one, one.frame), (one.frame.path, one.frame.line)
        first, last = list_range(argument, one.frame.line, session.listed.get(at))
        if first <= len(lines):
            shown[at] = min(last, len(lines))
        answers.append((one, _lines(session, one, first, last)))
    session.listed.update(shown)
    session.answer(answers)


def list_range(argument: str, current: int, listed: int | None) -> tuple[int, int]:
    """First and last line to show. As in pdb, a second number below the first is a count.

    >>> list_range("", 20, None), list_range("", 20, 25), list_range("3, 6", 20, None), list_range("30, 5", 20, None)
    ((15, 25), (26, 36), (3, 6), (30, 35))
    """
    numbers = [int(part) for part in argument.split(",")] if argument not in ("", ".") else []
    if len(numbers) == 2:
        first, last = numbers
        return max(1, first), last if last >= first else first + last
    if numbers:
        first = max(1, numbers[0] - AROUND)
    else:
        first = listed + 1 if listed and not argument else max(1, current - AROUND)
    return first, first + PAGE - 1


def long_list(session: Session, _argument: str = "") -> None:
    """The whole function."""
    answers = []
    for one in session.with_frames(session.stopped()):
        node = function_at(session.source(one, one.frame), one.frame.line)
        first, last = (node.lineno, node.end_lineno or node.lineno) if node else (1, 1 << 30)
        answers.append((one, _lines(session, one, first, last)))
    session.answer(answers)


def _lines(session: Session, one: Member, first: int, last: int) -> Text:
    from rich.text import Text

    lines = session.source(one, one.frame)
    if not lines:
        return Text(f"no source of {short_path(one.frame.path)}", style=CAUTION)
    if first > len(lines):
        return Text("[end of file]", style="dim")
    marked = frozenset(int(each["line"]) for each in session.breakpoints if each["path"] == one.frame.path)
    return listing(Listing(first, lines[first - 1 : last], one.frame.line, marked))


def run_code(session: Session, argument: str) -> None:
    """Code as at Python's own prompt: of a statement, or of None, nothing is shown."""
    _evaluate(session, argument, "repl")


def show(session: Session, argument: str) -> None:
    _evaluate(session, argument, WHOLE)


def show_returned(session: Session, _argument: str = "") -> None:
    """What `p __return__` shows, where a step has just left a function."""
    show(session, "__return__")


def _evaluate(session: Session, expression: str, context: str) -> None:
    from rich.text import Text

    session.answer(
        (one, Text(str(reply.body.get("result", ""))) if reply.error is None else wrong(reply.error))
        for one, reply in _replies(session, expression, context)
    )


def _replies(session: Session, expression: str, context: str) -> list[tuple[Member, Reply]]:
    members = session.with_frames(session.stopped())
    return session.ask(
        members, "evaluate", lambda one: {"expression": expression, "frameId": one.frame.id, "context": context}
    )


def wrong(error: str) -> Text:
    """What an expression raised, by its last line: the one that says what."""
    from rich.text import Text

    lines = error.strip().splitlines() or ["it failed"]
    return Text(f"*** {lines[-1]}", style="red")


def show_inside(session: Session, argument: str) -> None:
    """`pp`: a value, and one line for each thing in it."""
    from rich.text import Text

    replies = _replies(session, argument, WHOLE)
    containers = {id(one): int(reply.body.get("variablesReference") or 0) for one, reply in replies}
    asked = [one for one, _ in replies if containers[id(one)]]
    inside = {
        id(one): reply.body.get("variables", [])
        for one, reply in session.ask(asked, "variables", lambda one: {"variablesReference": containers[id(one)]})
    }
    session.answer(
        (
            one,
            wrong(reply.error)
            if reply.error is not None
            else Text(_tree(str(reply.body["result"]), inside.get(id(one), []))),
        )
        for one, reply in replies
    )


def _tree(value: str, variables: Sequence[Document]) -> str:
    lines = [value] + [f"  {each['name']}: {each['value']}" for each in variables[:CHILDREN_SHOWN]]
    left = len(variables) - CHILDREN_SHOWN
    return "\n".join(lines + ([f"  ... and {left} more"] if left > 0 else []))


def arguments(session: Session, _argument: str = "") -> None:
    """The parameters of the function, by its source, with their values of now."""
    from rich.text import Text

    answers = []
    for one in session.with_frames(session.stopped()):
        node = function_at(session.source(one, one.frame), one.frame.line)
        values = {str(each["name"]): str(each["value"]) for each in _locals(session, one)}
        names = list(values) if node is None else [name for name in parameters(node) if name in values]
        rows = [clip(f"{name} = {values[name]}", ARGUMENT_WIDTH) for name in names]
        answers.append((one, Text("\n".join(rows) or "no arguments")))
    session.answer(answers)


def _locals(session: Session, one: Member) -> list[Document]:
    [(_, reply)] = session.ask([one], "scopes", lambda one: {"frameId": one.frame.id})
    scopes = reply.body.get("scopes") or [{}]
    reference = int(scopes[0].get("variablesReference") or 0)
    [(_, reply)] = session.ask([one], "variables", lambda _: {"variablesReference": reference})
    return list(reply.body.get("variables", []))


def threads(session: Session, _argument: str = "") -> None:
    from rich.text import Text

    peers = session.controls()
    first_of_each = {one.record.worker_id: one for one in reversed(session.chosen())}
    requests = {worker: Request(peers[worker], "threads") for worker in first_of_each}
    answers = []
    for worker, reply in session.peers.gather(requests, session.seconds).items():
        mine = {one.thread_id for one in session.members if one.record.worker_id == worker}
        rows = [
            f"{'*' if row['id'] in mine else ' '} {row['id']}  {row['name']}" for row in reply.body.get("threads", ())
        ]
        text = Text("\n".join(rows)) if reply.error is None else wrong(reply.error)
        answers.append((first_of_each[worker], text))
    session.answer(answers)


def complete(session: Session, line: str, column: int) -> list[str]:
    """What the word before the cursor may become; asked in the frame of the first rank that is stopped."""
    ready = session.with_frames([one for one in session.chosen() if one.state == "stopped"][:1])
    if not ready:
        return []
    one = ready[0]
    request = {"frameId": one.frame.id, "text": line, "column": column + 1}
    [(_, reply)] = session.ask([one], "completions", lambda _: request)
    word = line[max(line.rfind(each, 0, column) for each in DELIMITERS) + 1 : column]
    return [whole_word(word, each) for each in reply.body.get("targets", ())]


def whole_word(word: str, target: Document) -> str:
    """readline replaces the whole word `a.b.c`, the adapter completes its last part."""
    text = str(target.get("text") or target["label"])
    if "." in word and not text.startswith(word):
        return word[: word.rindex(".") + 1] + text
    return text


LOOK: dict[str, Callable[[Session, str], None]] = {
    "where": where,
    "up": up,
    "down": down,
    "list": list_source,
    "longlist": long_list,
    "args": arguments,
    "p": show,
    "pp": show_inside,
    "retval": show_returned,
    "threads": threads,
    RUN: run_code,
}
