"""The Ray actor in which an engine, or its part on one node, lives: beside the trainer's ranks, with their GPUs.

An engine's processes end together, and with them this actor; a rank that speaks to it sees that, and lives on. This
module imports neither torch nor an engine, so that Ray can load it anywhere.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from trainer.errors import EngineError
from trainer.quiet import quiet_engine
from trainer.rollout.exchange import Door, Line
from trainer.rollout.report_folder import ReportFolder

if TYPE_CHECKING:  # it imports torch
    from trainer.rollout.replicas import Replicas
    from trainer.rollout.wire import Report

ADAPTERS = {"sglang": "trainer.rollout.sglang", "vllm": "trainer.rollout.vllm"}
REPORT_FOLDER = "TRAINER_ENGINE_REPORTS"  # where an engine's model processes leave their reports
GATHER_S = 0.2  # answers that are done within this time travel together


@dataclass(frozen=True)
class EngineSpec:
    """All that decides how an engine is started, on any of its nodes."""

    name: str  # sglang | vllm
    model: str  # folder or hub id; its configuration is read, its weights come from the trainer
    trust_remote_code: bool
    dtype: str  # of torch: "bfloat16"
    device: str  # cuda | cpu
    tensor_parallel: int
    memory_share: float  # of the GPU, for weights and KV cache; see `memory.share` for what it is a share of
    max_sequences: int  # generated at once
    max_tokens: int  # of a prompt and its response
    cuda_graphs: bool
    releases_memory: bool
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own, as its own names have it
    replicas: int = 1  # engines on the one GPU, which share the sequences: `trainer.rollout.replicas`
    cache_tokens: int = 0  # of the KV cache at most; 0: as many as the memory has room for
    small: bool = False  # the model's work for a token is shorter than the engine's
    tokenizer: str = ""  # folder or hub id; given where texts end a turn, "" where the engine needs no text


@dataclass(frozen=True)
class PartSpec:
    """One node's part of an engine."""

    engine: int
    node_rank: int
    nodes: int
    gpus: str  # as `gpu_variable` has them
    address: str  # HOST:PORT where the parts of an engine meet
    node: str = ""  # its address
    gpu_variable: str = "CUDA_VISIBLE_DEVICES"
    replica: int = 0  # of those that share its GPU

    @property
    def where(self) -> str:
        """As an error says it."""
        return f"on node {self.node}" if self.node else "here"


@dataclass(frozen=True)
class EngineInfo:
    """A started engine, or part of one."""

    version: str  # of the engine's package
    pids: tuple[int, ...]  # this actor's and those of all that it started
    reports: str  # its folder of reports, which a killed actor leaves


@dataclass(frozen=True)
class Draw:
    """How to sample, in the terms that engines share. A temperature of 0 is greedy."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int  # -1: off
    stop_ids: tuple[int, ...]  # empty: nothing but length and texts end a response
    seed: int
    stop: tuple[str, ...] = ()  # a response ends with the token that completes one of these, which is kept
    own_seed: int | None = None  # of one request alone; None: it is drawn with the engine's generator


@dataclass(frozen=True)
class Answer:
    """The response to prompt number `index` of a call, and the log-probs of its tokens."""

    index: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]


class Adapter(Protocol):
    """One kind of engine, in the actor's process. Its constructor takes (EngineSpec, PartSpec) and starts it."""

    version: str

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        """Answers in the order in which they are done."""
        ...

    def converse(self, line: Line, draw: Draw) -> None:
        """Answers what is asked over `line`, each as soon as it is done, until the rank hangs up."""
        ...

    def send(self, message: str) -> None:
        """A message of `wire` to every tensor-parallel rank, in an update or not.

        Their reports are in the folder when it returns.
        """
        ...

    def begin_update(self) -> None: ...

    def end_update(self) -> None: ...

    def release(self) -> None: ...

    def resume(self, what: str) -> None:
        """`what` is "weights" or "kv_cache"."""
        ...


def start_engine(spec: EngineSpec, part: PartSpec) -> Adapter:
    """In this process. Raises EngineError, ConfigError if its package is missing or does not fit."""
    where = "trainer.rollout.replicas" if spec.replicas > 1 else ADAPTERS[spec.name]
    engine: Adapter = importlib.import_module(where).start(spec, part)
    return engine


class EngineServer:
    """See the module. Methods are called one at a time."""

    def __init__(self, spec: EngineSpec, part: PartSpec) -> None:
        self.spec = spec
        self.part = part
        quiet_engine(spec.options)
        self._reports = ReportFolder()
        os.environ[REPORT_FOLDER] = str(self._reports.path)
        self._door = Door(str(self._reports.path)) if spec.replicas == 1 else None  # else each has its own
        if spec.device == "cuda":
            show_gpus(part)
        self._released: set[str] = set()
        self._engine: Adapter | None = None

    def start(self) -> EngineInfo:
        """Brings the engine up. Raises EngineError, ConfigError if its package is missing or does not fit."""
        self._engine = start_engine(self.spec, self.part)
        import psutil

        children = psutil.Process().children(recursive=True)
        pids = (os.getpid(), *(child.pid for child in children))
        return EngineInfo(self._engine.version, pids, str(self._reports.path))

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        """Answers as they come, several at a time."""
        self._resume("weights", "kv_cache")
        yield from self.engine.generate(prompts, draw)

    def converse(self, draw: Draw, session: str) -> None:
        """Answers what its rank asks over the lines that it opens for `session`, until it closes them."""
        self._resume("weights", "kv_cache")
        if self._door is None:
            cast("Replicas", self.engine).converse_each(draw, session)
            return
        with self._door.opened(session) as line:
            self.engine.converse(line, draw)

    def begin_update(self) -> None:
        self._resume("weights")
        self.engine.begin_update()

    def send(self, message: str) -> tuple[Report, ...]:
        """The reports of this node's ranks."""
        self._resume("weights")
        self.engine.send(message)
        return self.reports()

    def end_update(self) -> None:
        self.engine.end_update()

    def ping(self) -> None:
        """Answers: it is there."""

    def log_file(self) -> str:
        """Where this actor, and what it starts, writes errors: Ray's log of it, on its node."""
        return os.readlink("/proc/self/fd/2")

    def reports(self) -> tuple[Report, ...]:
        """What this node's ranks had to say since the last call."""
        from trainer.rollout.inside import reports_in

        return reports_in(self._reports.path)

    def sleep(self) -> None:
        """Gives the memory of weights and KV cache to the trainer."""
        if self.spec.releases_memory and not self._released:
            self.engine.release()
            self._released = {"weights", "kv_cache"}

    @property
    def engine(self) -> Adapter:
        assert self._engine is not None, "start comes first"
        return self._engine

    def _resume(self, *parts: str) -> None:
        for part in parts:
            if part in self._released:
                self.engine.resume(part)
                self._released.discard(part)


def show_gpus(part: PartSpec) -> None:
    """Its GPUs to this process and those that it starts."""
    os.environ[part.gpu_variable] = part.gpus
    if part.gpu_variable == "HIP_VISIBLE_DEVICES" and "CUDA_VISIBLE_DEVICES" in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = part.gpus  # ROCm reads both; engines want them equal


def refused_prompt(engine: str, tokens: int, why: str) -> EngineError:
    """What an adapter raises for a prompt that its engine does not take."""
    return EngineError(
        f"{engine} refused a prompt of {tokens} tokens: {why}",
        hint="data.max_prompt_length + data.max_response_length must fit the model's context and the KV cache; "
        "actor_rollout_ref.rollout.gpu_memory_utilization sets the size of the latter",
    )
