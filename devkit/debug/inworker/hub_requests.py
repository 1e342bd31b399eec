"""What clients may ask of the hub. Each operation is one function of the hub, the client's link and the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PROTOCOL, table
from .hub import ANSWER_SECONDS, ARM_SECONDS, Hub, HubError, is_for
from .hub_links import Link
from .records import breakpoint_of
from .table import Document

STACK_SECONDS = 1.0  # after which a neighbour is asked, too
LATE_SECONDS = 3.0  # that a process has more, when nobody else can see it
CHILDREN_SECONDS = 4.0  # for a process to tell of its descendants: they have a second, and who looks at them two
PROGRESS_SECONDS = 1.5  # an agent that has not answered by then cannot run: frozen, or a call holds Python's lock

if TYPE_CHECKING:
    from .documents import BreakpointState, ContinueDocument, CrashesDocument, EvalResult, PsDocument, StackProcess


async def hear(hub: Hub, _link: Link, _request: Document) -> Document:
    return {"protocol": PROTOCOL}


async def ps(hub: Hub, _link: Link, _request: Document) -> PsDocument:
    return table.ps(hub.table)


async def break_(hub: Hub, link: Link, request: Document) -> BreakpointState:
    document = request["breakpoint"]
    try:
        breakpoint_of(document)
    except ValueError as error:
        raise HubError(str(error), "was it set by a different version of devkit?", 2) from None
    hub.update(table.posted(hub.table, document))
    await hub.surroundings.keep(list(hub.table.breakpoints.values()))
    known = hub.table.workers
    workers = [name for name in hub.agents if is_for(document, known[name].identity)]
    timeout = float(request.get("wait", ARM_SECONDS))
    await asyncio.gather(*(hub.ask(worker, "break", timeout, breakpoint=document) for worker in workers))
    return next(state for state in table.breakpoint_states(hub.table) if state["id"] == document["id"])


async def clear(hub: Hub, _link: Link, request: Document) -> Document:
    name = request["id"]
    if name not in hub.table.breakpoints:
        known = ", ".join(hub.table.breakpoints) or "there are none"
        raise HubError(f"no breakpoint {name!r}", f"devkit break --list shows them: {known}", 2)
    hub.update(table.cleared(hub.table, name))
    await hub.surroundings.keep(list(hub.table.breakpoints.values()))
    await asyncio.gather(*(hub.ask(worker, "clear", ARM_SECONDS, breakpoint=name) for worker in hub.agents))
    return {}


async def source(hub: Hub, _link: Link, request: Document) -> Document:
    """The text of a code file, as a process of the job has it; where none does, files whose names are like its."""
    workers = hub.meant(request.get("job_id"))
    replies = await asyncio.gather(*(hub.ask(each, "source", ARM_SECONDS, file=request["file"]) for each in workers))
    found = next((reply for reply in replies if reply.get("text") is not None), None)
    near = list(dict.fromkeys(name for reply in replies for name in reply.get("near", ())))
    return {"file": found["file"], "text": found["text"], "near": []} if found else {"near": near}


async def ended(hub: Hub, _link: Link, request: Document) -> Document:
    end = table.End(int(request["code"]), int(request.get("pid", 0)))
    hub.update(table.ended(hub.table, str(request["job_id"]), end))
    return {}


async def ends(hub: Hub, _link: Link, _request: Document) -> Document:
    return {"ends": {job_id: end.code for job_id, end in hub.table.ends.items()}, "over": sorted(table.over(hub.table))}


async def eval_(hub: Hub, _link: Link, request: Document) -> Document:
    timeout = float(request.get("timeout") or ANSWER_SECONDS)
    stops = _stops(hub, request.get("ids"))
    asked = (_eval_at(hub, stop, request["expression"], timeout) for stop in stops)
    return {"results": list(await asyncio.gather(*asked))}


async def _eval_at(hub: Hub, stop: Document, expression: str, timeout: float) -> EvalResult:
    reply = await hub.ask(stop["worker_id"], "eval", timeout, stop=stop["id"], expression=expression)
    return {
        "id": stop["id"],
        "role": stop["role"],
        "rank": stop["rank"],
        "value": reply.get("value"),
        "error": reply.get("error"),
    }


async def continue_(hub: Hub, _link: Link, request: Document) -> ContinueDocument:
    stops = _stops(hub, request.get("ids"))
    asked = (hub.ask(stop["worker_id"], "continue", ARM_SECONDS, stop=stop["id"]) for stop in stops)
    answer = _moved(stops, await asyncio.gather(*asked))
    hub.update(table.resumed(hub.table, answer["continued"]))
    return answer


async def step(hub: Hub, _link: Link, request: Document) -> ContinueDocument:
    """`how`: next, stepIn or stepOut."""
    stops, how = _stops(hub, request.get("ids")), request["how"]
    asked = (hub.ask(stop["worker_id"], "step", ARM_SECONDS, stop=stop["id"], how=how) for stop in stops)
    return _moved(stops, await asyncio.gather(*asked))


def _moved(stops: list[Document], replies: Iterable[Document]) -> ContinueDocument:
    failed = {stop["id"]: reply["error"] for stop, reply in zip(stops, replies, strict=True) if reply.get("error")}
    return {"continued": [stop["id"] for stop in stops if stop["id"] not in failed], "failed": failed}


def _stops(hub: Hub, ids: list[str] | None) -> list[Document]:
    """The stops of these ids, or all of them."""
    every = {stop["id"]: stop for stop in table.stops(hub.table)}
    if ids is None:
        return list(every.values())
    missing = [name for name in ids if name not in every]
    if missing:
        raise HubError(f"nothing is stopped as {missing[0]!r}", _what_became_of(hub, missing[0]), 2)
    return [every[name] for name in ids]


def _what_became_of(hub: Hub, stop_id: str) -> str:
    for end in reversed(hub.table.ended):
        if end.stop["id"] == stop_id:
            return f"that stop has ended: {end.reason}"
    return "devkit ps shows what is stopped"


async def stacks(hub: Hub, _link: Link, request: Document) -> Document:
    timeout = float(request.get("timeout") or ANSWER_SECONDS)
    workers = hub.meant(request.get("job_id"))
    native = bool(request.get("native"))
    ranks, born = await asyncio.gather(
        asyncio.gather(*(_stack(hub, worker, native, timeout) for worker in workers)),
        _children(hub, workers, timeout),
    )
    return {"ranks": [*ranks, *map(_stack_of_child, born)]}


def _stack_of_child(child: Document) -> StackProcess:
    identity, threads = child["identity"], child["facts"]["threads"]
    shown = [{name: each.get(name) for name in ("name", "frames", "stopped")} for each in threads]
    keys = ("role", "rank", "node_ip", "pid", "parent", "worker_id", "job_id")
    return {**{key: identity[key] for key in keys}, "threads": shown, "error": child["error"]}  # type: ignore[typeddict-item]


async def _children(hub: Hub, workers: list[str], timeout: float) -> list[Document]:
    """Descendants of these that have no agent, as a sample has processes; each says who its `parent` is."""
    replies = await asyncio.gather(*(_asked_for_children(hub, each, timeout) for each in workers))
    both = zip(workers, replies, strict=True)
    there = [(hub.table.workers[each].identity, reply) for each, reply in both if each in hub.table.workers]
    known = {(owner["node_id"], owner["pid"]) for owner, _ in there}
    found = []
    for owner, reply in there:
        for child in reply.get("children", ()):
            with suppress(KeyError, TypeError, AttributeError):  # another devkit's
                if (owner["node_id"], child["pid"]) not in known:
                    found.append(_child(owner, child))
                    known.add((owner["node_id"], child["pid"]))
    return found


async def _asked_for_children(hub: Hub, worker: str, timeout: float) -> Document:
    """Who does not answer now will not later; an older agent knows of no children."""
    first = await hub.ask(worker, "children", min(PROGRESS_SECONDS, timeout), count=True)
    return await hub.ask(worker, "children", min(CHILDREN_SECONDS, timeout)) if first.get("count") else first


def _child(owner: Document, child: Document) -> Document:
    own = {"worker_id": f"{owner['worker_id']}-{child['pid']}", "pid": child["pid"], "parent": owner["pid"]}
    facts, command = {**child["facts"], "rank": owner["rank"]}, child["command"]
    return {"identity": {**owner, **own}, "facts": facts, "command": command, "error": _unseen(facts, command)}


def _unseen(facts: Document, command: str) -> str | None:
    """Why there are no stacks, and what the kernel tells instead."""
    if facts["threads"]:
        return None
    main = facts["main"]
    wait = main.get("wait", {})
    state = f"state {facts['process']['state']}" + (f", in {wait['call']}" if wait else "")
    on = f" on {wait['target']}" if wait.get("target") else ""
    return f"{command or 'it does not answer, and py-spy is not there to look'} ({state}{on})"


async def _stack(hub: Hub, worker_id: str, native: bool, timeout: float) -> StackProcess:
    """From inside the process; by a neighbour where it does not answer, or where native frames are wanted."""
    identity = hub.table.workers[worker_id].identity
    if native:
        reply = await _native_stack(hub, worker_id, identity, timeout)
    else:
        reply = await _own_stack(hub, worker_id, identity, timeout)
    return {
        "role": identity["role"],
        "rank": identity["rank"],
        "node_ip": identity["node_ip"],
        "pid": identity["pid"],
        "parent": identity.get("parent", 0),  # an older agent's has none
        "worker_id": identity["worker_id"],
        "job_id": identity["job_id"],
        "threads": reply.get("threads", []),
        "error": reply.get("error"),
        "task": reply.get("task", ""),
        "call": reply.get("call", ""),
    }


async def _own_stack(hub: Hub, worker_id: str, identity: Document, timeout: float) -> Document:
    """A neighbour looks at a process that is late; its own answer counts all the same if it comes meanwhile."""
    own = asyncio.ensure_future(hub.ask(worker_id, "stacks", timeout))
    try:
        await asyncio.wait({own}, timeout=min(STACK_SECONDS, timeout))
        if _tells(own, "threads"):
            return own.result()
        seen = await _unless(
            own, "threads", hub.ask_nearby(identity, "spy", timeout, pid=identity["pid"], native=False)
        )
        if "threads" not in seen and not own.done():
            await asyncio.wait({own}, timeout=min(LATE_SECONDS, timeout))
        if _tells(own, "threads"):
            return own.result()
        why = own.result().get("error") if own.done() else None
        reasons = dict.fromkeys(filter(None, (why, seen.get("error"))))
        return seen if "threads" in seen else {"error": "; ".join(reasons)}
    finally:
        own.cancel()


def _tells(own: asyncio.Future[Document], what: str) -> bool:
    return own.done() and what in own.result()


async def _unless(own: asyncio.Future[Document], what: str, others: Coroutine[Any, Any, Document]) -> Document:
    """What others say of a process; empty if its own answer comes first.

    They may take minutes: on a busy machine the neighbours are late, too, and whoever is sent there has to start.
    """
    looking = asyncio.ensure_future(others)
    try:
        await asyncio.wait({own, looking}, return_when=asyncio.FIRST_COMPLETED)
        return {} if _tells(own, what) else await looking
    finally:
        looking.cancel()


async def _native_stack(hub: Hub, worker_id: str, identity: Document, timeout: float) -> Document:
    reply = await hub.ask_nearby(identity, "spy", timeout, pid=identity["pid"], native=True)
    if "threads" not in reply:
        reply = await hub.ask(worker_id, "spy", timeout, pid=identity["pid"], native=True)
    return reply if "threads" in reply else {"error": reply.get("error")}


async def hang(hub: Hub, _link: Link, request: Document) -> Document:
    """One sample of every process of a job, and those of it that are gone."""
    timeout = float(request.get("timeout") or ANSWER_SECONDS)
    job_id = request.get("job_id")
    workers = hub.meant(job_id)
    ranks, born = await asyncio.gather(
        asyncio.gather(*(_progress(hub, worker, timeout) for worker in workers)), _children(hub, workers, timeout)
    )
    left = [each for each in hub.table.left if job_id in (None, each["identity"]["job_id"])]
    return {"time": time.time(), "ranks": [*ranks, *born], "left": left}


async def _progress(hub: Hub, worker_id: str, timeout: float) -> Document:
    """From inside the process; where it does not answer, what a neighbour sees of it, if that comes first."""
    identity = hub.table.workers[worker_id].identity
    own = asyncio.ensure_future(hub.ask(worker_id, "progress", timeout))
    try:
        await asyncio.wait({own}, timeout=min(PROGRESS_SECONDS, timeout))
        late = not own.done()
        seen = {} if _tells(own, "facts") else await _unless(
            own, "facts", _seen_by_neighbour(hub, worker_id, identity, timeout)
        )  # fmt: skip
        if _tells(own, "facts"):
            return {"identity": identity, "facts": own.result()["facts"], "error": None}
        error = f"no answer within {PROGRESS_SECONDS:g} s" if late else own.result().get("error")
        return {"identity": identity, "facts": None, "error": error, **seen}
    finally:
        own.cancel()


async def _seen_by_neighbour(hub: Hub, worker_id: str, identity: Document, timeout: float) -> Document:
    """`process` is null when it is dead; without it nobody could look. Its stack is not asked of a frozen one."""
    seen = await hub.ask_nearby(identity, "look", timeout / 2, pid=identity["pid"])
    if "process" in seen:
        process = seen["process"]
        known = {"process": process, "connected": seen.get("connected") or {}}
        if process is None or process["state"] in "TtZX":
            return {**known, "threads": []}
        wanted = {"pid": identity["pid"], "native": False, "statements": True}
        spied = await hub.ask_nearby(identity, "spy", timeout / 2, **wanted)
        return {**known, "threads": spied.get("threads", []), "statements": spied.get("statements", [])}
    fate = await hub.fate_of(worker_id)
    return {"fate": fate["reason"]} if fate else {}


async def stores(hub: Hub, _link: Link, _request: Document) -> Document:
    """The nodes' object stores, and of those who hold most who they are, and where they put it."""
    found = await hub.surroundings.stores()
    for holder in (each for store in found for each in store["holders"]):
        worker = hub.table.workers.get(holder["worker_id"])
        holder["role"] = worker.identity["role"] if worker else ""
        holder["puts"] = hub.doing.get(holder["worker_id"], {}).get("puts", [])
    return {"time": time.time(), "stores": found}


async def crashes(hub: Hub, _link: Link, request: Document) -> CrashesDocument:
    await hub.settled(float(request.get("settle") or 0.0))
    await hub.collect({hub.table.workers[name].identity["node_id"] for name in hub.agents})
    return {"crashes": list(hub.table.crashes)}


async def crash(hub: Hub, _link: Link, request: Document) -> Document:
    from . import snapshot

    path = hub.crash_folder / f"{Path(request['id']).name}.json"
    if not path.is_file():
        raise HubError(f"no crash {request['id']!r}", "devkit crashes lists them", 2)
    return snapshot.load(path)


async def channel(hub: Hub, link: Link, request: Document) -> Document:
    worker_id = request["worker_id"]
    agent = hub.agents.get(worker_id)
    if agent is None:
        raise HubError("the worker is not connected", "devkit ps shows what became of it")
    number = next(hub.numbers)
    link.channels[number], agent.channels[number] = agent, link
    agent.write({"type": "channel", "channel": number, "open": True, "only": request.get("only")})
    return {"channel": number}


async def watch(hub: Hub, link: Link, request: Document) -> PsDocument:
    link.watches.add(request["request"])
    hub.watchers.add(link)
    return table.ps(hub.table)


OPERATIONS: dict[str, Callable[[Hub, Link, Document], Awaitable[Mapping[str, Any]]]] = {
    "hello": hear,
    "ps": ps,
    "break": break_,
    "clear": clear,
    "source": source,
    "ended": ended,
    "ends": ends,
    "eval": eval_,
    "continue": continue_,
    "step": step,
    "stacks": stacks,
    "hang": hang,
    "stores": stores,
    "crashes": crashes,
    "crash": crash,
    "channel": channel,
    "watch": watch,
}
