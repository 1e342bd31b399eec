"""What clients may ask of the hub. Each operation is one function of the hub, the client's link and the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PROTOCOL, table
from .hub import ANSWER_SECONDS, ARM_SECONDS, Hub, HubError, Link, is_for
from .table import Document

PROGRESS_SECONDS = 1.5  # an agent that has not answered by then cannot run: frozen, or a call holds Python's lock

if TYPE_CHECKING:
    from .documents import BreakpointState, ContinueDocument, CrashesDocument, EvalResult, PsDocument, StackProcess


async def hear(hub: Hub, _link: Link, _request: Document) -> Document:
    return {"protocol": PROTOCOL}


async def ps(hub: Hub, _link: Link, _request: Document) -> PsDocument:
    return table.ps(hub.table)


async def break_(hub: Hub, link: Link, request: Document) -> BreakpointState:
    document = request["breakpoint"]
    hub.update(table.posted(hub.table, document))
    hub.surroundings.keep(list(hub.table.breakpoints.values()))
    known = hub.table.workers
    workers = [name for name in hub.agents if is_for(document, known[name].identity)]
    timeout = float(request.get("wait", ARM_SECONDS))
    await asyncio.gather(*(_arm(hub, worker, document, timeout) for worker in workers))
    return next(state for state in table.breakpoint_states(hub.table) if state["id"] == document["id"])


async def _arm(hub: Hub, worker_id: str, document: Document, timeout: float) -> None:
    reply = await hub.ask(worker_id, "break", timeout, breakpoint=document)
    if "report" in reply:
        hub.update(table.reported(hub.table, worker_id, reply["report"], time.time()))


async def clear(hub: Hub, _link: Link, request: Document) -> Document:
    name = request["id"]
    if name not in hub.table.breakpoints:
        known = ", ".join(hub.table.breakpoints) or "there are none"
        raise HubError(f"no breakpoint {name}", f"devkit break --list shows them: {known}", 2)
    hub.update(table.cleared(hub.table, name))
    hub.surroundings.keep(list(hub.table.breakpoints.values()))
    await asyncio.gather(*(hub.ask(worker, "clear", ARM_SECONDS, breakpoint=name) for worker in hub.agents))
    return {}


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
        raise HubError(f"nothing is stopped as {missing[0]}", _what_became_of(hub, missing[0]), 2)
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
    return {"ranks": list(await asyncio.gather(*(_stack(hub, worker, native, timeout) for worker in workers)))}


async def _stack(hub: Hub, worker_id: str, native: bool, timeout: float) -> StackProcess:
    """From inside the process; by a neighbour where it does not answer, or where native frames are wanted."""
    identity = hub.table.workers[worker_id].identity
    reply = {} if native else await hub.ask(worker_id, "stacks", min(1.0, timeout))
    if "threads" not in reply:
        reply = await _stack_by_neighbour(hub, worker_id, identity, native, timeout, reply.get("error"))
    return {
        "role": identity["role"],
        "rank": identity["rank"],
        "node_ip": identity["node_ip"],
        "pid": identity["pid"],
        "worker_id": identity["worker_id"],
        "job_id": identity["job_id"],
        "threads": reply.get("threads", []),
        "error": reply.get("error"),
    }


async def _stack_by_neighbour(
    hub: Hub, worker_id: str, identity: Document, native: bool, timeout: float, why: str | None
) -> Document:
    reply = await hub.ask_nearby(identity, "spy", timeout, pid=identity["pid"], native=native)
    if "threads" not in reply and native:
        reply = await hub.ask(worker_id, "spy", timeout, pid=identity["pid"], native=native)
    return reply if "threads" in reply else {"error": reply.get("error") or why}


async def hang(hub: Hub, _link: Link, request: Document) -> Document:
    """One sample of every process of a job, and those of it that are gone."""
    timeout = float(request.get("timeout") or ANSWER_SECONDS)
    job_id = request.get("job_id")
    workers = hub.meant(job_id)
    ranks = await asyncio.gather(*(_progress(hub, worker, timeout) for worker in workers))
    left = [each for each in hub.table.left if job_id in (None, each["identity"]["job_id"])]
    return {"time": time.time(), "ranks": list(ranks), "left": left}


async def _progress(hub: Hub, worker_id: str, timeout: float) -> Document:
    """From inside the process; where it does not answer, what a neighbour sees of it."""
    identity = hub.table.workers[worker_id].identity
    reply = await hub.ask(worker_id, "progress", min(PROGRESS_SECONDS, timeout))
    found = {"identity": identity, "facts": reply.get("facts"), "error": reply.get("error")}
    return found if found["facts"] else {**found, **await _seen_by_neighbour(hub, worker_id, identity, timeout)}


async def _seen_by_neighbour(hub: Hub, worker_id: str, identity: Document, timeout: float) -> Document:
    """`process` is null when it is dead; without it nobody could look. Its stack is not asked of a frozen one."""
    seen = await hub.ask_nearby(identity, "look", timeout / 2, pid=identity["pid"])
    if "process" in seen:
        process = seen["process"]
        if process is None or process["state"] in "TtZX":
            return {"process": process, "threads": []}
        spied = await hub.ask_nearby(identity, "spy", timeout / 2, pid=identity["pid"], native=False)
        return {"process": process, "threads": spied.get("threads", [])}
    fate = await hub.fate_of(worker_id)
    return {"fate": fate["reason"]} if fate else {}


async def crashes(hub: Hub, _link: Link, request: Document) -> CrashesDocument:
    await hub.settled(float(request.get("settle") or 0.0))
    await hub.collect({hub.table.workers[name].identity["node_id"] for name in hub.agents})
    return {"crashes": list(hub.table.crashes)}


async def crash(hub: Hub, _link: Link, request: Document) -> Document:
    from . import snapshot

    path = hub.crash_folder / f"{Path(request['id']).name}.json"
    if not path.is_file():
        raise HubError(f"no crash {request['id']}", "devkit crashes lists them", 2)
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
    "eval": eval_,
    "continue": continue_,
    "step": step,
    "stacks": stacks,
    "hang": hang,
    "crashes": crashes,
    "crash": crash,
    "channel": channel,
    "watch": watch,
}
