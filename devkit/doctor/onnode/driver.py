"""Looks at every node of a cluster, as a driver of it: one actor per node, all at once, one deadline.

A program: an order comes on stdin as JSON, what was found goes to stdout as one line behind a mark.
"""

from __future__ import annotations

import importlib
import json
import logging
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from .facts import Collective
from .network import unacknowledged

MARK = "devkit-doctor:"
HELLO_SHARE = 0.7  # of the time: a node that has not answered by then is told, and the others are looked at
HELLO_S, HELLO_TIMES = 10.0, 4.0  # how long a node has at least, and how many times as long as the quickest took
LATE = "no answer within"
CLOCK_READINGS = 3
STREAMED_NODES = 12  # in a larger cluster each node streams to its next one only: it would take too long
SLOW_MB_PER_S = 100.0  # what is slower is measured again
_MEASURED = ("mb_per_s", "segments", "retransmitted")
STORE_S = 2.0  # for a raylet to tell of its object store
LOOKUP_S = 11.0  # a dead DNS server costs ten seconds
Document = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """What the survey is to do."""

    address: str  # of the GCS; "auto" inside of a job
    seconds: float
    program: str = ""  # `collective.py`; empty: no all-reduce
    services: dict[str, tuple[str, int]] = field(default_factory=dict)
    retrievers: tuple[tuple[str, int], ...] = ()  # of the command


class Survey:
    """The nodes that answer, and what they are asked."""

    def __init__(self, ray: Any, examiner: Any, nodes: list[Document], order: Order) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._order = order
        self._key = secrets.token_bytes(16)
        self._end = time.monotonic() + order.seconds
        self._address = {node["node_id"]: node["ip"] for node in nodes}
        remote = ray.remote(num_cpus=0, max_concurrency=16, max_restarts=0)(examiner)
        self._actors = {
            node: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                node, self._key, order.program
            )
            for node in self._address
        }
        self._ports: dict[str, int] = {}
        self.problems: dict[str, str] = {}  # node -> why it did not answer

    def close(self) -> None:
        closing = [actor.close.remote() for actor in self._actors.values()]
        with suppress(Exception):  # Ray has many for a node that is lost; who has not closed is killed
            self._ray.wait(closing, num_returns=len(closing), timeout=1.0)
        for actor in self._actors.values():
            self._ray.kill(actor)

    def address(self, node: str) -> str:
        return str(self._address[node])

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def answers(
        self, refs: dict[str, Any], seconds: float, most: int | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """What each node gave within that time, and why the others did not; `most` answers are enough."""
        found: dict[str, Any] = {}
        failed: dict[str, str] = {}
        pending = {ref: node for node, ref in refs.items()}
        end = time.monotonic() + seconds
        while pending and (most is None or len(found) < most):
            done, _ = self._ray.wait(list(pending), num_returns=1, timeout=max(0.0, end - time.monotonic()))
            if not done:
                break
            node = pending.pop(done[0])
            try:
                found[node] = self._ray.get(done[0])
            except Exception as error:  # noqa: BLE001 - Ray's many ways to lose an actor; each is told of its node
                failed[node] = " ".join(str(error).split())[:200] or type(error).__name__
        failed |= dict.fromkeys(pending.values(), f"no answer within {seconds:.0f} s")
        return found, failed

    def meet(self) -> None:
        """Who is there. A node has as long as the first one that answers took, many times over: that one measures how
        busy the machines are."""
        refs = {node: actor.hello.remote() for node, actor in self._actors.items()}
        begun = time.monotonic()
        first, _ = self.answers(refs, self._order.seconds * HELLO_SHARE, most=1)
        took = time.monotonic() - begun
        patience = min(max(HELLO_S, HELLO_TIMES * took), self._order.seconds * HELLO_SHARE) - took
        rest = {node: ref for node, ref in refs.items() if node not in first}
        found, self.problems = self.answers(rest, patience if first else 0.0)
        found |= first
        if first:
            beside = f"{self._address[next(iter(first))]} answered after {took:.1f} s"
            waited = f"no answer within {took + patience:.1f} s; {beside}"
            self.problems = {node: waited if why.startswith(LATE) else why for node, why in self.problems.items()}
        self._ports = {node: found[node]["port"] for node in self._address if node in found}

    def start_probes(self) -> dict[str, Any]:
        seconds = min(max(LOOKUP_S, self._order.seconds / 2), self._order.seconds - 1.0)
        question = {
            "seconds": seconds,
            "key": self._key.hex(),
            "addresses": tuple(dict.fromkeys(self._address.values())),
            "services": self._order.services,
            "retrievers": self._order.retrievers,
        }
        return {node: actor.probe.remote(question) for node, actor in self._actors.items()}

    def clocks(self) -> dict[str, Document]:
        """How far each clock is from this one, by the quickest of a few readings."""
        found: dict[str, Document] = {}
        for _ in range(CLOCK_READINGS):
            for node in self._ports:
                sent = time.time()
                answer, _ = self.answers({node: self._actors[node].clock.remote()}, min(2.0, self.left))
                trip = time.time() - sent
                if node in answer and trip < found.get(node, {"within": 1e9})["within"]:
                    found[node] = {"offset": answer[node] - sent - trip / 2, "within": trip}
        return found

    def pairs(self) -> list[Document]:
        """Every node to every other one: reach and latency at once, then what a connection carries, in rounds."""
        refs = {
            node: self._actors[node].reach.remote(
                [(other, self._address[other], port) for other, port in self._ports.items() if other != node]
            )
            for node in self._ports
        }
        found, failed = self.answers(refs, min(11.0, self.left))
        self.problems |= failed
        pairs = {
            (node, other): pair
            for node, answer in found.items()
            if "failure" not in answer
            for other, pair in answer.items()
        }
        for matches in rounds(list(self._ports), STREAMED_NODES):
            if self.left < self._order.seconds * 0.2:
                break
            self._stream(pairs, matches)
        order = {node: number for number, node in enumerate(self._address)}
        return [pairs[ends] for ends in sorted(pairs, key=lambda ends: (order[ends[0]], order[ends[1]]))]

    def _stream(self, pairs: dict[tuple[str, str], Document], matches: list[tuple[str, str]], tries: int = 2) -> None:
        able = [match for match in matches if not pairs.get(match, {"error": "unknown"})["error"]]
        refs = {
            source: self._actors[source].stream.remote(target, self._address[target], self._ports[target])
            for source, target in able
        }
        found, _ = self.answers(refs, min(5.0, self.left))
        for match in able:
            seen = found.get(match[0], {})
            if seen and not seen.get("error") and "failure" not in seen:
                best = max(seen, pairs[match], key=lambda each: each["mb_per_s"] or 0.0)
                pairs[match] = {**pairs[match], **{name: best[name] for name in _MEASURED}}
        slow = [match for match in able if (pairs[match]["mb_per_s"] or 0.0) < SLOW_MB_PER_S]
        if slow and tries > 0:  # a busy moment of either node is not a slow link
            self._stream(pairs, slow, tries - 1)

    def collectives(self, pairs: list[Document], gpus: dict[str, int]) -> Iterator[Document]:
        """gloo over all nodes, and NCCL where each of them has a GPU."""
        if not self._order.program or len(self._ports) < 2:
            return
        cut = sorted({pair["source"] for pair in pairs if pair["error"]})
        if cut:
            why = "some nodes cannot reach each other: it would hang"
            yield asdict(Collective("gloo", len(self._ports), "skipped", why, tuple(cut)))
            return
        words, failed = self.answers({n: self._actors[n].ready.remote(self.left) for n in self._ports}, self.left)
        words |= {node: {"status": "late", "detail": why} for node, why in failed.items()}
        unready = {n: w for n, w in words.items() if w.get("status") != "ready"}
        if unready:
            yield asdict(not_ready(unready, len(self._ports)))
            return
        yield self._all_reduce("gloo")
        if all(word.get("gpus") and gpus.get(node) for node, word in words.items()):
            yield self._all_reduce("nccl")

    def _all_reduce(self, backend: str) -> Document:
        first = next(iter(self._ports))
        ports, failed = self.answers({first: self._actors[first].free_port.remote()}, min(2.0, self.left))
        if failed:
            return asdict(Collective(backend, len(self._ports), "late", failed[first], (first,)))
        job = {"backend": backend, "world": len(self._ports), "host": self._address[first], "port": ports[first]}
        seconds = max(1.0, self.left - 0.5)
        refs = {
            node: self._actors[node].all_reduce.remote({**job, "rank": rank, "gpu": 0, "seconds": seconds})
            for rank, node in enumerate(self._ports)
        }
        found, failed = self.answers(refs, seconds)
        found |= {node: {"status": "late", "detail": why} for node, why in failed.items()}
        return asdict(judged(backend, found))


def judged(backend: str, answers: dict[str, Document]) -> Collective:
    """One verdict from the ranks' answers."""
    bad = {node: answer for node, answer in answers.items() if answer.get("status") != "done"}
    if bad:
        told = {node: answer for node, answer in bad.items() if answer.get("status") != "late"} or bad
        first = next(iter(told.values()))
        status = "late" if first.get("status") == "late" else "failed"
        return Collective(backend, len(answers), status, first.get("detail") or first.get("failure", ""), tuple(told))
    errors = {
        f"{name} on {node}": text for node, a in answers.items() for name, text in a.get("import_errors", {}).items()
    }
    return Collective(
        backend,
        len(answers),
        "done",
        init_s=max(answer["init_s"] for answer in answers.values()),
        mb_per_s=min(answer["mb_per_s"] for answer in answers.values()),
        transport=", ".join(sorted({answer["transport"] for answer in answers.values() if answer["transport"]})),
        import_errors=errors,
    )


def not_ready(unready: dict[str, Document], ranks: int) -> Collective:
    """Why there was no all-reduce: a rank that failed, or torch that was not imported by then."""
    told = {node: word for node, word in unready.items() if word.get("status") == "failed"} or unready
    word = next(iter(told.values()))
    if word.get("status") == "failed":
        return Collective("gloo", ranks, "failed", word.get("detail", ""), tuple(told))
    detail = f"torch was not imported in time: {word.get('detail') or 'no answer'}"
    return Collective("gloo", ranks, "unready", detail, tuple(told))


def rounds(nodes: list[str], most: int) -> list[list[tuple[str, str]]]:
    """Directed pairs, dealt to rounds in which each node sends to at most one node and hears from at most one.

    >>> rounds(["a", "b"], 4), rounds(["a", "b", "c"], 2)
    ([[('a', 'b')], [('b', 'a')]], [[('a', 'b'), ('c', 'a')], [('b', 'c')]])
    """
    if len(nodes) < 2:
        return []
    if len(nodes) > most:
        ring = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
        return [half for half in (ring[::2], ring[1::2]) if half]
    todo = [pair for a, b in combinations(nodes, 2) for pair in ((a, b), (b, a))]
    dealt: list[list[tuple[str, str]]] = []
    while todo:
        busy: set[str] = set()
        now = []
        for pair in todo:
            if not busy & set(pair):
                now.append(pair)
                busy |= set(pair)
        dealt.append(now)
        todo = [pair for pair in todo if pair not in now]
    return dealt


def survey(ray: Any, examiner: Any, order: Order) -> Document:
    """Everything: nodes, facts, pairs, collectives."""
    nodes = cluster_nodes(ray)
    alive = [node for node in nodes if node["alive"]]
    look = Survey(ray, examiner, alive, order)
    try:
        probes = look.start_probes()
        look.meet()
        clocks = look.clocks()
        pairs = look.pairs()
        facts, late = look.answers({n: ref for n, ref in probes.items() if n not in look.problems}, _probe_wait(look))
        gpus = {node: len(answer.get("devices", {}).get("gpus", ())) for node, answer in facts.items()}
        collectives = list(look.collectives(pairs, gpus))
        lost = {node: unacknowledged(look.address(node)) for node in look.problems}
    finally:
        look.close()
    for node in nodes:
        name = node["node_id"]
        answer = facts.get(name, {})
        node["unacknowledged"] = lost.get(name, 0)
        node["problem"] = look.problems.get(name) or late.get(name) or answer.get("failure", "")
        node["facts"] = answer if answer and "failure" not in answer else None
        node["clock"] = clocks.get(name)
    return {"nodes": nodes, "pairs": pairs, "collectives": collectives}


def _probe_wait(look: Survey) -> float:
    return max(0.5, look.left - 0.5)


def stores(ray: Any) -> dict[str, Document]:
    """What each living node's raylet says of its object store; of one that does not answer nothing is known."""
    found: dict[str, Document] = {}
    with suppress(Exception):  # private functions of Ray, which may go
        channel_to = importlib.import_module("ray._private.grpc_utils").init_grpc_channel
        messages = importlib.import_module("ray.core.generated.node_manager_pb2")
        stub = importlib.import_module("ray.core.generated.node_manager_pb2_grpc").NodeManagerServiceStub
        living = [node for node in ray.nodes() if node["Alive"]]
        channels = [channel_to(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") for node in living]
        request = messages.GetNodeStatsRequest(include_memory_info=False)
        asked = [stub(channel).GetNodeStats.future(request, timeout=STORE_S) for channel in channels]
        for node, answer in zip(living, asked, strict=True):
            with suppress(Exception):
                store = answer.result().store_stats
                used, total = int(store.object_store_bytes_used), int(store.object_store_bytes_avail)
                found[node["NodeID"]] = {"used": used, "total": total, "spilled": int(store.spilled_bytes_total)}
    return found


def cluster_nodes(ray: Any) -> list[Document]:
    """The nodes as the GCS has them, the head first."""
    try:
        available = ray._private.state.available_resources_per_node()
    except AttributeError:  # a private function of Ray, which may go
        available = {}
    rows = []
    known = stores(ray)
    for node in ray.nodes():
        resources = {name: value for name, value in node["Resources"].items() if name in ("CPU", "GPU", "memory")}
        free = available.get(node["NodeID"])
        rows.append(
            {
                "node_id": node["NodeID"],
                "ip": node["NodeManagerAddress"],
                "port": node["NodeManagerPort"],
                "hostname": node["NodeManagerHostname"],
                "head": "node:__internal_head__" in node["Resources"],
                "alive": node["Alive"],
                "store": known.get(node["NodeID"], {}),
                "resources": resources,
                "free": {name: free.get(name, 0.0) for name in resources} if free is not None else resources,
                "death": node.get("DeathReasonMessage") or "",
            }
        )
    return sorted(rows, key=lambda row: (not row["head"], row["ip"], row["node_id"]))


def main() -> None:
    order = Order(**json.loads(sys.stdin.read()))
    run(order)


def run(order: Order) -> None:
    """Joins the cluster, looks, and says what it found. An error is said, too."""
    try:
        document = _run(order)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises: the one who asked is told
        document = {"failure": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}
    sys.stdout.write(f"\n{MARK}{json.dumps(document)}\n")
    sys.stdout.flush()


def _run(order: Order) -> Document:
    import ray
    import ray.cloudpickle

    from .examiner import Examiner

    ray.cloudpickle.register_pickle_by_value(sys.modules[__package__ or ""])
    ray.init(order.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    try:
        return survey(ray, Examiner, order)
    finally:
        ray.shutdown()
