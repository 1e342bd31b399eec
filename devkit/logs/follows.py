"""What only follows from something else: by its type, and by what it says. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from devkit.debug.inworker.records import DIED
from devkit.logs.events import Event

CAUSE, MAYBE, FOLLOWS = 0, 1, 2
CANCELLED = "TaskCancelledError"
IN_PROCESS = "an error in its process"
PEER = "a peer that closed its connection"
EARLIER = "an earlier attempt"
ACTOR_DIED = "an actor that died"
ACTOR_ENDED = ("ActorDiedError", "RayActorError")  # what Ray raises where such an actor is called


class Weight(NamedTuple):
    """How likely an error is a cause, and what it follows from when it is none."""

    level: int
    why: str = ""


_TYPES = {
    **dict.fromkeys(ACTOR_ENDED, ACTOR_DIED),
    "ActorUnavailableError": "an actor that did not answer",
    "ActorUnschedulableError": "",
    "WorkerCrashedError": "a worker that died",
    "LocalRayletDiedError": "a node that died",
    "NodeDiedError": "a node that died",
    "OwnerDiedError": "an object's owner that exited",
    "ObjectLostError": "an object that was lost",
    "ObjectReconstructionFailedError": "an object that was lost",
    "ReferenceCountingAssertionError": "an object that was lost",
    CANCELLED: "a call that was cancelled, by ray.cancel or by asyncio in its process",
    "KeyboardInterrupt": "an interrupt",
    "BrokenPipeError": PEER,
    "ConnectionResetError": PEER,
    "ChildFailedError": "a child that failed",
    "GetTimeoutError": "a wait that timed out",
}
# (pattern of what is said, how heavy, what it follows from)
_SAID: tuple[tuple[re.Pattern[str], int, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), level, why)
    for pattern, level, why in (
        (
            r"placement group .*(name|already) .*exist|placement group with name .* already exists",
            FOLLOWS,
            EARLIER,
        ),
        (r"actor with (the )?name .*already exists|the name .*is already taken", FOLLOWS, EARLIER),
        (r"connection closed by peer|connection reset by peer|broken pipe|socket closed", FOLLOWS, PEER),
        (r"remote process exited|ncclRemoteError|peer .* (has )?(failed|died|exited)", FOLLOWS, PEER),
        (
            r"watchdog caught collective operation timeout|watchdog (got stuck|timeout)",
            MAYBE,
            "a rank that never arrived",
        ),
        (
            r"timed out waiting \d+ms for (recv|send)|timeout.*(barrier|collective|allreduce|all_reduce)",
            MAYBE,
            "a rank that never arrived",
        ),
        (
            # Of torch's own store and rendezvous. What else times out, as a request to a server, follows from no rank.
            r"(\b(TCP|File|Hash|Prefix)Store\b|rendezvous|client socket has|gloo|nccl).*(timed? ?out|timeout)"
            r"|^\w*: (wait|socket) timeout( after \d+ms|$)|timed out .*waiting for clients",
            MAYBE,
            "a rank that never arrived",
        ),
        (r"\bSIGTERM\b|was terminated|asked to (exit|end)", FOLLOWS, "a process that was terminated"),
        (r"no answer within .* from", MAYBE, "a rank that never arrived"),
        (
            r"the actor died|actor .* is dead|its (node|worker|owner) (has )?died|died unexpectedly",
            FOLLOWS,
            ACTOR_DIED,
        ),
        (r"\bdied during \w+", FOLLOWS, ACTOR_DIED),
        (r"exits? because there was an exception in the initialization method", FOLLOWS, IN_PROCESS),
        (r"process group .*(aborted|destroyed)|communicator was aborted", FOLLOWS, PEER),
        (r"(node|raylet).*health check failed|too many heartbeats", MAYBE, "a node that did not answer"),
        (r"owner.*(died|exited)|driver (has )?exited|\bthe job .*has (finished|ended)", FOLLOWS, "a job that ended"),
    )
)
_LOOKED_AT = 300  # characters: looking for two words in any order takes a time that is the square of this
_MEMORY = re.compile(r"OutOfMemory|out of memory|oom|SIGKILL", re.IGNORECASE)


def weigh(event: Event) -> Weight:
    """How likely this is the cause.

    >>> from devkit.logs.events import Raised
    >>> weigh(Event("task", Raised("ValueError", "bad"))).level
    0
    >>> weigh(Event("log", Raised("RuntimeError", "Connection closed by peer [10.0.0.2]:41"))).why
    'a peer that closed its connection'
    >>> weigh(Event("crash", Raised("ProcessDied", "the process died: RPC error: Socket closed"))).level
    0
    """
    raised = event.raised
    if event.root:
        return Weight(FOLLOWS, "a call that was cancelled" if CANCELLED in raised.type else "another crash")
    if raised.own:
        return Weight(CAUSE)
    if event.source in ("worker", "node") and _MEMORY.search(raised.said):
        return Weight(CAUSE)
    said = raised.said[:_LOOKED_AT]
    for pattern, level, why in _SAID:
        # How Ray noticed a worker's end is its connection to it, and no other process.
        if (raised.type, why) != (DIED, PEER) and pattern.search(said):
            return Weight(level, why)
    if why := _TYPES.get(raised.type, ""):
        return Weight(FOLLOWS, why)
    if event.source == "job" and not raised.type:  # the exit code of a driver, where nothing else is known
        return Weight(CAUSE)
    if event.source == "job":
        return Weight(MAYBE, "an error in its processes")
    if event.source == "actor" or raised.type in ("SystemExit", "RayTaskError"):
        return Weight(MAYBE, IN_PROCESS)
    if event.source == "worker" and not event.raised.message:
        return Weight(MAYBE, "an error in its program")
    return Weight(CAUSE)
