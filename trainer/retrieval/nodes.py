"""The retrievers of a run, as its driver sees them: starts one per node, or checks those that are there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainer.config.schema import Config
from trainer.errors import DeadlineError, RetrieverDown, RetrieverError, TrainerError
from trainer.failures import first_line
from trainer.placement import node_names
from trainer.retrieval.client import Retriever
from trainer.retrieval.index import Source
from trainer.retrieval.meeting import Met, require_same
from trainer.retrieval.serving import RetrieverServer, Served
from trainer.teams import ranks_of
from trainer.worker import WorkerInfo

SLOW_S = 1.0  # a first search that takes longer is worth a word


class Ranks(Protocol):
    """`cluster.WorkerPool`, of which this is used."""

    name: str
    infos: list[WorkerInfo]

    def meet_retrievers(self, retrievers: Mapping[int, Retriever]) -> dict[int, Met | TrainerError]:
        """By rank of the run, what it found at its retriever, or why that is of no use."""
        ...


@contextmanager
def retrievers(config: Config, ranks: Ranks, note: Callable[[str], None]) -> Iterator[None]:
    """Within it, each rank that plays episodes has the retriever that the configuration gives its node.

    Raises RetrieverError and DataError that name node and URL, DeadlineError.
    """
    if config.agent.env is None or (config.retriever.url is None and config.retriever.serve is None):
        yield
        return
    servers = Servers(ranks.name)
    try:
        playing = [info for info in ranks.infos if info.rank in ranks_of(config, "rollout", len(ranks.infos))]
        nodes = list(dict.fromkeys(info.node_id for info in playing))
        names = node_names([node for node in ray.nodes() if node["NodeID"] in nodes])
        urls = _urls(config, servers, {node: names.get(node, node) for node in nodes}, note)
        met = _meet(config, ranks, playing, urls, names)
        require_same(met)
        note(_summary(met, started=config.retriever.serve is not None))
        yield
    finally:
        servers.close()


class Servers:
    """Those that the run has started, an actor each, pinned to its node."""

    def __init__(self, name: str) -> None:
        """Their actors are `name`-retriever-NUMBER."""
        self._name = name
        self._actors: list[Any] = []

    def start(self, source: Source, topk: int, nodes: Mapping[str, str], timeout_s: float) -> dict[str, Served]:
        """One on each of `nodes`, whose ids have names; all at once.

        Raises the first TrainerError of any of them, with the node's name; DeadlineError after `timeout_s`.
        """
        remote = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(RetrieverServer)
        calls: dict[Any, str] = {}
        for number, node in enumerate(nodes):
            place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            named = remote.options(name=f"{self._name}-retriever-{number}", scheduling_strategy=place)
            actor: Any = named.remote(source, topk)
            self._actors.append(actor)
            calls[actor.start.options(name="index").remote()] = node
        return self._gathered(calls, nodes, source.path, timeout_s)

    def _gathered(
        self, calls: Mapping[Any, str], nodes: Mapping[str, str], path: str, timeout_s: float
    ) -> dict[str, Served]:
        found, pending, deadline = {}, list(calls), time.monotonic() + timeout_s
        while pending:
            done, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                late = ", ".join(nodes[calls[call]] for call in pending)
                raise DeadlineError(
                    f"retriever.serve={path}: not indexed within {timeout_s:.0f} s on node {late}",
                    hint="trainer.ray_wait_register_center_timeout is how long to wait; a large corpus is better "
                    "served by python -m trainer.retrieval, once for many runs, and retriever.url; embeddings are "
                    "made beforehand with its --embed",
                )
            for call in done:
                found[calls[call]] = _answer(call, nodes[calls[call]], path)
        return {node: found[node] for node in nodes}

    def close(self) -> None:
        """Ends them."""
        for actor in self._actors:
            with suppress(RayError):
                ray.kill(actor)
        self._actors = []


def _answer(call: Any, node: str, path: str) -> Served:
    try:
        served: Served = ray.get(call)
    except RayActorError as error:
        raise RetrieverDown(
            f"the retriever of node {node} ended while it indexed {path}",
            hint="was it memory? Ray's logs on that node say more",
        ) from error
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, TrainerError):
            raise type(cause)(f"the retriever of node {node}: {cause.message}", hint=cause.hint) from error
        raise RetrieverError(
            f"the retriever of node {node} failed to index {path}: {type(cause).__name__}: {first_line(cause)}",
            hint="Ray's log of that actor has the traceback",
        ) from error
    return served


def _urls(config: Config, servers: Servers, nodes: Mapping[str, str], note: Callable[[str], None]) -> dict[str, str]:
    """By node id. Started where `retriever.serve` asks for it."""
    wanted = config.retriever
    if wanted.serve is None:
        assert wanted.url is not None
        return dict.fromkeys(nodes, wanted.url)
    path = os.path.abspath(os.path.expanduser(wanted.serve))  # the actors' working folder is another
    by = "" if wanted.encoder is None else f" by {wanted.encoder}"
    note(f"indexing {path}{by} on {len(nodes)} node{'s' * (len(nodes) > 1)}")
    limit_s = float(config.trainer.ray_wait_register_center_timeout)
    source = Source(path, wanted.encoder, wanted.encoder_kind)
    return {node: served.url for node, served in servers.start(source, wanted.topk, nodes, limit_s).items()}


def _meet(
    config: Config, ranks: Ranks, playing: Sequence[WorkerInfo], urls: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, Met]:
    """By name of the node. Raises what the first of its ranks found amiss, with that name."""
    wanted = config.retriever
    given = {info.rank: Retriever(urls[info.node_id], wanted.topk, wanted.timeout) for info in playing}
    found = ranks.meet_retrievers(given)
    met: dict[str, Met] = {}
    for info in playing:
        name, answer = names.get(info.node_id, info.node_ip), found[info.rank]
        if isinstance(answer, TrainerError):
            raise type(answer)(f"node {name}: {answer.message}", hint=answer.hint) from answer
        met.setdefault(name, answer)
    return met


def _summary(met: Mapping[str, Met], *, started: bool) -> str:
    """One line of what was found.

    >>> _summary({"10.0.0.1": Met("http://r:8000/retrieve", "ab12", 137, frozenset(), 0.002)}, started=False)
    'retriever: 137 passages, digest ab12, at http://r:8000/retrieve; a search from node 10.0.0.1 took 2 ms'
    """
    slowest = max(met, key=lambda name: met[name].seconds)
    first = next(iter(met.values()))
    where = f", on {len(met)} nodes each" if started and len(met) > 1 else ""
    took = f"{met[slowest].seconds * 1000:.0f} ms"
    slow = ", which is slow" if met[slowest].seconds > SLOW_S else ""
    return f"retriever: {first}{where}; a search from node {slowest} took {took}{slow}"
