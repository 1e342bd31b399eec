"""What Ray says at length, in one sentence: an exception as it is listed and headed. Pure.

The whole text stays in the snapshot; `devkit crashes show --all` has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from devkit.debug.inworker.kills import BY_KILL, called, fields, without_fields
from devkit.debug.inworker.named import ALL_GONE, unkept
from devkit.debug.inworker.ownership import LOST
from devkit.debug.inworker.words import NO_WORD, in_short
from devkit.debug.naming import is_library

_UNPICKLED = re.compile(r"(Could not serialize the [^\n]{1,300}?):\n.*?FAIL serialization: ([^\n]{1,300})", re.DOTALL)
# Ray's memory monitor, since Ray 2.5x: what was used, what may be; before that in other words.
_MONITOR = re.compile(r"killed due to the node running low on memory")
_OVER = re.compile(r"Memory usage (\d+)B exceeded threshold of (\d+)B \(([\d.]+%) of (\d+)B limit\)")
_OVER_BEFORE = re.compile(
    r"was ([\d.]+)GB / ([\d.]+)GB \([\d.]+\), which exceeds the memory usage threshold of (\d(?:\.\d+)?)"
)
_USERS = re.compile(r"memory users:\s+PID\s+MEM\(GB\)\s+COMMAND\s+(.*)", re.DOTALL)
_USER = re.compile(r"(\d+)\s+(\d+\.\d\d)\s+(\S.*?)(?=\s+\d+\s+\d+\.\d\d\s|\s*$)", re.DOTALL)
# A task's error, as Ray passes it on: who raised it, a traceback, the exception's own line.
_SECTION = re.compile(r"ray::(?P<who>[^\s(]{1,200})\(\) \(pid=\d+")
_NOT_READ = "Failed to deserialize exception"  # of a class that the one who asked cannot make again
_SYSTEM = re.compile(r"System error: (?P<first>[^\n]{1,300})\ntraceback: ", re.IGNORECASE)
_CREATION = "error raised in its creation task"
_LINKS = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)[^\n]*\n")
_FRAME = re.compile(r'^\s+File "([^"\n]+)", line (\d{1,9}), in ([^\n]+)$', re.MULTILINE)
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_RAISED = ("Error", "Exception", "Exit", "Interrupt", "Iteration", "Warning")
# An actor's death, as Ray tells who called it.
_DIED = "The actor died unexpectedly before finishing this task."
_OWNERS = re.compile(r"its owner has died\. Owner Id: .*")  # the rest is of what Ray calls a crash whatever it was
_DEAD = re.compile(r"^The actor is dead because (?:its worker process has died\.)?")
_EXIT = re.compile(r"Worker exit type: \w+ Worker exit detail: ")
_NO_ACTOR = re.compile(r"Failed to look up actor with name '[^'\n]*'(?=\. This could because)")  # three guesses follow
# The line of gloo's or NCCL's source that threw, in front of what happened.
_OF_CPP = re.compile(r"^\[/[^\]\n]{1,200}\.(?:cc|cpp|h|hpp):\d+\] ")
ENDED = "process ended"  # by a call of its own
MOST_USERS, WORTH_GIB, COMMAND = 3, 0.1, 40


@dataclass(frozen=True)
class Brief:
    """An exception in few words."""

    type: str
    message: str
    file: str = ""  # where it was raised, if that is another process's
    line: int = 0
    function: str = ""
    raised: str = ""  # the type of what was raised there, if that is another one

    @property
    def said(self) -> str:
        """In one line.

        >>> Brief("ValueError", "no such\\n  word").said, Brief("KeyError", "").said
        ('ValueError: no such word', 'KeyError')
        """
        message = " ".join(self.message.split())
        return f"{self.type}: {message}" if message else self.type


def brief(kind: str, message: str, end: str = "") -> Brief:
    """Of whatever is not known here, what was given. `end` is how a process ended of which Ray has no word.

    >>> brief("SystemExit", "os._exit(3)").said
    'process ended: os._exit(3)'
    >>> brief("ValueError", "no").message, brief("RuntimeError", "[/src/gloo/tcp/pair.cc:537] Read error").message
    ('no', 'Read error')
    """
    words = _brief(kind, message)
    return replace(words, message=words.message.replace(NO_WORD, end)) if end else words


def _brief(kind: str, message: str) -> Brief:
    if is_unpickled(message) and (found := _of_unread(message)):
        return found
    if (kind.startswith("RayTaskError") or _CREATION in message) and (inner := _of_task(kind, message)):
        return inner
    if (system := _SYSTEM.match(message)) is not None:
        return Brief(kind, _of_system(system["first"], message), *_own_place(message[system.end() :]))
    if kind == "SystemExit" and message.startswith("os._exit("):  # which raises nothing
        return Brief(ENDED, message)
    if LOST in message:  # devkit's own sentence, which quotes how the owner died
        return Brief(kind, message)
    if looked := _NO_ACTOR.match(message):
        return Brief(kind, looked[0])
    if sent := _UNPICKLED.search(message):
        return Brief(kind, f"{sent[1]}: {sent[2]}")
    if _MONITOR.search(message) or _OVER_BEFORE.search(message):
        return Brief(kind, "; ".join(["killed by Ray's memory monitor", *_of_monitor(message)]))
    if _DIED in message or BY_KILL in message or _DEAD.match(message):
        return Brief(kind, _of_actor(message))
    return Brief(kind, _OF_CPP.sub("", message))


def _of_system(first: str, message: str) -> str:
    """What an object could not be read for; Ray puts a traceback of its own code behind it.

    >>> _of_system("No module named 'a'", "System error: ...\\nModuleNotFoundError: No module named 'a'")
    "an object could not be unpickled: ModuleNotFoundError: No module named 'a'"
    """
    last = message.rstrip().rpartition("\n")[2].strip()
    told = last if last.endswith(first) else first
    is_read = "deserialize" in message or "unpickle" in message
    return f"an object could not be unpickled: {told}" if is_read or told != first else told


def is_unpickled(message: str) -> bool:
    """Whether Ray shows an error of its own in place of one that could not be unpickled."""
    return _NOT_READ in message


def _of_unread(message: str) -> Brief | None:
    """What was raised in truth, and where; Ray has the text of it."""
    sections = list(_SECTION.finditer(message))
    lines = message[sections[-1].end() :].splitlines() if sections else []
    if (at := _own_line(lines, "")) is None or (found := _ERROR.match(lines[at])) is None:
        return None
    file, line, function = _place("\n".join(lines[:at]), sections[-1]["who"])
    kind = found["type"].rpartition(".")[2]
    told = " ".join([found["message"] or "", *lines[at + 1 :]]).strip()
    shown = f"in place of {kind}, which cannot be unpickled{f': {told}' if told else ''}"
    return Brief("UnserializableException", shown, file, line, function, kind)


def _of_task(kind: str, message: str) -> Brief | None:
    """What the innermost of nested tasks raised, and where; None where the text does not tell."""
    sections = list(_SECTION.finditer(message))
    if not sections:
        return None
    who, text = sections[-1]["who"], message[sections[-1].end() :]
    lines = text.splitlines()
    wanted = kind.removeprefix("RayTaskError").strip("()") if kind.startswith("RayTaskError") else ""
    if (at := _own_line(lines, wanted)) is None or (found := _ERROR.match(lines[at])) is None:
        return None
    inner = brief(found["type"].rpartition(".")[2], "\n".join([found["message"] or "", *lines[at + 1 :]]).strip())
    place = _place("\n".join(lines[:at]), who)
    return inner if inner.file else replace(inner, file=place[0], line=place[1], function=place[2])


def _own_line(lines: Sequence[str], wanted: str) -> int | None:
    """Which line of a traceback is the exception's own; of one whose type is not known, the first below the frames."""
    errors = [at for at, line in enumerate(lines) if at and _ERROR.match(line)]
    names = {at: lines[at].partition(":")[0].rpartition(".")[2] for at in errors}
    if wanted:
        return next((at for at in reversed(errors) if names[at] == wanted), None)
    frames = [at for at, line in enumerate(lines) if _FRAME.match(line)]
    below = (at for at in errors if frames and at > frames[-1])
    return next(below, next((at for at in reversed(errors) if names[at].endswith(_RAISED)), None))


def _own_place(text: str) -> tuple[str, int, str]:
    """The program's innermost frame of a traceback of Ray's, which is Ray's own code else: nothing, if it has none."""
    file, line, name = _place(text, "")
    return (file, line, name) if file and not is_library(file) else ("", 0, "")


def _place(text: str, who: str) -> tuple[str, int, str]:
    """The program's innermost frame of the last exception in a text, else any."""
    frames = [(file, int(line), name) for file, line, name in _FRAME.findall(_LINKS.split(text)[-1])]
    own = [each for each in frames if not is_library(each[0])] or frames
    if not own:
        return "", 0, ""
    file, line, name = own[-1]
    # A traceback has bare names: another class's method may be called as the one that Ray has called.
    is_rays_call = who.rpartition(".")[2] == name and sum(each[2] == name for each in own) == 1
    return file, line, who if is_rays_call else name


def _of_actor(message: str) -> str:
    """Which actor it was, and how it ended.

    >>> _of_actor("The actor is dead because it was killed by `ray.kill`.")
    'the actor was killed by ray.kill'
    >>> _of_actor("The actor is dead because its owner has died. Owner Id: 0a Owner Ip address: 10.0.0.1 Owner w...")
    'the actor died: its owner has ended'
    """
    who = called(fields(message))
    if BY_KILL in message:
        return f"{who} was killed by ray.kill"
    rest = _EXIT.sub("", " ".join(without_fields(message).replace(_DIED, "").split()))
    why = in_short(_OWNERS.sub("its owner has ended", _DEAD.sub("", rest)).strip())
    why = unkept(fields(message).get("name", "")) if ALL_GONE in why else why
    return f"{who} died: {why}" if why else f"{who} died"


def _of_monitor(message: str) -> Iterator[str]:
    """How much the node used of what it may, and who used most of it, as far as the text says."""
    if found := _OVER.search(message):
        used, allowed, limit = (int(found[at]) / 2**30 for at in (1, 2, 4))
        share = f"{found[3].removesuffix('%')} % of {limit:.1f} GiB"
        yield f"the node used {used:.2f} of {allowed:.2f} GiB allowed ({share})"
    elif found := _OVER_BEFORE.search(message):
        yield f"the node used {found[1]} of {found[2]} GiB, and {100 * float(found[3]):g} % are allowed"
    listed = _USERS.search(message)
    users = [(pid, used, command) for pid, used, command in _USER.findall(listed[1] if listed else "")]
    most = [each for at, each in enumerate(users[:MOST_USERS]) if at == 0 or float(each[1]) >= WORTH_GIB]
    if most:
        yield "most by " + ", ".join(f"{_command(command)} (pid {pid}: {used} GiB)" for pid, used, command in most)


def _command(line: str) -> str:
    line = " ".join(line.removeprefix("ray::").split())
    return line if len(line) <= COMMAND else f"{line[: COMMAND - 1]}…"
