"""What clients may ask of the hub. Each operation is one function of the hub, the client's link and the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import PROTOCOL, hub_looks, table
from .hub import ANSWER_SECONDS, ARM_SECONDS, Hub, HubError, is_for
from .hub_links import Link
from .records import breakpoint_of
from .table import Document

if TYPE_CHECKING:
    from .documents import BreakpointState, ContinueDocument, CrashesDocument, EvalResult, PsDocument


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
    timeout = _seconds(request)
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
    timeout = _seconds(request)
    asked = (hub.ask(stop["worker_id"], "continue", timeout, stop=stop["id"]) for stop in stops)
    answer = _moved(stops, await asyncio.gather(*asked))
    hub.update(table.resumed(hub.table, answer["continued"]))
    return answer


async def step(hub: Hub, _link: Link, request: Document) -> ContinueDocument:
    """`how`: next, stepIn or stepOut."""
    stops, how, timeout = _stops(hub, request.get("ids")), request["how"], _seconds(request)
    asked = (hub.ask(stop["worker_id"], "step", timeout, stop=stop["id"], how=how) for stop in stops)
    return _moved(stops, await asyncio.gather(*asked))


def _seconds(request: Document) -> float:
    """How long agents may take to answer."""
    return float(request.get("timeout") or ANSWER_SECONDS)


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
    timeout = _seconds(request)
    return {"ranks": await hub_looks.stacks(hub, request.get("job_id"), bool(request.get("native")), timeout)}


async def hang(hub: Hub, _link: Link, request: Document) -> Document:
    """One sample of every process of a job, and those of it that are gone."""
    timeout = _seconds(request)
    job_id = request.get("job_id")
    ranks = await hub_looks.samples(hub, job_id, timeout)
    left = [each for each in hub.table.left if job_id in (None, each["identity"]["job_id"])]
    return {"time": time.time(), "ranks": ranks, "left": left}


async def stores(hub: Hub, _link: Link, _request: Document) -> Document:
    """The nodes' object stores, and of those who hold most who they are, and where they put it."""
    found = await hub.surroundings.stores()
    for holder in (each for store in found for each in store["holders"]):
        worker = hub.table.workers.get(holder["worker_id"])
        holder["role"] = worker.identity["role"] if worker else ""
        holder["puts"] = hub.doing.get(holder["worker_id"], {}).get("puts", [])
    return {"time": time.time(), "stores": found}


async def caught(hub: Hub, _link: Link, request: Document) -> Document:
    """What the processes of a job have caught, those that are gone too."""
    return {"workers": table.caught(hub.table, str(request["job_id"]))}


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
    "caught": caught,
    "crash": crash,
    "channel": channel,
    "watch": watch,
}
