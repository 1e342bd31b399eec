"""Ray: finding or starting a cluster, placing the workers, and calling them with deadlines that say what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.address import knock, running_cluster
from trainer.config.chosen import Choice
from trainer.config.schema import Config
from trainer.descendants import descendants, end_descendants
from trainer.errors import ClusterError, DeadlineError, TrainerError
from trainer.failures import Failure, first_line
from trainer.machines import BRING_UP, rank_among
from trainer.memory import Memory, most
from trainer.placement import Demand, place
from trainer.retrieval import Retriever
from trainer.retrieval.meeting import Met
from trainer.rollout import deadlines
from trainer.spec import BridgeEnd, RunSpec
from trainer.teams import ROLES, Team, bridge_ranks, seats_of, teams_of
from trainer.transport import pack_each, unpack
from trainer.waiting import UnderWay, first_done
from trainer.worker import PPOWorker, WorkerInfo

# A phase that takes SLOW times as long as it ever did, and at least SLOW * SLOW_S seconds, says whom it waits for.
SLOW, SLOW_S = 5.0, 30.0
TOO_LATE = "timed out during startup"  # Ray's words


def start_ray(config: Config) -> None:
    """Join the cluster of RAY_ADDRESS, else the one that `ray start` left on this machine, else start one for the run.

    Raises ClusterError when RAY_ADDRESS leads nowhere, when several nodes are asked for and there is no cluster, or
    when Ray does not start here; DeadlineError when it comes up too late.
    """
    if ray.is_initialized():
        return
    if address := running_cluster():
        try:
            knock(address)
            with in_time():
                ray.init(address, log_to_driver=True)
        except (OSError, RuntimeError, ValueError) as error:
            named = "RAY_ADDRESS=" if os.environ.get("RAY_ADDRESS") else ""
            raise ClusterError(
                f"no Ray cluster answers at {named}{address}: {first_line(error)}",
                hint="start one with `ray start --head`, or unset RAY_ADDRESS to run on this machine only; "
                "where Ray asks for a token, RAY_AUTH_MODE is token and RAY_AUTH_TOKEN the cluster's",
            ) from error
        return
    if config.trainer.nnodes > 1:
        by_hand = "start Ray on each node (`ray start --head` on this one, then `ray start --address=HEAD:6379`)"
        raise ClusterError(
            f"trainer.nnodes={config.trainer.nnodes} needs a cluster, and none runs on this machine",
            hint=f"{BRING_UP if rank_among(os.environ) else by_hand}, set RAY_ADDRESS, or set trainer.nnodes=1",
        )
    asked = config.ray_kwargs.ray_init.num_cpus
    # Without GPUs a rank takes a CPU slot; slots are bookkeeping, so there are enough for every rank.
    slots = asked if asked is not None else max(os.cpu_count() or 1, config.world_size)
    try:
        apart = in_groups_of_their_own(wanted=config.trainer.grace_period > 0)
        with undisturbed(), in_time(), nothing_left(), apart:
            ray.init(address="local", num_cpus=slots, log_to_driver=True)  # with Ray's dashboard, if installed
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"Ray does not start on this machine: {first_line(error)}",
            hint="its logs are in the newest session below /tmp/ray (RAY_TMPDIR); `devkit doctor --here` checks it",
        ) from error


@contextmanager
def in_time() -> Iterator[None]:
    """Raises DeadlineError where Ray gives up on its own start."""
    try:
        yield
    except Exception as error:  # Ray has no type for it
        if TOO_LATE not in str(error):
            raise
        raise DeadlineError(
            f"Ray did not come up in time: {first_line(error)}",
            hint="the machine is overloaded: stop other programs on it, or try again; `devkit doctor --here` checks it",
        ) from error


@contextmanager
def nothing_left() -> Iterator[None]:
    """Ends what was started within it, if it fails: Ray forgets what it has started until all of it is up.

    Its agents would look for their node for a minute.
    """
    before = descendants()
    try:
        yield
    except BaseException:  # an interruption, too
        end_descendants(before)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the end: in the middle of Ray's start they can leave Ray waiting for ever.

    By handlers of its own: a signal that this thread does not take goes to another. The mask is for what is started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard = [number for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, lambda number, _frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in heard:
            signal.signal(number, handlers[number])
    if came:
        raise KeyboardInterrupt


@contextmanager
def in_groups_of_their_own(*, wanted: bool) -> Iterator[None]:
    """What is started within it takes no part in this process's group, and in the signals that the group gets.

    For `trainer.grace_period`: the step in progress needs its Ray, which `timeout` and batch systems would end with it.
    """
    real = subprocess.Popen.__init__

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **{"process_group": 0, **kwargs})

    if wanted:
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]  # Ray has no setting for it
    try:
        yield
    finally:
        subprocess.Popen.__init__ = real  # type: ignore[method-assign]


def uses_gpus(config: Config) -> bool:
    """Whether ranks take GPUs: `trainer.device`, with `auto` told from what the cluster has."""
    wanted = config.trainer.device
    return wanted == "cuda" or (wanted == "auto" and ray.cluster_resources().get("GPU", 0) > 0)


def demand_of(config: Config) -> Demand:
    """One GPU and one CPU per rank, or a CPU slot where there are no GPUs."""
    bundle = {"GPU": 1.0, "CPU": 1.0} if uses_gpus(config) else {"CPU": 1.0}
    return Demand(config.trainer.nnodes, config.trainer.n_gpus_per_node, bundle)


def class_of(team: Team, teams: Sequence[Team]) -> type[PPOWorker]:
    """PPOWorker, or of several teams one that is called after its roles: debuggers count ranks by team."""
    if len(teams) == 1:
        return PPOWorker
    return type("".join(role.capitalize() for role in ROLES if role in team.roles) + "Worker", (PPOWorker,), {})


class WorkerPool:
    """The Ray actors of a run, one per rank, and the calls to them (`interfaces.Calls`)."""

    def __init__(self, config: Config, name: str = "ppo", note: Callable[[str], None] = lambda text: None) -> None:
        """Places the workers, named `name`-worker-RANK, and lets them come up; `connect` waits for them.

        `note` is told of waits that take long. Raises DeadlineError that says which node lacks what.
        """
        self.name = name
        self._note = note
        self.world_size = config.world_size
        self.timeout_s = float(config.trainer.step_timeout)
        self._start_s = float(config.trainer.ray_wait_register_center_timeout)
        self._join_s = float(config.actor_rollout_ref.nccl_timeout)
        self._teams = teams_of(config)
        self._bridge = bridge_ranks(config)
        # An engine that starts lets the sender wait.
        self._bridge_s = max(self._join_s, deadlines.beside(deadlines.of_call(config)))
        self._groups: list[PlacementGroup] = []
        self._actors: list[Any] = []
        self.infos: list[WorkerInfo] = []
        self._memory: list[Memory] = []
        self._longest: dict[str, float] = {}  # seconds, by phase
        try:
            self._groups = place(demand_of(config), self._start_s, self._note)
            self._create(config)
        except BaseException:  # whatever it is: no worker stays behind
            self.close()
            raise

    def connect(self) -> None:
        """Waits until every worker is up and has joined the others. Raises DeadlineError, WorkerDied."""
        self.infos = self._gather("start", [actor.describe.remote() for actor in self._actors], self._start_s)
        met = {team.ranks: self._rendezvous(team.ranks, self._join_s) for team in self._teams}
        place = {rank: where for ranks, where in met.items() for rank in ranks}
        ends = self._bridge_ends()
        joins = [
            actor.connect.remote(*place[rank], self._join_s, ends.get(rank)) for rank, actor in enumerate(self._actors)
        ]
        self._gather("connect", joins, max(self._join_s, self._start_s))

    def _rendezvous(self, ranks: Sequence[int], timeout_s: float) -> tuple[str, int]:
        """Host and port of one that the first of `ranks` opens for all of them."""
        opened = self._actors[ranks[0]].open_store.remote(len(ranks), timeout_s)
        [(host, port)] = self._gather("rendezvous", [opened], self._start_s, ranks[:1])
        return host, port

    def _bridge_ends(self) -> dict[int, BridgeEnd]:
        if not self._bridge:
            return {}
        host, port = self._rendezvous(self._bridge, self._bridge_s)
        size = len(self._bridge)
        return {rank: BridgeEnd(host, port, end, size, self._bridge_s) for end, rank in enumerate(self._bridge)}

    def meet_retrievers(self, retrievers: Mapping[int, Retriever]) -> dict[int, Met | TrainerError]:
        """See `retrieval.nodes.Ranks`."""
        calls = [self._actors[rank].meet_retriever.remote(retriever) for rank, retriever in retrievers.items()]
        limit_s = self._start_s + 2 * max(each.timeout for each in retrievers.values())  # its health, and a search
        found = self._gather("meet_retriever", calls, limit_s, list(retrievers))
        return dict(zip(retrievers, found, strict=True))

    def build(self, spec: RunSpec) -> tuple[Choice, ...]:
        """Models on every rank; a second call starts over in the same processes. Gives how each role is trained."""
        answers = self._gather("build", [actor.build.remote(spec) for actor in self._actors], self.timeout_s)
        return tuple({choice.role: choice for chosen in answers for choice in chosen}.values())

    def all(self, phase: str, args: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """See `interfaces.Calls`. Raises WorkerDied, DeadlineError, or what a rank raised."""
        return self.first([self.begin(phase, args)])[1]

    def begin(self, phase: str, args: Sequence[tuple[Any, ...] | None]) -> UnderWay:
        """See `interfaces.SideBySide`."""
        calls = {
            rank: actor.call.options(name=phase).remote(phase, packed)
            for rank, (actor, packed) in enumerate(zip(self._actors, pack_each(args), strict=True))
            if packed is not None
        }
        return self._under_way(phase, list(calls.values()), self.timeout_s, list(calls))

    def first(self, begun: Sequence[UnderWay]) -> tuple[UnderWay, list[Any]]:
        """See `interfaces.SideBySide`. Raises WorkerDied, DeadlineError, or what a rank raised."""
        done, gathered = self._first_done(begun)
        answers: list[Any] = [None] * self.world_size
        for rank, answer in zip(done.failure.ranks, gathered, strict=True):
            answers[rank], reading = unpack(answer)
            self._memory.append(reading)
        return done, answers

    def take_memory(self) -> Memory | None:
        """See `run.Pool`."""
        taken, self._memory = most(self._memory), []
        return taken

    def close(self) -> None:
        """Ends the workers and gives back their places."""
        for actor in self._actors:
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
        self._actors, self._groups = [], []

    def _create(self, config: Config) -> None:
        gpu = uses_gpus(config)
        remote = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_restarts=0)
        workers = {team.roles: remote(class_of(team, self._teams)) for team in self._teams}
        for seat in seats_of(config):
            node, slot = divmod(seat.number, config.trainer.n_gpus_per_node)
            place = PlacementGroupSchedulingStrategy(self._groups[node], placement_group_bundle_index=slot)
            named = workers[seat.roles].options(name=f"{self.name}-worker-{seat.number}", scheduling_strategy=place)
            self._actors.append(named.remote(seat))

    def _gather(self, phase: str, refs: list[Any], timeout_s: float, ranks: Sequence[int] | None = None) -> list[Any]:
        """The answers to calls to `ranks`, all without any given; the first failure ends the wait."""
        return self._first_done([self._under_way(phase, refs, timeout_s, ranks)])[1]

    def _under_way(self, phase: str, refs: list[Any], timeout_s: float, ranks: Sequence[int] | None = None) -> UnderWay:
        asked = list(range(len(refs)) if ranks is None else ranks)
        failure = Failure(phase, refs, asked, self._actors, self.infos)
        return UnderWay(failure, timeout_s, SLOW * self._longest.get(phase, SLOW_S))

    def _first_done(self, begun: Sequence[UnderWay]) -> tuple[UnderWay, list[Any]]:
        done = first_done(begun, self._note)
        self._longest[done.phase] = max(self._longest.get(done.phase, SLOW_S), done.took_s)
        return done, done.answers
