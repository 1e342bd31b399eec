"""The actor of one node's part of an engine, as the rank that owns or asks it sees it: every call has a deadline."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainer.errors import DeadlineError, EngineError, TrainerError
from trainer.failures import node_is_gone
from trainer.rollout.report_folder import remove
from trainer.rollout.server import Answer, Draw, EngineInfo, EngineServer, EngineSpec, PartSpec

LEAVE_S = 5.0  # until they are ended
GONE_S = 30.0  # until the processes of an engine that died must be gone
LOOK_S = 5.0  # between two looks at the other parts of an engine that is waited for


class EngineDied(EngineError):
    """The processes of an engine ended. It can be started again."""


class PartLost(EngineDied):
    """Another part of the engine ended than the one that was waited for, which would wait for it for ever."""


@dataclass
class EngineHandle:
    """One node's part of an engine. Its actor ends with the rank that created it.

    Parts wait for each other without a limit: whoever waits for one of them looks at `others`, too.
    """

    spec: EngineSpec
    part: PartSpec
    node_id: str
    node_ip: str
    timeout_s: float  # of any call; of a generation, from one answer to the next
    info: EngineInfo | None = None
    others: tuple[EngineHandle, ...] = field(default=(), repr=False)
    _actor: Any = field(default=None, repr=False)
    _ping: Any = field(default=None, repr=False)
    _log: Any = field(default=None, repr=False)  # of the actor that this rank created

    def __str__(self) -> str:
        of_nodes = f", part {self.part.node_rank + 1} of {self.part.nodes}" if self.part.nodes > 1 else ""
        pid = f"pid {self.info.pids[0]} on " if self.info else "on "
        return f"{self.spec.name} engine {self.part.engine} ({pid}{self.node_ip}{of_nodes})"

    def create(self, name: str) -> Any:
        """The actor, on its node; gives the answer to wait for."""
        remote = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0)(EngineServer)
        place = NodeAffinitySchedulingStrategy(node_id=self.node_id, soft=False)
        self._actor = remote.options(name=name, scheduling_strategy=place).remote(self.spec, self.part)
        self._log = self._actor.log_file.remote()
        return self._actor.start.remote()

    def join(self, name: str) -> None:
        """Speak to the actor that another rank has created. Raises PartLost if it is gone already."""
        try:
            self._actor = ray.get_actor(name)
        except ValueError as error:
            raise PartLost(f"{self} died before it had started", hint="see Ray's logs on that node") from error

    def started(self, answer: Any) -> EngineInfo:
        """Waits until the engine is up, on its node. Raises PartLost if another part of it ended."""
        try:
            self.info = self.wait(answer, "start")
        except PartLost:
            raise
        except EngineDied as error:
            log = self._log_file()
            said = last_error(log) if log else ""
            raise EngineError(
                f"{self} ended while it started{said and ': '}{said}",
                hint=f"{log or 'the log of that worker'} on {self.node_ip} says more; if it is memory, lower "
                "actor_rollout_ref.rollout.gpu_memory_utilization or the trainer's own use of the GPU",
            ) from error
        return self.info

    def _log_file(self) -> Path | None:
        """Ray's log of the actor, None if that did not come so far as to say."""
        try:
            return Path(ray.get(self._log, timeout=0))
        except RayError:
            return None

    def call(self, method: str, *args: Any, doing: str = "") -> Any:
        """Raises EngineDied, DeadlineError, or the TrainerError that the engine raised."""
        return self.wait(self.ask(method, *args), doing or method.replace("_", " "))

    def ask(self, method: str, *args: Any) -> Any:
        """`call` without waiting."""
        return getattr(self._actor, method).remote(*args)

    def wait(self, answer: Any, doing: str) -> Any:
        """The answer to `ask`."""
        self._await(answer, doing)
        return self._get(answer, doing)

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        """Answers as they come. Raises EngineDied; what came before stands."""
        answers = self._actor.generate.options(num_returns="streaming").remote(prompts, draw)
        count = 0
        while True:
            self._await(answers, f"generate, {count} of {len(prompts)} responses done")
            try:
                answer = next(answers)
            except StopIteration:
                return
            part = self._get(answer, "generate")
            count += len(part)
            yield part

    def alive(self) -> bool:
        """Whether its actor answers."""
        try:
            self.call("reports", doing="report whether it is alive")
        except EngineDied:
            return False
        return True

    def end(self) -> None:
        """Ends it, and waits until its processes are gone. Raises EngineError if they stay."""
        if self._actor is not None:
            with suppress(RayError):
                ray.kill(self._actor)
        for pid in self.info.pids if self.info else ():
            if not gone(pid, LEAVE_S):  # a process of a dead engine that nobody has told
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not gone(pid, GONE_S):
                raise EngineError(
                    f"process {pid} of {self} is still there {GONE_S:.0f} s after its end",
                    hint=f"look at it on that node (`ps -o pid,stat,cmd {pid}`): it holds the GPU's memory",
                )
        if self.info:
            remove(self.info.reports)
        self._actor = self._ping = self.info = None

    def lost(self) -> str:
        """What became of it, "" while nothing says that it is gone. Does not wait."""
        death = self._last_ping()
        if node_is_gone(self.node_id, death):
            return "was lost with its node"
        # Of one that Ray cannot reach, only the word on its node says more.
        return "died" if isinstance(death, RayActorError) and not isinstance(death, ActorUnavailableError) else ""

    def _last_ping(self) -> RayError | None:
        """Why the actor did not answer the last one, if it did not; sends the next."""
        last, self._ping = self._ping, self._ping or self._actor.ping.remote()
        if last is None or not ray.wait([last], timeout=0)[0]:
            return None
        self._ping = None
        try:
            ray.get(last)
        except RayError as error:
            return error
        return None

    def _await(self, answer: Any, doing: str) -> None:
        """Raises PartLost soon after another part is gone, DeadlineError at the end of `timeout_s`."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            done, _ = ray.wait([answer], timeout=min(LOOK_S, left) if self.others else left)
            if done:
                return
            self.require_others(doing)
            if left <= LOOK_S:
                raise self.late(doing)

    def require_others(self, doing: str) -> None:
        """Raises PartLost where another part is gone. Does not wait."""
        for other in self.others:
            if fate := other.lost():
                raise PartLost(f"{other} {fate}: {self} was to {doing}", hint="see Ray's logs on that node")

    def _get(self, answer: Any, doing: str) -> Any:
        try:
            return ray.get(answer)
        except RayActorError as error:
            raise EngineDied(f"{self} died: it was to {doing}", hint="see Ray's logs on that node") from error
        except RayTaskError as error:
            if isinstance(error.cause, TrainerError):
                raise error.cause from error
            raise EngineError(
                f"{self} failed to {doing}: {type(error.cause).__name__}: {str(error.cause).strip().splitlines()[0]}"
                if str(error.cause).strip()
                else f"{self} failed to {doing}: {type(error.cause).__name__}",
                hint="Ray's log of that worker has the traceback",
            ) from error

    def late(self, doing: str) -> DeadlineError:
        """What is raised at the end of `timeout_s`."""
        return DeadlineError(
            f"{self}: no answer within {self.timeout_s:.0f} s; it was to {doing}",
            hint="`ray stack` on its node shows what it is doing; the limit is "
            "actor_rollout_ref.rollout.engine_timeout, "
            "in an update at most nine tenths of actor_rollout_ref.nccl_timeout",
        )


ERROR = re.compile(r"^(?:[\w.]*\.)?\w*(?:Error|Exception|Interrupt)\b.*")


def last_error(log: Path) -> str:
    """The last line of a log that names an exception, at most 300 characters; "" if there is none.

    What an engine's process raises ends the processes around it, and stands nowhere else.
    """
    with suppress(OSError):
        for line in reversed(log.read_text(errors="replace").splitlines()):
            if ERROR.match(line.strip()):
                return line.strip()[:300]
    return ""


def gone(pid: int, timeout_s: float) -> bool:
    """Waits until a process of this machine has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        deadline = time.monotonic() + timeout_s
        ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        return bool(ready)
    finally:
        os.close(handle)
