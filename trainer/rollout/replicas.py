"""Several engines of one kind on one GPU, each in a process of its own, that answer as one.

An engine's scheduler is Python on one core, and busy for each token of each sequence. Where the model's own work is
shorter than that, as many schedulers as share the sequences do that much more: docs/results/generation.md.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, cast

from trainer.errors import TrainerError
from trainer.quiet import quiet_engine
from trainer.rollout.exchange import Door, Line
from trainer.rollout.server import REPORT_FOLDER, Answer, Draw, EngineSpec, PartSpec, start_engine

if TYPE_CHECKING:  # it imports torch
    from trainer.rollout.memory import Needed

SMALL = 128 * 2**20  # bytes of weights, up to which a model's work for a token is shorter than the engine's
SEQUENCES = 256  # that one scheduler keeps up with
MOST = 4
CORES = 2  # of each: its scheduler's, and one for the rest
OF_SHARE = 1 / 3  # of the engine's memory that all may have: each takes its part while the others do
SPARE = 1.25  # of the cache that all sequences need
BESIDE = 2 * 2**30  # bytes of CUDA's own, of graphs and of activations, for each
SET_DEATH_SIGNAL = 1  # of prctl
DIED = 1  # exit code


def suited(spec: EngineSpec, asked: int | None, needed: Needed, memory: int, cores: int) -> EngineSpec:
    """`spec` with as many replicas as are `asked` for, or as a small model is best served by.

    `memory`: bytes for all of them; `cores`: of the host, for this GPU.
    """
    if spec.name != "sglang":  # of others nothing is known
        return spec
    small = spec.device == "cuda" and needed.weights <= SMALL
    count = 1
    if small and spec.tensor_parallel == 1:
        fit = int((OF_SHARE * memory - SPARE * spec.max_sequences * needed.sequence) // (needed.weights + BESIDE))
        count = max(1, min(-(-spec.max_sequences // SEQUENCES), MOST, cores // CORES, fit))
    return replace(spec, small=small, replicas=asked or count)


def split(spec: EngineSpec, count: int) -> list[EngineSpec]:
    """Of each replica: they share the sequences, and must not draw alike."""
    sequences = -(-spec.max_sequences // count)
    return [
        replace(
            spec,
            replicas=1,
            max_sequences=sequences,
            cache_tokens=int(SPARE * sequences * spec.max_tokens),
            seed=(spec.seed + 15_485_863 * number) % 2**31,
        )
        for number in range(count)
    ]


def start(spec: EngineSpec, part: PartSpec) -> Replicas:
    """All at once. Raises what the first of them raises."""
    assert part.nodes == 1 and spec.tensor_parallel == 1, "each has the one GPU"
    spawn = multiprocessing.get_context("spawn")
    links = []
    for number, each in enumerate(split(spec, spec.replicas)):
        here, there = spawn.Pipe()
        own = replace(part, address=f"127.0.0.1:{_free_port()}", replica=number)
        spawn.Process(target=serve, args=(there, each, own, os.getpid()), name="replica").start()
        there.close()  # or its end would not be seen here
        links.append(here)
    atexit.register(_close, links)  # at its end this process waits for those that it started
    return Replicas(links)


class Replicas:
    """Implements `server.Adapter`. If one of them ends, so does this process, as it does with a single engine."""

    def __init__(self, links: Sequence[Connection[Any, Any]]) -> None:
        self._links = links
        self.version: str = self._answered()[0]

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        """Neighbours stay together: the samples of a prompt share what is remembered of it."""
        waiting: dict[Connection[Any, Any], int] = {}  # the number of the first prompt of each
        first = 0
        for number, link in enumerate(self._links):
            end = len(prompts) * (number + 1) // len(self._links)
            if first < end:
                link.send(("generate", prompts[first:end], draw))
                waiting[link] = first
            first = end
        failure: TrainerError | None = None
        while waiting:
            for link in cast("list[Connection[Any, Any]]", wait(list(waiting))):
                said = _heard(link)
                if isinstance(said, list):
                    yield [replace(answer, index=answer.index + waiting[link]) for answer in said]
                    continue
                failure = failure or (said if isinstance(said, TrainerError) else None)
                del waiting[link]
        if failure is not None:  # once the others are done: the next call must not hear their answers
            raise failure

    def converse(self, line: Line, draw: Draw) -> None:
        """Nobody does: its rank speaks to each of them."""
        raise NotImplementedError

    def converse_each(self, draw: Draw, session: str) -> None:
        """Until the rank has hung up on all of them."""
        self._all("converse", draw, session)

    def send(self, message: str) -> None:
        self._all("send", message)

    def begin_update(self) -> None:
        self._all("begin_update")

    def end_update(self) -> None:
        self._all("end_update")

    def release(self) -> None:
        self._all("release")

    def resume(self, what: str) -> None:
        self._all("resume", what)

    def _all(self, *call: Any) -> None:
        for link in self._links:
            link.send(call)
        self._answered()

    def _answered(self) -> list[Any]:
        """What each says once it has done what it was told. Raises what the first of them raises."""
        said = [_heard(link) for link in self._links]
        for each in said:
            if isinstance(each, TrainerError):
                raise each
        return said


def _heard(link: Connection[Any, Any]) -> Any:
    """What a replica says. Ends this process if it has ended: its own last words are in the log."""
    try:
        return link.recv()
    except (EOFError, ConnectionError):
        os._exit(DIED)


def _close(links: Sequence[Connection[Any, Any]]) -> None:
    for link in links:
        link.close()


def serve(link: Connection[Any, Any], spec: EngineSpec, part: PartSpec, parent: int) -> None:
    """The main program of a replica: a call of the adapter's at a time, until the link is closed."""
    end_with(parent)
    quiet_engine(spec.options)
    try:
        engine = start_engine(spec, part)
    except TrainerError as error:
        link.send(error)
        return
    door = Door(os.environ[REPORT_FOLDER], part.replica)
    link.send(engine.version)
    while True:
        try:
            name, *arguments = link.recv()
        except (EOFError, ConnectionError):
            os._exit(0)
        try:
            if name == "converse":
                draw, session = arguments
                with door.opened(session) as line:
                    engine.converse(line, draw)
            else:
                done = getattr(engine, name)(*arguments)
                for some in done if name == "generate" else ():
                    link.send(some)
            link.send(None)
        except TrainerError as error:
            link.send(error)


def end_with(parent: int) -> None:
    """This process, and with it its engine's, at the end of `parent`'s, whatever ends that."""
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(DIED)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as lent:
        return int(lent.getsockname()[1])
