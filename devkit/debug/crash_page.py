"""One crash as a person reads it: the root cause first, the user's frames with source and variables, others folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from devkit.debug import belated
from devkit.debug.briefly import Brief, brief
from devkit.debug.clue_lines import clues_of
from devkit.debug.crash_table import clip, followers_of, place_of, said, where
from devkit.debug.inworker.doing import EVERY_SECONDS
from devkit.debug.inworker.identity import DRIVER
from devkit.debug.inworker.records import DIED, CrashRecord
from devkit.debug.kept_values import is_collection, value_text
from devkit.debug.naming import Who, ago, count, is_library, label, short_path, short_places, size
from devkit.debug.protocols import Document
from devkit.debug.stack_groups import WRAPPERS
from devkit.palette import CAUTION, GOOD, NAME

if TYPE_CHECKING:
    from rich.text import Text

KINDS = {"exit": "end of the process"}
LED_TO = {"cause": "which led to", "context": "while that was handled, there was", "member": "one of those in"}
BESIDE = "and beside it"  # of two in one group
EARLIER = 3  # crashes before one
TOGETHER = 2.0  # seconds: clocks of nodes differ
VALUE_LINES, VALUE_CHARACTERS = 3, 1000  # of one variable, on a terminal and elsewhere
ONCE = 100  # characters of a value; a longer text is shown once
ALIKE = 3  # calls in a row from one line that are all shown
_BY_A_SIGNAL = re.compile(r"\bby SIG[A-Z]+, (?:which|as) ")  # of which it is known where it came from
CALLER_LINES = 1  # of source around a call; around what raised it is all that the snapshot has


def crash_page(
    document: Document,
    crashes: Sequence[CrashRecord],
    now: float,
    *,
    width: int | None = None,
    everything: bool = False,
    cwd: str | None = None,
) -> Text:
    """The exception and where it is from, its chain with the first cause on top, and what was left out."""
    from rich.text import Text

    view = _View(width, everything, cwd, end_of(document.get("root"), crashes))
    found = [*_kin(document, crashes), *_last_look(document, crashes), *_clues(document)]
    blocks = [_head(document, now, view), *found, *view.chain(document), *_wrote(document)]
    if everything:
        blocks += [view.thread(thread) for thread in document.get("threads") or ()]
    elif folded := _folded(document):
        blocks.append(Text(f"{', '.join(folded)}: --all shows them", style="dim"))
    if document.get("cut"):
        blocks.append(Text(f"left out: {'; '.join(document['cut'])}", style="dim"))
    return Text("\n\n").join(blocks)


def _wrote(document: Document) -> Iterator[Text]:
    from rich.text import Text

    if lines := document.get("wrote"):
        yield Text(
            "\n".join(
                [f"the last {'line' if len(lines) == 1 else 'lines'} of its output:", *(f"  {line}" for line in lines)]
            ),
            style="dim",
        )


def _folded(document: Document) -> list[str]:
    """What the page leaves out unless everything is wanted."""
    threads = document.get("threads") or ()
    folded = [count(len(threads), "thread"), "library frames"] if threads else []
    said = document["exception"]
    return folded + (["Ray's own words"] if _words(said, everything=False) != _words(said, everything=True) else [])


def end_of(root: str | None, crashes: Sequence[CrashRecord]) -> str:
    """How the process ended that brought another down with it, where more is known of that than Ray knows."""
    cause = next((each for each in crashes if each.id == root and each.kind == "exit"), None)
    return said(cause) if cause and cause.exception["type"] != DIED else ""


def _words(said: Mapping[str, Any], *, everything: bool, end: str = "") -> Brief:
    """Of an exception, Ray's long ones in short unless everything is wanted."""
    kind, message = str(said.get("type", "")), str(said.get("message") or "").strip()
    return Brief(kind, message) if everything else brief(kind, message, end)


def _head(document: Document, now: float, view: _View) -> Text:
    """What happened to whom."""
    from rich.text import Text

    words = _words(document["exception"], everything=view.everything, end=view.end)
    text = Text(words.type, style="bold red")
    if words.message:
        text.append(f": {short_places(words.message, view.cwd)}", style="not bold red")
    if words.file:
        text.append(
            f"\n{words.raised and f'{words.raised} was '}raised at {place_of(words, view.cwd)}", style="not bold"
        )
    who = label(Who.of(document))
    kind = document.get("kind", "")
    facts = [who, "" if kind == who else KINDS.get(kind, kind), f"{document['node_ip']} pid {document['pid']}".strip()]
    facts += [f"job {document['job_id']}" if document.get("job_id") else "", f"{ago(now - document['time'])} ago"]
    facts += [f"attempt {document['attempt'] + 1}" if document.get("attempt") else ""]
    versions = ", ".join(f"{name} {version}" for name, version in (document.get("versions") or {}).items())
    lines = [text, Text(" · ".join(fact for fact in facts if fact)), Text(f"crash {document['id']}  {versions}")]
    for line in lines[1:]:
        line.stylize("dim")
    return Text("\n").join(lines)


def _last_look(document: Document, crashes: Sequence[CrashRecord]) -> Iterator[Text]:
    """Of a process that had no time to say anything."""
    from rich.text import Text

    lines = list(told_of(document, [each.to_json() for each in crashes]))
    if lines:
        yield Text("\n").join(Text(line, style="dim") for line in lines)


def told_of(document: Mapping[str, Any], crashes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What others know of a process that ended without a word, from when that is, and what nobody knows."""
    if document.get("kind") != "exit" or not document.get("reason"):
        return
    yield from _last_known(document)
    yield from _asked_by(document, crashes)
    if document.get("elsewhere"):
        yield "the signal came in a thread that runs no Python; its main thread was then here"
    if document.get("seen") is not None:
        longer = ", or longer where a call held Python's lock" if document["seen"] >= EVERY_SECONDS else ""
        yield f"as last seen, {document['seen']:.1f} s before its end{longer}"


def _last_known(document: Mapping[str, Any]) -> Iterator[str]:
    """Which actor it was, and with what; what it was at; how much memory it had."""
    made, call, memory = document.get("made"), document.get("call"), document.get("memory")
    if made:
        name = document.get("actor") or ""
        yield f"actor {name}{': ' if name else ''}{_called(made)}"
    if call:
        yield f"in {_called(call)}"
    elif document.get("task_id"):
        own = [frame["function"] for frame in document.get("frames") or () if not is_library(frame["file"])]
        outermost = own[-1] if own else document.get("function")  # that is what Ray called, unless it is decorated
        at = str(document.get("called") or outermost or "").rpartition(".")[2]
        if own:
            yield f"in {at}; its arguments, if it had any, are not known here"
        else:
            timed = bool(at) and document.get("timed") == at
            more = f"that timer was set in a call of {at}" if timed else "whether that had begun is not known here"
            yield f"its last known call: {at}; {more}"
    if memory and not _BY_A_SIGNAL.search(str(document["exception"]["message"])):
        used = f"{size(memory['used'])} of {size(memory['total'])}"
        yield f"memory when last reported: {size(memory['own'])} of its own; in use on its node: {used}"


def _called(call: Mapping[str, Any]) -> str:
    """
    >>> _called({"name": "Reader", "arguments": {"path": "/data", "rank": 3}})
    "Reader(path='/data', rank=3)"
    """
    return f"{call['name']}({', '.join(f'{name}={value_text(each)}' for name, each in call['arguments'].items())})"


def _asked_by(document: Mapping[str, Any], crashes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Who asked for what it was at, and where that one waited for it, if it failed by it."""
    asker = str(document.get("asked_by") or "")
    if asker:
        role = asker.rpartition(".")[0] or asker
        mine = (each for each in crashes if each["root"] == document["id"] and each["role"] == role)
        line = next((where(CrashRecord.from_json(dict(each)), None) for each in mine), "")
        waited = f", which awaited it at {line}" if line else ""
        yield f"asked for by {'the driver' if asker == DRIVER else asker}{waited}"


def _clues(document: Document) -> Iterator[Text]:
    from rich.text import Text

    yield from (Text(line, style=CAUTION) for line in clues_of(document))


def _kin(document: Document, crashes: Sequence[CrashRecord]) -> Iterator[Text]:
    """The crash that caused this one, or those that it caused."""
    from rich.text import Text

    if document.get("root"):
        root = next((each for each in crashes if each.id == document["root"]), None)
        named = f" in {label(Who(root.role, root.rank, root.id))}" if root else ""
        how = "may follow from" if document.get("supposed") else "caused by"
        kept = ", which alone has variables" if document.get("light") else ""
        yield Text(
            f"{how} crash {document['root']}{named}{kept}: devkit crashes show {document['root']}", style=CAUTION
        )
    if end := belated.late(crashes).get(str(document["id"])):
        cause = belated.cause_of(end, crashes)
        yield Text(f"{belated.WHEN} by {_failed_by(cause)}: devkit crashes show {cause.id}", style=CAUTION)
    followers = followers_of(str(document["id"]), crashes)
    if followers:
        named = ", ".join(f"{each.id} ({label(Who(each.role, each.rank, each.id))})" for each in followers[:4])
        more = f" and {len(followers) - 4} more" if len(followers) > 4 else ""
        yield Text(f"then came: {named}{more}", style="dim")
    if earlier := _before(document, crashes):
        yield Text(f"before it, in the same job: {', '.join(earlier)}", style="dim")


def _failed_by(crash: CrashRecord) -> str:
    """`KeyError in Worker[1]`; of its own, its type alone."""
    who = "" if crash.kind == DRIVER else f" in {label(Who(crash.role, crash.rank, crash.id))}"
    return f"{crash.exception.get('type', '')}{who}"


def _before(document: Document, crashes: Sequence[CrashRecord]) -> list[str]:
    """The first one of each kind that may have led to this: a program may go on with what it left."""
    first: dict[tuple[str, str], CrashRecord] = {}
    for each in crashes:
        clocks = TOGETHER if each.node_ip != document.get("node_ip") else 0.0
        if each.job_id == document.get("job_id") and each.time + clocks < document["time"] and not each.root:
            first.setdefault((each.role, str(each.exception.get("type", ""))), each)
    own = (document.get("role", ""), str(document["exception"].get("type", "")))
    others = [each for key, each in first.items() if key != own and each.id != document.get("root")]
    named = (f"{label(Who(each.role, each.rank, each.id))}, {each.exception.get('type', '')}" for each in others)
    return [f"{each.id} ({who})" for each, who in zip(others, named, strict=True)][:EARLIER]


def chain_of(document: Document) -> list[Document]:
    """The exceptions with their whole frames: the one that the crash is named after has them beside the chain."""
    chain = [dict(each) for each in document.get("chain") or ()]
    if not chain:
        return [{**document["exception"], "relation": "raised", "frames": document["frames"]}]
    bare = (index for index, each in enumerate(chain) if each["frames"] and "user" not in each["frames"][0])
    shown = next(bare, None)
    if shown is not None:
        chain[shown]["frames"] = document["frames"]
    return chain


class _View:
    """How wide and how much."""

    def __init__(self, width: int | None, everything: bool, cwd: str | None, end: str) -> None:
        self._width, self.everything, self.cwd, self.end = width, everything, cwd, end
        self._long: dict[str, str] = {}  # texts of values that are shown, and where

    def chain(self, document: Document) -> Iterator[Text]:
        """From the first cause to what was raised at last."""
        from rich.text import Text

        chain = chain_of(document)
        for index in reversed(range(len(chain))):
            each = chain[index]
            words = _words(each, everything=self.everything, end=self.end)
            said = f"{words.type}: {words.message}" if words.message else words.type
            lines = [Text(said, style="bold red")] if len(chain) > 1 else []
            own = each.get("attributes")
            lines += [self._variable(f"{words.type}.{name}", value) for name, value in own.items()] if own else []
            lines += self._frames(each["frames"]) if each["frames"] else [Text("  no frames available", style="dim")]
            yield Text("\n").join(lines)
            if index:
                yield Text(_led_to(str(each.get("relation")), str(chain[index - 1].get("relation"))), style=CAUTION)

    def thread(self, thread: Document) -> Text:
        from rich.text import Text

        rows = [self._place(frame, dim=is_library(frame["file"])) for frame in thread["frames"]]
        return Text("\n").join([Text(f"thread {thread['name']}", style="bold"), *rows])

    def _frames(self, frames: Sequence[Document]) -> list[Text]:
        """Innermost first."""
        from rich.text import Text

        lines: list[Text] = []
        telling = [each for each in frames if self.everything or not WRAPPERS.search(str(each["file"]))] or frames
        for library, run in groupby(telling, key=_is_library):
            every = list(run)
            if library and not self.everything:
                if not lines and len(every) > 1:  # the line that raised it says what was None, say
                    lines += self._raised_at(every.pop(0))
                folded = f"  (+{len(every) - 1} more)" if len(every) > 1 else ""
                lines.append(self._place(every[-1], dim=True, more=folded))
            else:
                for frame, same in _once(every):
                    lines += self._frame(frame, lines == [], dim=library)
                    lines += [Text(f"  (+{same} more at this line)", style="dim")] if same else []
        return lines

    def _raised_at(self, frame: Document) -> Iterator[Text]:
        """A library's line, without those around it and without values."""
        from rich.text import Text

        yield self._place(frame, dim=True)
        source = frame.get("source") or {"first": 0, "lines": []}
        for number, line in enumerate(source["lines"], source["first"]):
            if number == frame["line"]:
                yield Text(clip(f"  -> {number:>4}  {line}", self._width), style="dim")

    def _frame(self, frame: Document, innermost: bool, *, dim: bool) -> Iterator[Text]:
        from rich.text import Text

        yield self._place(frame, dim=dim)
        source = frame.get("source")
        for number, line in enumerate(source["lines"], source["first"]) if source else ():
            here = number == frame["line"]
            if innermost or self.everything or abs(number - frame["line"]) <= CALLER_LINES:
                mark = "->" if here else "  "
                yield Text(clip(f"  {mark} {number:>4}  {line}", self._width), style="bold" if here else "dim")
        for name, value in {**(frame.get("locals") or {}), **(frame.get("globals") or {})}.items():
            yield self._variable(name, value if self.everything else _looked_at_first(name, value, frame))

    def _place(self, frame: Document, *, dim: bool, more: str = "") -> Text:
        from rich.text import Text

        text = Text("  " if dim else "", style="dim" if dim else "")
        text.append(f"{short_path(frame['file'], self.cwd)}:{frame['line']}", style="" if dim else f"bold {NAME}")
        return text.append(f" in {frame['function']}{more}")

    def _variable(self, name: str, value: Any) -> Text:
        """A value goes on below itself: what a tensor has of NaN stands at its end."""
        import textwrap

        from rich.text import Text

        head = f"       {name} = "
        said = value_text(value)
        if len(said) > ONCE and not self.everything:
            if said in self._long:
                return Text.assemble((head, GOOD), f"(reads as {self._long[said]} above)")
            self._keep(name, said, value)
        if self._width is not None:
            room = max(20, self._width - len(head))
            most = None if self.everything else VALUE_LINES
            said = f"\n{' ' * len(head)}".join(textwrap.wrap(said, room, max_lines=most, placeholder=" …"))
        elif not self.everything and len(said) > VALUE_CHARACTERS:
            said = f"{said[:VALUE_CHARACTERS]} …"
        return Text.assemble((head, GOOD), said)

    def _keep(self, name: str, said: str, value: Any) -> None:
        """Of a list its items, too: one of them is often a variable of the loop over it."""
        items = value if isinstance(value, list) else value["items"] if is_collection(value) else ()
        texts = [(said, name), *((value_text(each), f"{name}[{at}]") for at, each in enumerate(items))]
        for text, shown_as in texts:
            if len(text) > ONCE:
                self._long.setdefault(text, shown_as)


def _looked_at_first(name: str, value: Any, frame: Document) -> Any:
    """An object with the attributes first that the frame's lines name, from the one it is at: a long one is cut off."""
    source = frame.get("source")
    if not source or not isinstance(value, dict) or set(value) != {"type", "attributes"}:
        return value
    own, at = value["attributes"], frame["line"] - source["first"]
    lines = sorted(enumerate(source["lines"]), key=lambda one: (one[0] > at, abs(one[0] - at)))
    named = re.compile(rf"(?<![\w.]){re.escape(name)}\.(\w+)")
    first = [each for _, line in lines for each in named.findall(line) if each in own] if isinstance(own, dict) else []
    return {**value, "attributes": {**{each: own[each] for each in first}, **own}} if first else value


def _led_to(relation: str, following: str) -> str:
    """
    >>> _led_to("cause", "raised"), _led_to("member", "raised"), _led_to("member", "member")
    ('which led to', 'one of those in', 'and beside it')
    """
    return BESIDE if relation == following == "member" else LED_TO.get(relation, "then came")


def _once(frames: Sequence[Document]) -> Iterator[tuple[Document, int]]:
    """Each frame, and how many behind it are left out: of a recursion without end the first and the last are shown."""
    for _, run in groupby(frames, key=lambda each: (each["file"], each["line"], each["function"])):
        same = list(run)
        if len(same) <= ALIKE:
            yield from ((each, 0) for each in same)
        else:
            yield from ((same[0], len(same) - 2), (same[-1], 0))


def _is_library(frame: Mapping[str, Any]) -> bool:
    return not frame["user"] if "user" in frame else is_library(str(frame["file"]))
