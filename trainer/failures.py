"""Why a call to the ranks failed: what one of many errors is the cause, and on which rank or node."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)

from trainer.errors import DeadlineError, NodeLost, TrainerError, WorkerDied
from trainer.placement import node_names
from trainer.worker import WorkerInfo

# When one rank dies, the others fail first with broken connections; Ray's word on the death follows within this time.
DEATH_NOTICE_S = 10.0
# Ray takes a node for lost after five health checks without an answer (3 s apart, up to 10 s each).
NODE_NOTICE_S = 70.0
ASK_AGAIN_S = 0.5


class WorkerFailed(TrainerError):
    """A rank raised something that nobody expected; `trace` is its traceback."""

    def __init__(self, message: str, *, hint: str, trace: str = "") -> None:
        super().__init__(message, hint=hint)
        self.trace = trace


class Failure:
    """A phase in which the call to one rank failed."""

    def __init__(
        self, phase: str, refs: Sequence[Any], ranks: Sequence[int], actors: Sequence[Any], infos: Sequence[WorkerInfo]
    ) -> None:
        """`refs` are the calls to `ranks`; `actors` and `infos` are of all workers of the run, the latter empty as long
        as nothing is known of them."""
        self.phase, self.refs, self.ranks, self.everyone = phase, list(refs), list(ranks), infos
        self.actors = [actors[rank] for rank in ranks]
        self.infos = [infos[rank] for rank in ranks] if infos else []

    def explain(self, rank: int, error: Exception) -> Exception:
        """The failure behind the others: a lost node, then a death, then a wait, then what `rank` raised."""
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, TrainerError):
            return cause
        dead, pending = (rank, []) if cause is None else self._look_at_the_others()
        if dead is not None:
            death = error if cause is None else self._error_of(dead)
            return self._ended(dead, death)
        if pending and waited_in_vain(cause):
            return DeadlineError(
                f"{self.phase}: {self.name(rank)} timed out in a collective ({first_line(cause)}) waiting "
                f"for {', '.join(self.name(other) for other in pending)}",
                hint="`ray stack` on their node shows what they are doing; "
                "actor_rollout_ref.nccl_timeout sets the limit",
            )
        return WorkerFailed(
            f"{self.name(rank)} failed during {self.phase}: {type(cause).__name__}: {first_line(cause)}",
            hint="the traceback above is that rank's",
            trace="".join(traceback.format_exception(error)),
        )

    def too_late(self, pending: Sequence[Any], timeout_s: float) -> DeadlineError:
        """Of the calls in `pending`, which are not done at their deadline."""
        return DeadlineError(
            f"{self.phase}: no answer within {timeout_s:.0f} s from {self.names(pending)}",
            hint="`ray stack` on their node shows what they are doing; trainer.step_timeout and "
            "trainer.ray_wait_register_center_timeout set the limits",
        )

    def names(self, refs: Sequence[Any]) -> str:
        return ", ".join(self.name(self.refs.index(ref)) for ref in refs)

    def name(self, rank: int) -> str:
        return str(self.infos[rank]) if self.infos else f"rank {self.ranks[rank]}"

    def _look_at_the_others(self) -> tuple[int | None, list[int]]:
        """The rank whose process is gone, if Ray says so within DEATH_NOTICE_S, and those that have not answered."""
        pending, deadline = list(self.refs), time.monotonic() + DEATH_NOTICE_S
        while pending and (left := deadline - time.monotonic()) > 0:
            done, pending = ray.wait(pending, num_returns=1, timeout=left)
            for ref in done:
                if isinstance(self._error_of(self.refs.index(ref)), RayError):
                    return self.refs.index(ref), []
        return None, [self.refs.index(ref) for ref in pending]

    def _error_of(self, rank: int) -> Exception | None:
        """Why a call that is done has no answer: None if it has one, or raised by itself."""
        try:
            ray.get(self.refs[rank], timeout=0)
        except (RayTaskError, GetTimeoutError):  # the latter of an answer that is not fetched yet
            return None
        except RayError as error:
            return error
        return None

    def _ended(self, rank: int, error: Exception | None) -> WorkerDied:
        """With whom a rank ended: with its node, or alone."""
        error = self._last_word(rank, error)
        if self.infos and node_is_gone(self.infos[rank].node_id, error):
            node = self.infos[rank].node_id
            name = node_names(ray.nodes()).get(node, self.infos[rank].node_ip)
            ranks = ", ".join(str(info.rank) for info in self.everyone if info.node_id == node)
            return NodeLost(
                f"node {name} was lost during {self.phase}, and with it rank(s) {ranks}",
                hint="check that it is up and reachable, and restart Ray there",
                trace=f"{error}\n",
            )
        why = ": its node ran out of memory, and Ray killed it" if isinstance(error, OutOfMemoryError) else ""
        return WorkerDied(
            f"{self.name(rank)} died during {self.phase}{why}",
            hint="look for 'Out of memory' or a signal in Ray's logs on that node",
            trace=f"{error}\n",
        )

    def _last_word(self, rank: int, error: Exception | None) -> Exception | None:
        """Of a rank that is only "unavailable", whether it died and with whom, once Ray has found out."""
        deadline = time.monotonic() + NODE_NOTICE_S
        while isinstance(error, ActorUnavailableError) and time.monotonic() < deadline:
            try:
                ray.get(self.actors[rank].describe.remote(), timeout=ASK_AGAIN_S)
                return error  # it lives: its connection broke
            except GetTimeoutError:
                continue
            except ActorUnavailableError:
                time.sleep(ASK_AGAIN_S)  # Ray refuses at once until it knows more, and tells nobody when it does
            except RayError as last:
                return last
        return error


def node_is_gone(node_id: str, error: Exception | None) -> bool:
    """By Ray's word on the actor's end, or on the node."""
    if isinstance(error, ActorDiedError) and "node has died" in str(error):
        return True
    return any(node["NodeID"] == node_id and not node["Alive"] for node in ray.nodes())


def waited_in_vain(cause: BaseException | None) -> bool:
    """Whether an error of torch.distributed says that a time limit has passed: there is no type for it."""
    text = str(cause).lower()
    return isinstance(cause, RuntimeError) and ("timed out" in text or "timeout" in text)


def first_line(error: BaseException | None) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
