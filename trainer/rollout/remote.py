"""An engine that lives in processes of its own, as one rank of the trainer sees it.

The ranks of a group share one engine. Its leader speaks to it; all of them lay weights into buckets, each for the
tensor-parallel rank on its own device. What is marked *collective* needs every rank of the run.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch import Tensor

from trainer.errors import EngineError, TrainerError
from trainer.interfaces import Sampling
from trainer.records import Prompts, Rollout
from trainer.rollout import deadlines, memory
from trainer.rollout.answers import assemble
from trainer.rollout.handle import EngineDied, EngineHandle, PartLost
from trainer.rollout.layout import Group, Part, Place, form_groups
from trainer.rollout.push import Push, combined
from trainer.rollout.server import Draw, EngineSpec, PartSpec
from trainer.rollout.sums import Sums
from trainer.rollout.talk import Talk

ON_ROCM = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # the last filters for the others
_KEPT: list[RemoteEngine] = []  # what this process has started, one: starting takes half a minute


@dataclass(frozen=True)
class Limits:
    """What an engine may take of time and memory."""

    timeout_s: float
    update_s: float  # of a call in an update
    bucket_bytes: int
    memory_bytes: int  # of each GPU, for weights and cache; 0: not limited
    needed: memory.Needed


class RemoteEngine:
    """Implements `interfaces.Engine`."""

    def __init__(
        self, spec: EngineSpec, limits: Limits, *, device: torch.device, eos_ids: Iterable[int], pad_id: int
    ) -> None:
        """Starts the engines of all groups, or finds those that an earlier run of this process left. Collective."""
        self.spec = spec
        self.limits = limits
        self.device = device
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.pad_id = pad_id
        self.version = 0
        self.loaded = False  # the engine has the weights of `version`
        patience = timedelta(seconds=deadlines.beside(limits.timeout_s))
        # All ranks, with the time that an engine has: the default group has that of a collective.
        self.everyone = dist.new_group(backend="gloo", timeout=patience)
        places = self._gathered(place_of(dist.get_rank(), device))
        self.groups = form_groups(places, spec.tensor_parallel)
        self.group: Group = next(group for group in self.groups if dist.get_rank() in group.ranks)
        self.part: Part = self.group.part_of(dist.get_rank())
        # Every rank takes part in making each group, also of those that it is not in.
        made = [dist.new_group(list(group.ranks), backend="gloo", timeout=patience) for group in self.groups]
        self.peers = made[self.group.engine]
        self.handles: tuple[EngineHandle, ...] = ()  # the leader's: all parts; another owner's: its own
        self._starts = 0
        self._take_over()
        to_start = self.group.engine if self.leads and len(self.handles) == 0 else None
        self._start({engine for engine in self._gathered(to_start) if engine is not None})
        _KEPT[:] = [self]
        self._rest()  # the trainer's models come next

    @property
    def leads(self) -> bool:
        return dist.get_rank() == self.group.leader

    # -- generation

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        """Responses of the leader's prompts; a row with an empty mask has none, because the engine died."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what this process only keeps for later, the engine needs now
        if len(prompts) == 0:
            return assemble(prompts, [], self.pad_id)
        assert self.leads, "only a group's leader is given prompts"
        answers = []
        if self.loaded:
            try:
                for part in self.handles[0].generate(token_lists(prompts), self._draw(sampling)):
                    answers += part
            except EngineDied:
                self.loaded = False
        return assemble(prompts, answers, self.pad_id)

    def talk(self, prompts: Prompts, sampling: Sampling) -> Talk:
        """Of the leader, for conversations that begin with its `prompts`."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        handle = self.handles[0] if self.leads and self.loaded else None
        return Talk(handle, self._draw(sampling), len(prompts), died=self._died)

    def _died(self) -> None:
        self.loaded = False

    def _draw(self, sampling: Sampling) -> Draw:
        return Draw(
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature if sampling.do_sample else 0.0,
            top_p=sampling.top_p if sampling.do_sample else 1.0,
            top_k=sampling.top_k if sampling.do_sample else -1,
            stop_ids=() if sampling.ignore_eos else self.eos_ids,
            seed=sampling.seed,
            stop=sampling.stop,
        )

    def sleep(self) -> None:
        """Gives the engine's memory to the trainer."""
        if self.loaded:
            try:
                self._rest()
            except EngineDied:
                self.loaded = False

    def _rest(self) -> None:
        if self.leads:
            self.handles[0].call("sleep", doing="release its memory")

    def wake(self) -> None:
        """Nothing to do: an engine takes its memory again when it needs it."""

    # -- weights

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes the trainer's weights, bucket by bucket, and proves that they stand. Collective.

        Raises WeightMismatch on every rank of a group whose engine holds something else.
        """
        self._push(tensors, version, wanted=True)
        self.version = version

    def _push(self, tensors: Iterable[tuple[str, Tensor]], version: int, *, wanted: bool) -> None:
        if not wanted:
            for _ in tensors:  # the gathering of each tensor needs every rank
                pass
            return
        handles = [replace(handle, timeout_s=self.limits.update_s) for handle in self.handles]
        push = Push(self.group, handles, self.peers, self.device, self.limits.bucket_bytes)
        self.loaded = push.run(iter(tensors), version, getattr(torch, self.spec.dtype))

    def revive(self, tensors: Iterable[tuple[str, Tensor]]) -> int:
        """Starts the engines that died, with the current weights; gives how many. Collective."""
        dead = {engine for engine, loaded in self._gathered((self.group.engine, self.loaded)) if not loaded}
        self._start(dead)
        self._push(tensors, self.version, wanted=self.group.engine in dead)
        return len(dead)

    def checksums(self) -> dict[str, str]:
        """Of each whole tensor that the engine holds; the same on every rank of its group."""
        outcome: list[Any] = [None]
        if self.leads:
            try:
                outcome = [combined(self.handles, self.group, self.version)]
            except TrainerError as error:
                outcome = [error]
        dist.broadcast_object_list(outcome, src=self.group.leader, group=self.peers)
        if isinstance(outcome[0], TrainerError):
            raise outcome[0]
        sums: dict[str, Sums] = outcome[0]
        return {name: str(each) for name, each in sums.items()}

    # -- starting and ending

    def _take_over(self) -> None:
        """An engine that this process has started for an earlier run goes on if it is what this run asks for."""
        earlier = _KEPT.pop() if _KEPT else None
        if earlier is None or not earlier.handles:
            return
        same = (earlier.spec, earlier.limits, earlier.groups) == (self.spec, self.limits, self.groups)
        if same and len(self.group.parts) == 1 and earlier.handles[0].alive():
            self.handles, self._starts = earlier.handles, earlier._starts
            return
        for handle in earlier.handles:
            if handle.node_id == self.part.places[0].node_id:
                handle.end()

    def _start(self, engines: set[int]) -> None:
        """Starts these engines at once, and waits for all. Collective; what one raises is raised on every rank."""
        self._starts += 1
        mine = self.group.engine in engines and dist.get_rank() == self.part.owner
        self._each(mine, self._end_here)  # before anybody looks at what is free
        run = self._gathered(uuid.uuid4().hex[:8])[0]
        ports = self._gathered(free_port())
        rooms = self._gathered(memory.room(self.limits.memory_bytes, self.device))
        started: list[Any] = []
        self._each(mine, lambda: started.append(self._create(run, ports, self._share(rooms))))
        # All parts there are by now: an owner sees when another one ends.
        self._each(mine, lambda: self._await_start(run, started[0]))

    def _each(self, mine: bool, act: Callable[[], None]) -> None:
        """`act` where it is `mine` to do; what one rank raises, all raise. Collective."""
        failure: TrainerError | None = None
        if mine:
            try:
                act()
            except TrainerError as error:
                failure = error
        failures = [error for error in self._gathered(failure) if error is not None]
        if failures:  # that another part has ended is not the reason why it did
            first = min(failures, key=lambda error: isinstance(error, PartLost))
            # Where it happened it is raised itself: the others have copies without its frames.
            raise failure if failure is not None and str(failure) == str(first) else first

    def _await_start(self, run: str, answer: Any) -> None:
        """Waits until this rank's part is up. If it fails it ends, for the engine's other parts wait for it."""
        own = self._own_handle
        try:
            for other in own.others:
                other.join(self._name(run, other.part))
            own.started(answer)
        except TrainerError:
            own.end()
            raise

    @property
    def _own_handle(self) -> EngineHandle:
        return next(handle for handle in self.handles if handle.part.node_rank == self.part.node_rank)

    def _end_here(self) -> None:
        """What an engine that died has left on this node."""
        for handle in self.handles:
            if handle.node_id == self.part.places[0].node_id:
                handle.end()

    def _share(self, rooms: Sequence[memory.Room | None]) -> float:
        """Of the memory, by `rooms` of all ranks. Raises EngineError that names the rank where there is too little."""
        places = [place for part in self.group.parts for place in part.places]
        mine = {f"rank {p.rank}'s GPU ({p.node_ip})": room for p in places if (room := rooms[p.rank]) is not None}
        return memory.share(mine, self.limits.needed, self.spec.name, str(self.group))

    def _create(self, run: str, ports: Sequence[int], share: float) -> Any:
        """This rank's part, on its way up; gives the answer to wait for."""
        group = self.group
        spec = replace(
            self.spec,
            memory_share=share,
            # Engines must not draw alike, nor one that starts again as it did before.
            seed=(self.spec.seed + 7919 * group.engine + 104_729 * self._starts) % 2**31,
        )
        leader = group.parts[0].places[0]
        host = leader.node_ip if len(group.parts) > 1 else "127.0.0.1"
        address = f"{host}:{ports[leader.rank]}"
        handles = tuple(
            EngineHandle(
                spec,
                PartSpec(
                    group.engine,
                    part.node_rank,
                    len(group.parts),
                    part.gpus,
                    address,
                    node=part.places[0].node_ip,
                    gpu_variable=gpu_variable(),
                ),
                part.places[0].node_id,
                part.places[0].node_ip,
                self.limits.timeout_s,
            )
            for part in group.parts
        )
        own = handles[self.part.node_rank]
        own.others = tuple(handle for handle in handles if handle is not own)
        self.handles = handles if self.leads else (own,)
        return own.create(self._name(run, own.part))

    def _gathered(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank. Collective."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.everyone)
        return values

    def _name(self, run: str, part: PartSpec) -> str:
        return f"engine-{part.engine}-{part.node_rank}-{run}"


def place_of(rank: int, device: torch.device) -> Place:
    """Where this rank lives. Raises EngineError outside of Ray."""
    if not ray.is_initialized():
        raise EngineError(
            "an engine in processes of its own needs Ray, and this process is not part of a cluster",
            hint="use actor_rollout_ref.rollout.name=hf, or start the run with python -m trainer.main_ppo",
        )
    gpu = ""
    if device.type == "cuda":
        visible = os.environ.get(gpu_variable())
        index = torch.cuda.current_device()
        gpu = visible.split(",")[index] if visible else str(index)
    return Place(rank, ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), gpu)


def gpu_variable() -> str:
    """The variable that says which GPUs this process sees: Ray sets another on ROCm than on CUDA."""
    if torch.version.hip is None:
        return "CUDA_VISIBLE_DEVICES"
    return next((name for name in ON_ROCM if os.environ.get(name)), ON_ROCM[0])


def token_lists(prompts: Prompts) -> list[list[int]]:
    """Each prompt's tokens without its padding."""
    rows = zip(prompts.ids_BP, prompts.mask_BP.bool(), strict=True)
    return [ids_P[mask_P].tolist() for ids_P, mask_P in rows]


def free_port() -> int:
    """A port that nobody listens at just now, on any interface."""
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])
