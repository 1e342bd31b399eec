"""Errors in text: Python's tracebacks, Ray's nested ones, torch's and the interpreter's last words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from devkit.debug.briefly import brief
from devkit.debug.inworker.lastwords import frames_of_dump, said_by_cpp, signal_of
from devkit.debug.inworker.words import plain
from devkit.debug.naming import is_library
from devkit.debug.stack_groups import Frame
from devkit.logs.events import CPP, FATAL, SIGNAL, Raised

# What Ray puts before a worker's line in the driver's log, and torch before a rank's.
_PREFIX = re.compile(
    r"^\((?P<who>[^()]*?)(?: rank=(?P<rank>\d+))? ?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.:a-fA-F]+))?\) ?"
)
_RANK = re.compile(r"^\[rank ?(?P<rank>\d+)\]:? ?")
_HEAD = re.compile(r"^\s*(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_FRAME = re.compile(r'^\s+(?:\| )?File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:\([\w.]+\))?)(?:: (?P<message>.*))?$")
_SECTION = re.compile(r"ray::(?P<who>[^\s(]{0,200})\(\) \(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.:a-fA-F]+))?")
_TASK_ERROR = re.compile(r"^(?:ray\.exceptions\.)?RayTaskError(?:\((?P<type>[\w.]+)\))?$")
_LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_TIME = re.compile(r"(?P<day>20\d\d-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,6}))?")
_CALLED = re.compile(
    r"^(?:[\w./-]+: )?(?:(?:line )?\d+: )?"
    r"(?P<what>[\w./-]+: (?:command not found|not found|No such file or directory|Permission denied))$"
)
# Last words that are no traceback: (pattern, the name of it)
_WORDS = (
    (re.compile(r"\*\*\* (SIG(?:SEGV|ABRT|BUS|FPE|ILL)) received"), SIGNAL),
    (re.compile(r"(Watchdog caught collective operation timeout.*)"), "DistBackendError"),
    (re.compile(r"(CUDA error: .+)"), "CUDA error"),
    (re.compile(r"^error: (.+)"), "error"),
)
_FATAL = re.compile(r"Fatal Python error: (.+)")
_CPP = re.compile(
    r"terminate called after throwing an instance of|Unhandled exception: \S+\. what\(\): |\bCheck failed: "
)
_DUMPED = re.compile(r'\s*$|  (?:File "|\.\.\.)|(?:Stack|(?:Current )?[Tt]hread .*) \(most recent call first\):$')
_RAISES = re.compile(r"(raise|assert)\b|(sys\.)?exit\(")
KEPT_LINES = 200  # of one traceback
LONGEST_LINE = 10_000  # characters: what tells stands at a line's beginning
_DIGITS = 9  # of a number that is read as one


@dataclass(frozen=True)
class Found:
    """An error in a text, where it begins, and when it was, if a line around it says so."""

    raised: Raised
    line: int
    text: str
    time: float | None = None


def find(text: str) -> list[Found]:
    """Every error of a log, in its order; a chain of exceptions is one, and is its first cause."""
    return list(_found(_clean(text)))


def _clean(text: str) -> list[tuple[str, re.Match[str] | None]]:
    """The lines without colours and prefixes; the prefix stays beside its line."""
    found = []
    for line in text.splitlines():
        line = plain(line[:LONGEST_LINE]).rstrip()
        prefix = _PREFIX.match(line)
        line = line[prefix.end() :] if prefix else line
        rank = _RANK.match(line)
        found.append((line[rank.end() :] if rank else line, prefix or rank))
    return found


def _found(lines: list[tuple[str, re.Match[str] | None]]) -> Iterator[Found]:
    last_time: float | None = None
    number = 0
    while number < len(lines):
        line, prefix = lines[number]
        last_time = time_of(line) or last_time
        if _HEAD.match(line):
            end = _end_of_chain(lines, number)
            block = [text for text, _ in lines[number:end]]
            yield Found(
                _with_prefix(innermost("\n".join(block)), prefix), number, "\n".join(block[:KEPT_LINES]), last_time
            )
            number = end
            continue
        if _FATAL.search(line):
            end = _end_of_dump(lines, number + 1)
            block = [text for text, _ in lines[number:end]]
            yield Found(_with_prefix(_of_dump(block), prefix), number, "\n".join(block[:KEPT_LINES]), last_time)
            number = end
            continue
        if (raised := _words(line) or _by_cpp(lines, number)) is not None:
            yield Found(_with_prefix(raised, prefix), number, line, last_time)
        number += 1


def _words(line: str) -> Raised | None:
    if called := _CALLED.match(line):
        return Raised("command", called["what"])
    for pattern, kind in _WORDS:
        if found := pattern.search(line):
            return Raised(kind, found[1])
    return None


def _by_cpp(lines: list[tuple[str, re.Match[str] | None]], number: int) -> Raised | None:
    """What C++ said before it gave up; the next line may have the exception's text."""
    if not _CPP.search(lines[number][0]):
        return None
    said = said_by_cpp("\n".join(line for line, _ in lines[number : number + 2]))
    return Raised(CPP, said) if said else None


def _end_of_dump(lines: list[tuple[str, re.Match[str] | None]], number: int) -> int:
    """Behind the stacks that Python writes at a deadly signal."""
    while number < len(lines) and _DUMPED.match(lines[number][0]):
        number += 1
    return number


def _of_dump(block: Sequence[str]) -> Raised:
    """The signal, where Python names one, and the stack."""
    found = _FATAL.search(block[0])
    said = found[1].strip() if found else ""
    frames, _ = frames_of_dump("\n".join(block[1:]))
    places = tuple(Frame(each["file"], each["line"], each["function"]) for each in frames)
    return Raised(signal_of(said) or FATAL, said, places)


def _end_of_chain(lines: list[tuple[str, re.Match[str] | None]], start: int) -> int:
    """Behind the last exception of a chain that begins here."""
    end = _end_of_block(lines, start + 1)
    while True:
        ahead = end
        while ahead < len(lines) and not lines[ahead][0].strip():
            ahead += 1
        if ahead < len(lines) and lines[ahead][0].strip() in _LINKS:
            ahead += 1
            while ahead < len(lines) and not lines[ahead][0].strip():
                ahead += 1
            if ahead < len(lines) and _HEAD.match(lines[ahead][0]):
                end = _end_of_block(lines, ahead + 1)
                continue
        return end


def _end_of_block(lines: list[tuple[str, re.Match[str] | None]], number: int) -> int:
    """Behind the exception's own line and, for Ray's nested ones, behind the sections that follow it."""
    while number < len(lines) and (lines[number][0].startswith((" ", "\t")) or not lines[number][0].strip()):
        number += 1
    is_nested = number < len(lines) and _SECTION.search(lines[number][0]) is not None
    number += 1
    while is_nested and number < len(lines):
        line = lines[number][0]
        if not line.strip() or _HEAD.match(line):
            break
        is_last = not line.startswith((" ", "\t")) and not _SECTION.search(line)
        number += 1
        if is_last:
            break
    return min(number, len(lines))


def _with_prefix(raised: Raised, prefix: re.Match[str] | None) -> Raised:
    if prefix is None:
        return raised
    named = prefix.groupdict()
    rank = _number(named["rank"]) if named.get("rank") else raised.rank
    if raised.pid or not named.get("pid"):
        return replace(raised, rank=rank)
    return replace(
        raised, who=named.get("who") or "", pid=_number(named["pid"]), node_ip=named.get("ip") or "", rank=rank
    )


def innermost(text: str) -> Raised:
    """What a traceback goes back to: the first exception of a chain, the innermost of nested tasks.

    >>> text = "ray.exceptions.RayTaskError(ValueError): ray::outer() (pid=7, ip=10.0.0.1)\\n"
    >>> text += "ray.exceptions.RayTaskError(ValueError): ray::pick() (pid=8, ip=10.0.0.2)\\n"
    >>> text += '  File "boom.py", line 7, in pick\\n    x[9]\\nValueError: no such'
    >>> found = innermost(text)
    >>> found.said, found.who, found.pid, found.frames[0].line
    ('ValueError: no such', 'pick', 8, 7)
    """
    text = plain(text)
    first = text
    for link in _LINKS:
        first = first.partition(link)[0]
    nested = list(_SECTION.finditer(text))
    if nested and not _SECTION.search(first):
        first = text[nested[0].start() :]
    sections = list(_SECTION.finditer(first))
    if sections:
        first = first[sections[-1].end() :]
    for link in _LINKS:
        first = first.partition(link)[0]
    return _raised(first, text, sections[-1] if sections else None)


def last_of_innermost(text: str) -> Raised:
    """The last exception of the chain that the innermost of nested tasks raised, as a snapshot of that one has it.

    >>> head, at = "ray::pick() (pid=8, ip=10.0.0.2)\\n", '  File "boom.py", line {}, in pick\\n'
    >>> text = f"{head}{at.format(7)}ValueError: no such\\n\\n{_LINKS[1]}\\n\\n{head}{at.format(9)}OSError: gone"
    >>> last_of_innermost(text).said, innermost(text).said
    ('OSError: gone', 'ValueError: no such')
    """
    first, text = innermost(text), plain(text)
    own = [each for each in _SECTION.finditer(text) if (each["who"], _number(each["pid"])) == (first.who, first.pid)]
    if not own:
        return first
    rest = text[own[-1].end() :]
    for link in _LINKS:
        rest = rest.rpartition(link)[2]
    return _raised(rest, rest, own[-1])


def _raised(told: str, text: str, section: re.Match[str] | None) -> Raised:
    """What one traceback says; the whole text is for one that names no exception as others do."""
    found = _error_line(told) or _line_below_frames(told) or _error_line(text)
    kind, message = found or ("error", _last_line(text))
    frames = tuple(_frames(told))
    who, pid, ip = (section["who"], _number(section["pid"]), section["ip"] or "") if section else ("", 0, "")
    return Raised(kind, message, frames, who, pid, ip, own=is_own(frames, _last_code(told)))


def _line_below_frames(text: str) -> tuple[str, str] | None:
    """The same of an exception that is named as no other is: by where it stands, below the innermost frame."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if _FRAME.match(line)), default=len(lines))
    for number in range(last + 1, len(lines)):
        if not lines[number][:1].isspace() and (found := _ERROR.match(lines[number])):
            rest = "\n".join(lines[number + 1 :])
            return found["type"].rpartition(".")[2], f"{found['message'] or ''}\n{rest}".strip()
    return None


def _error_line(text: str) -> tuple[str, str] | None:
    """The type and the message of the last exception's own line, with the message's further lines."""
    lines = text.strip("\n").splitlines()
    for number in range(len(lines) - 1, -1, -1):
        found = _ERROR.match(lines[number])
        if found and _is_error(found["type"]):
            kind = _TASK_ERROR.match(found["type"])
            name = (kind["type"] or "RayTaskError") if kind else found["type"]
            rest = "\n".join(lines[number + 1 :])
            message = (found["message"] or "") + (f"\n{rest}" if rest.strip() else "")
            return name.rpartition(".")[2], message.strip()
    return None


def _is_error(name: str) -> bool:
    """
    >>> [_is_error(name) for name in ("ValueError", "torch.OutOfMemoryError", "note", "KeyboardInterrupt")]
    [True, True, False, True]
    """
    last = name.partition("(")[0].rpartition(".")[2]
    known = (
        "KeyboardInterrupt",
        "SystemExit",
        "StopIteration",
        "StopAsyncIteration",
        "GeneratorExit",
        "AssertionError",
    )
    return (
        last in known
        or last.endswith(("Error", "Exception", "Warning", "Interrupt", "Timeout", "Died", "Exit"))
        or ("." in name and last[:1].isupper())
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _frames(text: str) -> Iterator[Frame]:
    found = [match for line in text.splitlines() if (match := _FRAME.match(line))]
    for match in reversed(found):
        yield Frame(match["file"], _number(match["line"]), match["function"] or "")


def _number(digits: str) -> int:
    """0 for what no process and no file has so many of."""
    return int(digits) if len(digits) <= _DIGITS else 0


def _last_code(text: str) -> str:
    """The line of code under the innermost frame."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if _FRAME.match(line)), default=len(lines))
    return lines[last + 1] if last + 1 < len(lines) else ""


def is_own(frames: Sequence[Frame], code: str) -> bool:
    """Whether the program itself raised it, in so many words: such an error follows from nothing.

    >>> is_own([Frame("/job/a.py", 3, "f")], "    raise"), is_own([Frame("/job/a.py", 3, "f")], "    sock.recv(1)")
    (True, False)
    """
    return bool(frames) and not is_library(frames[0].file) and _RAISES.match(code.strip()) is not None


def own_frame(raised: Raised) -> Frame | None:
    """The innermost frame of the program's own: of its stack, or in the text that Ray gives; a library's, if none."""
    own = next((each for each in raised.frames if not is_library(each.file)), None)
    return own or _told_in(raised) or next(iter(raised.frames), None)


def _told_in(raised: Raised) -> Frame | None:
    words = brief(raised.type, raised.message.strip()) if raised.frames else None
    return Frame(words.file, words.line, words.function) if words and words.file else None


def time_of(line: str) -> float | None:
    """The time that a line begins with, or has near its beginning; in the zone of this machine.

    >>> time_of("no time here") is None, time_of("2026-11-21 21:30:00,500 ERROR x") is not None
    (True, True)
    """
    found = _TIME.search(line[:80])
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found['day']}T{found['time']}")
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{found['part'] or 0}")
