"""Ray: finding or starting a cluster, placing the workers, and calling them with deadlines that say what is missing."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.address import knock, running_cluster
from trainer.config.schema import Config
from trainer.errors import ClusterError, DeadlineError, TrainerError, WorkerDied
from trainer.spec import RunSpec
from trainer.transport import pack, unpack
from trainer.worker import PPOWorker, WorkerInfo

# When one rank dies, the others fail first with broken connections; Ray's word on the death follows within this time.
DEATH_NOTICE_S = 10.0


def start_ray(config: Config) -> None:
    """Join the cluster of RAY_ADDRESS, else the one that `ray start` left on this machine, else start one for the run.

    Raises ClusterError when RAY_ADDRESS leads nowhere, or when several nodes are asked for and there is no cluster.
    """
    if ray.is_initialized():
        return
    if address := running_cluster():
        try:
            knock(address)
            ray.init(address, log_to_driver=True)
        except (OSError, RuntimeError, ValueError) as error:
            named = "RAY_ADDRESS=" if os.environ.get("RAY_ADDRESS") else ""
            raise ClusterError(
                f"no Ray cluster answers at {named}{address}: {first_line(error)}",
                hint="start one with `ray start --head`, or unset RAY_ADDRESS to run on this machine alone; "
                "where Ray asks for a token, RAY_AUTH_TOKEN must be the cluster's",
            ) from error
        return
    if config.trainer.nnodes > 1:
        raise ClusterError(
            f"trainer.nnodes={config.trainer.nnodes} needs a cluster, and none runs on this machine",
            hint="start Ray on each node (`ray start --head` on this one, then `ray start --address=HEAD:6379`), "
            "set RAY_ADDRESS, or set trainer.nnodes=1",
        )
    asked = config.ray_kwargs.ray_init.num_cpus
    # Without GPUs a rank takes a CPU slot; slots are bookkeeping, so there are enough for every rank.
    slots = asked if asked is not None else max(os.cpu_count() or 1, config.world_size)
    with undisturbed():
        ray.init(address="local", num_cpus=slots, include_dashboard=False, log_to_driver=True)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the end: in the middle of Ray's start it can leave Ray waiting for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def uses_gpus(config: Config) -> bool:
    """Whether ranks take GPUs: `trainer.device`, with `auto` told from what the cluster has."""
    wanted = config.trainer.device
    return wanted == "cuda" or (wanted == "auto" and ray.cluster_resources().get("GPU", 0) > 0)


class WorkerPool:
    """The Ray actors of a run, one per rank, and the calls to them (`group.Calls`)."""

    def __init__(self, config: Config, name: str = "ppo") -> None:
        """Places the workers, named `name`-worker-RANK, and lets them come up; `connect` waits for them.

        Raises DeadlineError that says which node lacks what.
        """
        self.name = name
        self.world_size = config.world_size
        self.timeout_s = float(config.trainer.step_timeout)
        self._start_s = float(config.trainer.ray_wait_register_center_timeout)
        self._join_s = float(config.actor_rollout_ref.nccl_timeout)
        self._groups: list[PlacementGroup] = []
        self._actors: list[Any] = []
        self.infos: list[WorkerInfo] = []
        try:
            self._place(config)
            self._create(config)
        except BaseException:  # whatever it is: no worker stays behind
            self.close()
            raise

    def connect(self) -> None:
        """Waits until every worker is up and has joined the others. Raises DeadlineError, WorkerDied."""
        self.infos = self._gather("start", [actor.describe.remote() for actor in self._actors], self._start_s)
        [(host, port)] = self._gather("rendezvous", [self._actors[0].open_store.remote(self._join_s)], self._start_s)
        joins = [actor.connect.remote(host, port, self._join_s) for actor in self._actors]
        self._gather("connect", joins, max(self._join_s, self._start_s))

    def build(self, spec: RunSpec) -> None:
        """Models on every rank; a second call starts over in the same processes."""
        self._gather("build", [actor.build.remote(spec) for actor in self._actors], self.timeout_s)

    def all(self, phase: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `group.Calls`. Raises WorkerDied, DeadlineError, or what a rank raised."""
        refs = [
            actor.call.options(name=phase).remote(phase, pack(arg))
            for actor, arg in zip(self._actors, args, strict=True)
        ]
        return [unpack(answer) for answer in self._gather(phase, refs, self.timeout_s)]

    def close(self) -> None:
        """Ends the workers and gives back their places."""
        for actor in self._actors:
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
        self._actors, self._groups = [], []

    def _place(self, config: Config) -> None:
        """One placement group per node, one bundle per rank; a node's ranks stay together."""
        gpu = uses_gpus(config)
        bundle = {"GPU": 1.0, "CPU": 1.0} if gpu else {"CPU": 1.0}
        per_node = config.trainer.n_gpus_per_node
        self._groups = [
            placement_group([dict(bundle)] * per_node, strategy="STRICT_PACK") for _ in range(config.trainer.nnodes)
        ]
        deadline = time.monotonic() + self._start_s
        ready = [group.ready() for group in self._groups]
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=max(0.0, deadline - time.monotonic()))
        if len(done) < len(ready):
            raise unmet_demand(config, gpu, len(ready) - len(done), self._start_s)

    def _create(self, config: Config) -> None:
        gpu = uses_gpus(config)
        remote = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_restarts=0)(PPOWorker)
        for rank in range(self.world_size):
            node, slot = divmod(rank, config.trainer.n_gpus_per_node)
            place = PlacementGroupSchedulingStrategy(self._groups[node], placement_group_bundle_index=slot)
            named = remote.options(name=f"{self.name}-worker-{rank}", scheduling_strategy=place)
            self._actors.append(named.remote(rank, self.world_size))

    def _gather(self, phase: str, refs: list[Any], timeout_s: float) -> list[Any]:
        """The answers by rank; the first failure ends the wait."""
        pending, deadline = list(refs), time.monotonic() + timeout_s
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                missing = ", ".join(self._name(refs.index(ref)) for ref in pending)
                raise DeadlineError(
                    f"{phase}: no answer within {timeout_s:.0f} s from {missing}",
                    hint="see what they do with `ray stack` on their node; "
                    "trainer.step_timeout and trainer.ray_wait_register_center_timeout set the limits",
                )
            try:
                ray.get(done[0])
            except RayError as error:
                raise self._explain(phase, refs, refs.index(done[0]), error) from error
        return list(ray.get(refs))

    def _explain(self, phase: str, refs: list[Any], rank: int, error: Exception) -> Exception:
        """The failure that caused the others: a death before a broken connection before anything else."""
        cause = error.cause if isinstance(error, RayTaskError) else None
        if isinstance(cause, TrainerError):
            return cause
        dead = rank if cause is None else self._first_death(refs)
        if dead is not None:
            why = ": its node ran out of memory, and Ray ended it" if isinstance(error, OutOfMemoryError) else ""
            return WorkerDied(
                f"{self._name(dead)} died during {phase}{why}",
                hint="look for 'Out of memory' or a signal in Ray's logs of that node; "
                "the run continues from its last checkpoint with trainer.resume_mode=auto",
                trace=f"{error}\n",
            )
        trace = traceback.format_exception(error)
        return WorkerFailed(
            f"{self._name(rank)} failed during {phase}: {type(cause).__name__}: {first_line(cause)}",
            hint="the traceback above is that rank's",
            trace="".join(trace),
        )

    def _first_death(self, refs: list[Any]) -> int | None:
        """The rank whose process is gone, if Ray says so within DEATH_NOTICE_S."""
        pending, deadline = list(refs), time.monotonic() + DEATH_NOTICE_S
        while pending and (left := deadline - time.monotonic()) > 0:
            done, pending = ray.wait(pending, num_returns=1, timeout=left)
            for ref in done:
                try:
                    ray.get(ref)
                except RayTaskError:
                    continue
                except RayError:
                    return refs.index(ref)
        return None

    def _name(self, rank: int) -> str:
        return str(self.infos[rank]) if rank < len(self.infos) else f"rank {rank}"


class WorkerFailed(TrainerError):
    """A rank raised something that nobody expected; `trace` is its traceback."""

    def __init__(self, message: str, *, hint: str = "", trace: str = "") -> None:
        super().__init__(message, hint=hint)
        self.trace = trace


def unmet_demand(config: Config, gpu: bool, groups_short: int, waited_s: float) -> TrainerError:
    """Which nodes lack how much of what the run asks for."""
    kind, per_node = ("GPU" if gpu else "CPU"), config.trainer.n_gpus_per_node
    nodes = [node for node in ray.nodes() if node["Alive"]]
    have = ", ".join(f"{node['NodeManagerAddress']}: {node['Resources'].get(kind, 0):.0f}" for node in nodes)
    return DeadlineError(
        f"{groups_short} of {config.trainer.nnodes} node(s) with {per_node} free {kind}s each were not found within "
        f"{waited_s:.0f} s; {kind}s per node: {have}",
        hint="add nodes, free what other jobs hold (`ray status`), or lower trainer.nnodes or trainer.n_gpus_per_node",
    )


def first_line(error: BaseException | None) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
