"""What the hub may ask of an agent. Each operation is one function of the agent and the request, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import costs
from .records import Breakpoint

KEPT_TOLD = 20  # snapshots in one answer
SPY_SECONDS = 8.0

Document = dict[str, Any]


def break_(agent: Any, document: Document) -> Document:
    agent.arm(Breakpoint.from_json(document["breakpoint"]))
    return {}


def clear(agent: Any, document: Document) -> Document:
    agent.remove(document["breakpoint"])
    return {}


def eval_(agent: Any, document: Document) -> Document:
    from .values import evaluate_summary

    stop = agent.stops.get(document["stop"])
    if stop is None:
        return {"error": "not stopped any more"}
    frame = stop.frames()[int(document.get("frame", 0))]
    timeout = float(document.get("timeout", 10.0))
    return evaluate_summary(stop, document["expression"], frame, timeout)


def continue_(agent: Any, document: Document) -> Document:
    stop = agent.stops.get(document["stop"])
    if stop is None:
        return {"error": "not stopped any more"}
    if stop.place.busy:
        agent.stops.resume(document["stop"])
        return {"error": "it is still evaluating an expression and resumes when that ends"}
    agent.send({"type": "reply", "id": document["id"]})  # now: the process may end with the program's next line
    agent.stops.resume(document["stop"])
    return {}


def step(agent: Any, document: Document) -> Document:
    stop, how = agent.stops.get(document["stop"]), document["how"]
    if stop is None:
        return {"error": "not stopped any more"}
    if stop.place.busy:
        return {"error": "it is still evaluating an expression"}
    if how not in ("next", "stepIn", "stepOut"):
        return {"error": f"there is no step {how!r}"}
    agent.send({"type": "reply", "id": document["id"]})  # as above
    agent.stops.resume(document["stop"], how)
    return {}


@costs.counted()
def stacks(agent: Any, _document: Document) -> Document:
    from .forked import is_child
    from .progress import task_function, task_name
    from .stacks import all_threads

    call = "" if is_child() else task_name()  # a forked child has its parent's title, of the moment of the fork
    return {"threads": all_threads(), "task": task_function(), "call": call}


@costs.counted()
def spy(agent: Any, document: Document) -> Document:
    """The stacks of a neighbour, and where they are wanted the statements at which it stands, with variables.

    `within` is how many seconds py-spy may take.
    """
    from .dumping import NoDumpError, look
    from .stacks import PySpyError, with_statements

    pid, within = int(document["pid"]), float(document.get("within") or SPY_SECONDS)  # an older hub says none
    if document.get("statements"):
        with suppress(PySpyError):
            threads, statements = with_statements(pid, within)
            return {"threads": threads, "statements": statements}
    try:
        return {"threads": look(pid, bool(document["native"]), within)}
    except (NoDumpError, PySpyError) as error:
        return {"error": str(error)}


@costs.counted()
def progress(agent: Any, _document: Document) -> Document:
    from .progress import facts

    return {"facts": facts(agent)}


@costs.counted()
def children(_agent: Any, document: Document) -> Document:
    """The living descendants of this process that have no agent; at first only how many there are."""
    from .children import count, look

    return {"count": count()} if document.get("count") else {"children": look()}


@costs.counted()
def look(agent: Any, document: Document) -> Document:
    """What the kernel knows of a neighbour that does not answer itself, and what others may wait for that it has."""
    from . import connected
    from .kernel_view import process

    pid = int(document["pid"])
    found = process(pid)
    return {"process": found, "connected": connected.of_process(pid) if found else {}}


def lives(agent: Any, document: Document) -> Document:
    from .lastwords import lives

    return {"lives": lives(int(document["pid"]))}


def last_words(agent: Any, document: Document) -> Document:
    from .hub_place import error_log
    from .kernel import killed_for_memory
    from .lastwords import last_words

    identity = document["identity"]
    return {"words": last_words(error_log(identity)) or killed_for_memory(identity["pid"], identity["role"])}


def source(agent: Any, document: Document) -> Document:
    """The text of a code file, as this process has it, or names like its."""
    from .texts import source_of

    return source_of(str(document["file"]))


def kept(agent: Any, document: Document) -> Document:
    """Snapshots of this node that the hub has not heard of."""
    from . import snapshot
    from .hooks import crash_folder

    folder, known = crash_folder(), set(document["known"])
    missing = [record.id for record in snapshot.list_folder(folder) if record.id not in known]
    return {"documents": [snapshot.load(folder / f"{name}.json") for name in missing[:KEPT_TOLD]]}


def caught(agent: Any, _document: Document) -> Document:
    """What the program has caught, up to now."""
    return {"caught": agent.caught()}


@costs.counted()
def where(_agent: Any, document: Document) -> Document:
    """Where this process is, if one of these actors lives here."""
    from . import kept_waiting

    return kept_waiting.where(list(map(str, document["actors"])))


def cancelled(_agent: Any, document: Document) -> Document:
    """Where this process has cancelled one of these tasks."""
    from . import cancels

    return {"site": next(filter(None, (cancels.site(str(each)) for each in document["tasks"])), None)}


def modules(_agent: Any, document: Document) -> Document:
    """Which copies of these modules, and which versions of the packages of others, this process has."""
    from . import editions, packages

    found = {"modules": editions.of_modules(map(str, document["names"]))}
    asked = document.get("packages") or ()  # an older hub asks for none
    return {**found, "packages": packages.of_modules(map(str, asked))} if asked else found


OPERATIONS: dict[str, Callable[[Any, Document], Document]] = {
    "break": break_,
    "clear": clear,
    "eval": eval_,
    "continue": continue_,
    "step": step,
    "stacks": stacks,
    "spy": spy,
    "progress": progress,
    "children": children,
    "look": look,
    "lives": lives,
    "last_words": last_words,
    "source": source,
    "kept": kept,
    "modules": modules,
    "where": where,
    "cancelled": cancelled,
    "caught": caught,
}
