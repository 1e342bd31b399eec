"""Reads what the hub's `hang` answers (`debug/inworker/progress.py`) into records of facts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devkit.debug.stack_groups import LOOP_THREAD, MAIN, Frame, role_of
from devkit.debug.stack_groups import read as read_stack
from devkit.hang import conversing
from devkit.hang.facts import (
    DEAD,
    CallWait,
    Caught,
    CrashFacts,
    Document,
    Ended,
    Entry,
    FarEnd,
    Fork,
    GroupFacts,
    Halt,
    InnerWait,
    LockWait,
    Lookup,
    Poll,
    ProcessFacts,
    Sample,
    ThreadFacts,
    Wrote,
)
from devkit.hang.model_facts import Model
from devkit.hang.standing import (
    Asked,
    Asking,
    Endless,
    Ends,
    EndsAt,
    Growing,
    Handled,
    Line,
    PassedOver,
    Standing,
    Turn,
    Values,
)

_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")


def read_sample(answer: Document, crashes: Sequence[CrashFacts] = (), **tables: Any) -> Sample:
    """A sample of the hub's answer, and what else is known of the same moment, by the names of `Sample`'s fields."""
    processes = tuple(read_process(each) for each in answer["ranks"])
    left = tuple(_left(each) for each in answer["left"])
    return Sample(float(answer["time"]), processes, left, crashes=tuple(crashes), **tables)


def read_process(document: Document) -> ProcessFacts:
    """One process as the hub has it: from inside, or as a neighbour sees it."""
    who, facts = document["identity"], document.get("facts") or {}
    known = facts or document
    threads = known.get("threads") or []
    kernel = known.get("process") or {}
    rank = facts.get("rank") if facts else who.get("rank")
    connected = known.get("connected") or {}
    gone = bool(document.get("fate")) or ("process" in document and document["process"] is None)
    return ProcessFacts(
        id=str(who["worker_id"]),
        role=role_of(who),
        rank=rank,
        node_ip=str(who.get("node_ip") or ""),
        pid=int(who["pid"]),
        stack=read_stack({**who, "rank": rank, "threads": threads}),
        answers=bool(facts),
        seen=bool(facts) or gone or "process" in document,
        heard=None if document.get("heard") is None else float(document["heard"]),
        problem=str(document.get("fate") or document.get("error") or ""),
        state=str(kernel.get("state") or ""),
        dead=gone or str(kernel.get("state") or "S") in DEAD,
        cpu=float(kernel.get("cpu") or 0) + float(kernel.get("children_cpu") or 0),
        io=int(kernel.get("io") or 0),
        step=facts.get("step"),
        phase=str(facts.get("phase") or ""),
        task=str(facts.get("task") or ""),
        threads=tuple(_thread(each) for each in threads or _main(facts)),
        groups=tuple(_group(each, str(who.get("node_ip") or "")) for each in facts.get("groups") or ()),
        call=facts.get("call") or {},
        locks=tuple(_lock(each) for each in facts.get("locks") or ()),
        waits=tuple(_call_wait(each) for each in facts.get("waits") or ()),
        lookups=tuple(_lookup(each) for each in facts.get("lookups") or ()),
        ended=tuple(_ended(each) for each in facts.get("ended") or ()),
        caught=tuple(_caught(each) for each in facts.get("caught") or ()),
        inner=tuple(_inner_wait(each) for each in facts.get("primitives") or ()),
        polls=tuple(_poll(each) for each in facts.get("polls") or ()),
        environments=tuple(map(conversing.environment, facts.get("environments") or ())),
        engine=conversing.engine(facts.get("engine")),
        searches=tuple(map(conversing.search, facts.get("searches") or ())),
        standing=tuple(map(_standing, known.get("statements") or ())),
        turning=tuple(map(_turn, known.get("turning") or ())),
        keeps=_values(facts.get("keeps") or {}),
        growing=_growing(facts.get("growing") or {}),
        models=tuple(map(_model, (facts.get("models") or {}).values())),
        wrote=tuple(map(_wrote, facts.get("wrote") or ())),
        coroutines=int((facts.get("coroutines") or {}).get("count") or 0),
        running=tuple(map(str, (facts.get("coroutines") or {}).get("running") or ())),
        actor_id=str(facts.get("actor_id") or ""),
        concurrency=int(facts.get("concurrency") or 0),
        grouped=bool(facts.get("grouped")),
        method_groups=dict(_values(facts.get("method_groups") or {})),
        stopped=bool(facts.get("stops")),
        parent=int(who.get("parent") or 0),
        age=None if facts.get("age") is None else float(facts["age"]),
        orphaned=bool(facts.get("orphaned")),
        fork=_fork(facts.get("forked")),
        command=str(document.get("command") or ""),
        unanswered=tuple((str(each["peer"]), int(each["tries"])) for each in facts.get("unanswered") or ()),
        pipes={str(inode): str(mode) for inode, mode in connected.get("pipes", {}).items()},
        sockets=frozenset(map(str, connected.get("sockets") or ())),
        files=frozenset(map(str, connected.get("locks") or ())),
        halts=tuple(_halt(each) for each in facts.get("halts") or ()),
    )


def _wrote(document: Document | str) -> Wrote:
    """An older devkit in a worker gives the line alone."""
    return Wrote(document) if isinstance(document, str) else Wrote(str(document["line"]), bool(document["last"]))


def _halt(document: Document) -> Halt:
    return Halt(int(document["pid"]), str(document["signal"]), frame(document))


def _main(facts: Document) -> list[Document]:
    """Of a process without stacks: what the kernel says of its main thread."""
    return [{**facts["main"], "name": MAIN}] if facts.get("main") else []


def _left(document: Document) -> ProcessFacts:
    return read_process({"identity": document["identity"], "fate": document["reason"]})


def _thread(document: Document) -> ThreadFacts:
    wait = document.get("wait") or {}
    return ThreadFacts(
        str(document.get("name") or ""),
        str(document.get("state") or ""),
        float(document.get("cpu") or 0.0),
        str(wait.get("call") or ""),
        str(wait.get("target") or ""),
        tuple(map(str, wait.get("pipes") or ())),
        tuple(FarEnd(int(each["pid"]), str(each["command"]), bool(each["orphan"])) for each in wait.get("far") or ()),
        _is_side(document),
        int(document.get("turns") or 0),
        None if document.get("ran") is None else float(document["ran"]),
        _serves(document),
    )


def _is_side(document: Document) -> bool:
    outermost = (document.get("frames") or [{}])[-1]
    is_pythons = str(outermost.get("file", "")).endswith("/threading.py")
    return is_pythons and not str(document.get("name")).startswith(LOOP_THREAD)


def _serves(document: Document) -> bool:
    """Whether a thread is in the handling of a connection within `serve_forever`, as without `ThreadingMixIn`."""
    names = [str(each.get("function")).rpartition(".")[2] for each in document.get("frames") or ()]
    return "serve_forever" in names and "finish_request" in names[: names.index("serve_forever")]


def _group(document: Document, node_ip: str) -> GroupFacts:
    """As a rank on that node has it."""
    entries = tuple(
        Entry(
            each["seq"],
            each["p2p"],
            each["op"],
            str(each["sizes"])[1:-1],
            str(each["dtypes"]),
            each["done"],
            each["age"],
            each.get("peer"),
        )
        for each in document["entries"]
    )
    return GroupFacts(
        str(document["name"]),
        str(document.get("description") or ""),
        str(document.get("backend") or ""),
        _met_at(str(document.get("world") or ""), node_ip),
        tuple(document["ranks"]),
        entries,
    )


def _met_at(world: str, node_ip: str) -> str:
    """The place as other nodes call it, also for the rank that opened it at all addresses of its own.

    >>> _met_at("0.0.0.0:4711", "10.0.0.2"), _met_at("10.0.0.2:4711", "10.0.0.3")
    ('10.0.0.2:4711', '10.0.0.2:4711')
    """
    host, _, port = world.rpartition(":")
    return f"{node_ip}:{port}" if host in _ANY_ADDRESS and node_ip else world


def _call_wait(document: Document) -> CallWait:
    return CallWait(
        str(document["thread"]),
        str(document["call"]),
        frame(document["at"]),
        tuple(document["tasks"]),
        int(document["needed"]),
        bool(document["ends"]),
        bool(document["side"]),
        bool(document.get("blocks")),
        near=_values(document.get("near") or {}),
        takes=tuple((str(each["actor"]), frame(each["at"])) for each in document.get("takes") or ()),
    )


def _inner_wait(document: Document) -> InnerWait:
    held = document.get("held_at")
    return InnerWait(
        str(document["thread"]),
        str(document["call"]),
        frame(document["at"]),
        str(document["what"]),
        int(document["count"]),
        bool(document["free"]),
        str(document.get("holder") or ""),
        str(document.get("holder_call") or ""),
        frame(held) if held else None,
        bool(document.get("blocks")),
        int(document.get("side") or 0),
        bool(document.get("shared")),
        str(document.get("joins") or ""),
        bool(document.get("closes")),
    )


def _poll(document: Document) -> Poll:
    at, by, sums = frame(document["at"]), frame(document["by"]), str(document.get("sums") or "")
    return Poll(at, by, str(document["loop"]), _values(document["values"]), sums)


def _turn(document: Document) -> Turn:
    values, whole = _values(document["values"]), str(document.get("whole") or "")
    states = tuple((str(name), tuple(map(str, each))) for name, each in (document.get("states") or {}).items())
    return Turn(frame(document["at"]), str(document["loop"]), values, whole, states)


def _standing(document: Document) -> Standing:
    return Standing(str(document["thread"]), tuple(map(_line, document["lines"])))


def _line(document: Document) -> Line:
    loop, under, asking = document.get("loop") or {}, document.get("under") or {}, document.get("asking")
    handles = document.get("handles")
    return Line(
        frame(document["at"]),
        str(document["text"]),
        _values(document["values"]),
        str(loop.get("loop") or ""),
        _values(loop.get("values") or {}),
        str(under.get("if") or ""),
        _values(under.get("values") or {}),
        _ends(document.get("ends")),
        _values(document.get("locals") or {}),
        _asking(asking) if asking else None,
        _endless(document.get("endless")),
        Handled(str(handles["said"]), frame(handles["at"])) if handles else None,
        bool(loop.get("over")),
        str(loop.get("whole") or ""),
        bool(document.get("met")),
        str(document.get("signal") or ""),
        _passed(loop.get("passes_over"), str(document["at"]["file"])),
        tuple((str(each["loop"]), _values(each["values"])) for each in loop.get("outer") or ()),
        bool(under.get("over")),
    )


def _asking(document: Document) -> Asking:
    asked = (
        Asked(
            str(one["actor"]),
            str(one["method"]),
            int(one["line"]),
            str(one["answer"]),
            str(one.get("test") or ""),
            _values(one.get("values") or {}),
        )
        for one in document.get("asked") or ()
    )
    stale = tuple(map(str, document.get("stale") or ()))
    kept = str(document.get("kept") or "")
    return Asking(str(document["loop"]), _values(document["values"]), kept, tuple(asked), stale)


def _growing(document: Document) -> dict[str, Growing]:
    file, rows = str(document.get("file") or ""), document.get("methods") or {}
    places = {name: tuple(frame({**each, "file": file}) for each in row["in"]) for name, row in rows.items()}
    return {
        str(name): Growing(tuple(map(str, row["reads"])), places[name], bool(row.get("takes")))
        for name, row in rows.items()
    }


def _passed(document: Document | None, file: str) -> PassedOver | None:
    return None if document is None else PassedOver(str(document["errors"]), file, int(document["line"]))


def _endless(document: Document | None) -> Endless | None:
    if document is None:
        return None
    return Endless(str(document["loop"]), _values(document["values"]), tuple(map(_ends_at, document["by"])))


def _ends(document: Document | None) -> Ends | None:
    if document is None:
        return None
    at, undone = (tuple(map(_ends_at, document.get(part) or ())) for part in ("at", "undone"))
    return Ends(str(document["what"]), str(document["how"]), at, undone)


def _ends_at(document: Document) -> EndsAt:
    under, known = str(document.get("under") or ""), _values(document.get("values") or {})
    unless = str(document.get("unless") or "")
    return EndsAt(int(document["line"]), str(document["function"]), under, known, unless)


def _values(document: Document) -> Values:
    return tuple((str(name), str(value)) for name, value in document.items())


def _lookup(document: Document) -> Lookup:
    name, namespace = str(document["name"]), str(document["namespace"])
    return Lookup(name, namespace, int(document["count"]), float(document["seconds"]), frame(document["at"]))


def _model(document: Document) -> Model:
    return Model(
        str(document["class"]),
        {str(kind): int(count) for kind, count in document["parameters"].items()},
        dict(_values(document["tied"])),
    )


def _ended(document: Document) -> Ended:
    at = document.get("at")
    many = int(document.get("count", 1)), bool(document.get("alike", True)), int(document.get("open", 0))
    said = str(document["said"])
    known = document.get("reaches") or {"file": "", "names": ()}
    reaches = str(known["file"]), frozenset(map(str, known["names"]))
    return Ended(str(document["kind"]), str(document["name"]), said, frame(at) if at else None, *many, *reaches)


def _caught(document: Document) -> Caught:
    kind, text = str(document["kind"]), str(document["text"])
    count, seconds, ago = int(document["count"]), float(document["seconds"]), float(document["ago"])
    said = f"{kind}: {text}" if text else kind
    how = str(document.get("how") or "")
    return Caught(said, frame(document["at"]), frame(document["by"]), count, seconds, ago, how)


def _fork(document: Document | None) -> Fork | None:
    if document is None:
        return None
    return Fork(frame(document["at"]) if document.get("at") else None)


def _lock(document: Document) -> LockWait:
    held, then, kept = (document.get(part) for part in ("held_at", "then", "kept_at"))
    return LockWait(
        str(document["thread"]),
        str(document["lock"]),
        frame(document["at"]),
        document.get("holder"),
        frame(held) if held else None,
        str(document.get("call") or ""),
        (str(then["thread"]), frame(then["at"])) if then else None,
        frame(kept) if kept else None,
        str(document.get("what") or ""),
    )


def frame(document: Document) -> Frame:
    """A line of a stack."""
    return Frame(str(document["file"]), int(document.get("line") or 0), str(document["function"]))
