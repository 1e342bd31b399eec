"""Roles on ranks of their own: who is where, what is refused, and the weights' way from the actor to the engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.batches import train_batch
from tests.trainer.conftest import Words
from tests.trainer.ranks import run_ranks
from tests.trainer.runs import complete, metrics_of
from trainer import ppo
from trainer.config import load, resolve
from trainer.config.check import setting_problems
from trainer.config.mapping import team_problems
from trainer.config.schema import Config, DeviceMappingConfig
from trainer.errors import WeightMismatch
from trainer.group import WorkerGroup
from trainer.records import LogProbs, Rollout, Scores, UpdateReport
from trainer.rendezvous import open_store
from trainer.rollout.bridge import Bridge, Kind, buckets
from trainer.spec import BridgeEnd
from trainer.teams import ROLES, Seat, bridge_ranks, ranks_of, roles_of, seats_of, teams_of

pytestmark = pytest.mark.trainer

BASE = (
    "data.train_batch_size=12",
    "actor_rollout_ref.actor.ppo_mini_batch_size=12",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "critic.ppo_micro_batch_size_per_gpu=1",
    "trainer.nnodes=2",
    "trainer.n_gpus_per_node=3",
)


def config_of(*changes: str) -> Config:
    return load([*BASE, *changes]).config


def mapped(*changes: str, **ranks: Sequence[int]) -> Config:
    return config_of(*changes, *(f"trainer.device_mapping.{role}={list(of)}" for role, of in ranks.items()))


# ------------------------------------------------------------------------------------------------- who is where


def test_without_a_mapping_all_ranks_do_everything() -> None:
    seats = seats_of(config_of("algorithm.use_kl_in_reward=True"))
    assert seats == [Seat(rank, rank, 6, frozenset(ROLES)) for rank in range(6)]
    assert bridge_ranks(config_of()) == ()


def test_a_team_counts_its_ranks_from_0() -> None:
    config = mapped("algorithm.use_kl_in_reward=True", actor=[4, 1], rollout=[2, 0, 5], critic=[3])
    seats = seats_of(config)
    assert [seat.rank for seat in seats] == [0, 0, 1, 0, 1, 2]
    assert [seat.size for seat in seats] == [3, 2, 3, 1, 2, 3]
    assert seats[4].roles == {"actor", "ref"}, "the reference follows the actor"
    assert bridge_ranks(config) == (1, 0, 2, 5)
    assert [seat.only_generates for seat in seats] == [True, False, True, False, False, True]


def test_roles_of_the_same_ranks_are_one_team() -> None:
    config = mapped(actor=[0, 1, 2], rollout=[2, 1, 0], critic=[5, 4, 3])
    assert [(team.ranks, str(team)) for team in teams_of(config)] == [
        ((0, 1, 2), "actor+rollout"),
        ((3, 4, 5), "critic"),
    ]
    assert bridge_ranks(config) == ()


def test_ranks_as_roll_writes_them() -> None:
    """Hydra's own grammar has no such function: the text is quoted."""
    config = config_of(
        "trainer.device_mapping.actor='list(range(0,4))'", 'trainer.device_mapping.rollout="list(range(4, 6))"'
    )
    assert (ranks_of(config, "actor"), ranks_of(config, "rollout")) == ((0, 1, 2, 3), (4, 5))


THREE = config_of("trainer.nnodes=1")


def of_three(mapping: dict[str, list[int] | None], *, reference: bool) -> Config:
    return replace(
        THREE,
        trainer=replace(THREE.trainer, device_mapping=DeviceMappingConfig(**mapping)),
        algorithm=replace(THREE.algorithm, use_kl_in_reward=reference),
    )


def seats_every_rank_once(config: Config) -> bool:
    seats = seats_of(config)
    for role in roles_of(config):
        of_role = [seat for seat in seats if role in seat.roles]
        places = [(seat.number, seat.rank, seat.size) for seat in of_role]
        if places != [(number, rank, len(of_role)) for rank, number in enumerate(ranks_of(config, role))]:
            return False
    return [seat.number for seat in seats] == [0, 1, 2] and all(seat.roles for seat in seats)


THREE_OF_THREE = st.lists(st.integers(0, 2), min_size=3, max_size=3)


@given(THREE_OF_THREE, st.lists(st.integers(0, 2), min_size=4, max_size=4), st.booleans())
def test_roles_that_share_out_all_ranks_are_seated(ranks: list[int], roles: list[int], reference: bool) -> None:
    """Each rank and each role is dealt to one of three teams; it is fine if every team has both."""
    mapping = {
        role: [rank for rank, team in enumerate(ranks) if team == of_role]
        for role, of_role in zip(ROLES, roles, strict=True)
    }
    config = of_three(dict(mapping), reference=reference)
    dealt = {of_role for role, of_role in zip(ROLES, roles, strict=True) if role in roles_of(config)}
    fine = all(mapping.values()) and dealt == set(ranks)
    assert fine == (not list(team_problems(config)))
    assert not fine or seats_every_rank_once(config)


RANKS = st.none() | st.lists(st.integers(-1, 3), max_size=3)


@given(st.fixed_dictionaries(dict.fromkeys(ROLES, RANKS)), st.booleans())
def test_what_is_not_refused_seats_every_rank_once(mapping: dict[str, list[int] | None], reference: bool) -> None:
    config = of_three(mapping, reference=reference)
    assert list(team_problems(config)) or seats_every_rank_once(config)


REFUSED = {
    "a rank that is not there": ({"actor": [0, 6]}, "names [6], and there are 6 ranks"),
    "a rank twice": ({"actor": [0, 0]}, "names [0] more than once"),
    "no rank": ({"rollout": []}, "names no rank"),
    "half shared": ({"actor": [0, 1, 2], "rollout": [2, 3, 4, 5]}, "actor+critic and rollout share the ranks [2]"),
    "one side alone": ({"actor": [0, 1, 2]}, "actor+critic and rollout share the ranks [0, 1, 2]"),
    "idle": ({"actor": [0, 1, 2], "rollout": [3, 4]}, "gives the ranks [5] no role"),
}


@pytest.mark.parametrize(("mapping", "message"), REFUSED.values(), ids=REFUSED)
def test_a_mapping_that_can_not_be(mapping: dict[str, list[int]], message: str) -> None:
    words = [f"trainer.device_mapping.{role}={ranks}" for role, ranks in mapping.items()]
    [problem] = team_problems(resolve([*BASE, *words]).config)
    assert message in problem.message and problem.hint
    assert problem.key.startswith("trainer.device_mapping.")


def test_an_engine_takes_the_ranks_that_generate() -> None:
    words = ("actor_rollout_ref.rollout.name=sglang", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    told = [problem.message for problem in setting_problems(mapped(*words, actor=[0, 1, 2], rollout=[3, 4, 5]))]
    assert any("does not divide the 3 ranks of trainer.device_mapping.rollout" in message for message in told)
    cut = [problem.message for problem in setting_problems(mapped(*words, actor=[0, 1, 4, 5], rollout=[2, 3]))]
    assert cut == [], "one rank of each node is even"


def test_a_capsule_needs_its_models_on_the_same_ranks() -> None:
    apart = mapped("trainer.capsule_dir=x", actor=[0, 1], rollout=[2, 3], critic=[4, 5])
    assert [problem.key for problem in setting_problems(apart)] == ["trainer.capsule_dir"]
    together = mapped("trainer.capsule_dir=x", actor=[0, 1, 2], rollout=[3, 4, 5])
    assert list(setting_problems(together)) == []


class Echo:
    """`Calls` whose ranks answer a forward pass with their rank; `asked` are those that were given anything."""

    world_size = 6

    def __init__(self) -> None:
        self.asked: dict[str, list[int]] = {}

    def all(self, phase: str, args: Any) -> list[Any]:
        self.asked[phase] = [rank for rank, share in enumerate(args) if share is not None]
        return [None if share is None else self.answer(phase, rank, *share) for rank, share in enumerate(args)]

    def answer(self, phase: str, rank: int, share: Any = None, *_: Any) -> Any:
        if not isinstance(share, Rollout):
            return {"from": str(rank)}
        said = torch.full_like(share.mask_BT, rank).float()
        return said if phase != "log_probs" else LogProbs(said, said)


def test_a_phase_goes_to_the_ranks_that_have_the_role() -> None:
    config = mapped("algorithm.use_kl_in_reward=True", actor=[1, 4], rollout=[0, 5], ref=[2], critic=[3])
    calls, rollout = Echo(), train_batch(12).experience.rollout
    workers = WorkerGroup(calls, config)
    assert set(workers.log_probs(rollout).now().logp_BT[:, 0].tolist()) == {1, 4}
    assert set(workers.ref_log_probs(rollout).now()[:, 0].tolist()) == {2}
    assert set(workers.values(rollout).now()[:, 0].tolist()) == {3}
    assert workers.checksums("engine") == [{"from": "0"}, {"from": "5"}]
    assert calls.asked == {"log_probs": [1, 4], "ref_log_probs": [2], "values": [3], "checksums": [0, 5]}


class Stepping(Echo):
    """`SideBySide` calls whose ranks answer every phase of a step; what began last is done first."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.under_way: dict[str, list[Any]] = {}

    def answer(self, phase: str, rank: int, share: Any = None, *_: Any) -> Any:
        if phase == "generate":
            shape = (len(share), 3)
            return Rollout(share, torch.ones(shape).long(), torch.ones(shape).long(), torch.zeros(shape))
        if phase == "score":
            return Scores(torch.ones(len(share)), {})
        if phase.startswith("update_"):
            return UpdateReport(tuple({"grad_norm": 1.0} for _ in share), (), 0.1, 0)
        return super().answer(phase, rank, share)

    def all(self, phase: str, args: Any) -> list[Any]:
        self.events.append(phase)
        return super().all(phase, args)

    def begin(self, phase: str, args: Any) -> str:
        self.events.append(f"begin {phase}")
        self.under_way[phase] = super().all(phase, args)
        return phase

    def first(self, begun: Sequence[str]) -> tuple[str, list[Any]]:
        assert set(begun) == set(self.under_way)
        self.events.append(f"end {begun[-1]}")
        return begun[-1], self.under_way.pop(begun[-1])


def step_of(calls: Any, *changes: str, **mapping: list[int]) -> list[str]:
    config = mapped("algorithm.use_kl_in_reward=True", *changes, **mapping)
    prompts = train_batch(12).experience.rollout.prompts
    ppo.step(WorkerGroup(calls, config), prompts, ppo.Progress(), config, lambda name: nullcontext())
    return list(calls.events)


def test_a_step_lets_teams_work_side_by_side() -> None:
    """The updates wait for all forward passes, and the new weights for both updates."""
    events = step_of(Stepping(), actor=[0, 1], rollout=[2, 3], ref=[4], critic=[5])
    assert events == [
        *("generate", "score"),
        *("begin log_probs", "begin ref_log_probs", "begin values"),
        *("end values", "end ref_log_probs", "end log_probs"),
        *("begin update_critic", "begin update_actor", "end update_actor", "end update_critic"),
        "sync_weights",
    ]


def test_roles_of_one_team_take_turns_beside_another_team() -> None:
    events = step_of(Stepping(), actor=[0, 1], rollout=[2, 3], critic=[4, 5])
    assert events[2:8] == [
        *("begin log_probs", "begin values", "end values", "end log_probs"),
        *("begin ref_log_probs", "end ref_log_probs"),
    ]


def test_a_step_of_one_team_begins_nothing_beside_another() -> None:
    updates = ["update_critic", "update_actor", "sync_weights"]
    forward = ["log_probs", "ref_log_probs", "values"]
    assert step_of(Stepping()) == ["generate", "score", *forward, *updates]
    assert step_of(Stepping(), "trainer.critic_warmup=2") == ["generate", "score", *forward, "update_critic"]


# -------------------------------------------------------------------------------------------------- over the bridge

CPU = Kind(torch.device("cpu"), torch.bfloat16, 100)
WEIGHTS = {
    "first": torch.arange(60.0).reshape(3, 20),
    "one number": torch.tensor(7.0),
    "larger than a bucket": torch.arange(200.0),
    "last": torch.arange(8.0).reshape(2, 2, 2),
}


class Damaging(Bridge):
    """Changes one number of what it sends after it was summed up."""

    def _broadcast(self, group: Any, tensor: torch.Tensor) -> None:
        if tensor.dtype == CPU.dtype and len(tensor) == 200:
            tensor[3] += 1
        super()._broadcast(group, tensor)


def end_main(rank: int, port: int, case: Callable[[Bridge, int], None]) -> None:
    if rank == 0:
        open_store_at(port)
    kind = Damaging if case is damaged and rank == 0 else Bridge
    case(kind(BridgeEnd("127.0.0.1", port, rank, 3, 30.0)), rank)


def open_store_at(port: int) -> None:
    from trainer import rendezvous

    store = torch.distributed.TCPStore("127.0.0.1", port, 3, is_master=True, wait_for_workers=False)
    rendezvous._STORES[port] = store


def arrives(bridge: Bridge, rank: int) -> None:
    for turn in (1, 2):  # the groups are for the whole run
        weights = {name: tensor + turn for name, tensor in WEIGHTS.items()}
        if rank == 0:
            bridge.await_receivers()
            bridge.send(iter(weights.items()), CPU)
            continue
        came = dict(bridge.receive(CPU))
        bridge.require_whole(rank)
        assert list(came) == list(weights)
        assert all(torch.equal(came[name], weights[name].bfloat16()) for name in weights)


def damaged(bridge: Bridge, rank: int) -> None:
    if rank == 0:
        bridge.await_receivers()
        bridge.send(iter(WEIGHTS.items()), CPU)
        return
    assert len(list(bridge.receive(CPU))) == len(WEIGHTS), "an engine walks to the end"
    with pytest.raises(WeightMismatch, match=f"did not reach rank {rank} as they were sent: larger than a bucket$"):
        bridge.require_whole(rank)


@pytest.mark.parametrize("case", [arrives, damaged])
def test_two_engines_get_the_actors_weights(case: Callable[..., None], free_port: int) -> None:
    run_ranks(end_main, (free_port, case), 3)


def test_a_bucket_holds_what_fits() -> None:
    cut = [[name for name, _ in bucket] for bucket in buckets(iter(WEIGHTS.items()), CPU)]
    assert cut == [["first"], ["one number"], ["larger than a bucket"], ["last"]]
    larger = [
        [name for name, _ in bucket] for bucket in buckets(iter(WEIGHTS.items()), Kind(CPU.device, CPU.dtype, 122))
    ]
    assert larger == [["first", "one number"], ["larger than a bucket"], ["last"]]


def test_what_a_learner_yields_may_change_with_its_next_tensor() -> None:
    one = torch.zeros(4)

    def reused() -> Any:
        for number in range(3):
            yield str(number), one.fill_(number)

    [bucket] = buckets(reused(), Kind(CPU.device, torch.float32, 1000))
    assert [tensor[0].item() for _, tensor in bucket] == [0, 1, 2]


def test_nobody_at_the_other_end() -> None:
    from trainer.errors import DeadlineError

    port = open_store(2, 1.0)
    with pytest.raises(DeadlineError, match=r"end 0 of the bridge on \S+ could not reach the other ranks"):
        Bridge(BridgeEnd("127.0.0.1", port, 0, 2, 1.0))


# ------------------------------------------------------------------------------------------------------ a whole run


def test_roles_apart_train_as_roles_together(words: Words, tmp_path: Path) -> None:
    """On real workers: the same losses and rewards, to the last digits that a sum over ranks may change."""
    changes = ("algorithm.use_kl_in_reward=True", "trainer.total_training_steps=2", "trainer.save_freq=2")
    apart = (
        "trainer.n_gpus_per_node=4",
        *("trainer.device_mapping.actor=[0,1]", "trainer.device_mapping.rollout=[2]"),
        "trainer.device_mapping.critic=[3]",
    )
    found = []
    for name, more in (("together", ("trainer.n_gpus_per_node=2",)), ("apart", apart)):
        folder = tmp_path / name
        folder.mkdir()
        code, run = complete(words(*changes, *more), folder)
        assert code == 0, run.text
        found.append(metrics_of(folder / "run"))
        saved = folder / "run/global_step_2"
        assert (saved / "actor/.metadata").is_file() and (saved / "critic/.metadata").is_file()
        assert json.loads((saved / "actor/huggingface/config.json").read_text())["model_type"] == "qwen2"
    together, apart_ = found
    assert together.keys() == apart_.keys()
    for step, line in together.items():
        for name in ("critic/score/mean", "actor/pg_loss", "critic/vf_loss", "actor/grad_norm", "actor/ppo_kl"):
            assert apart_[step][name] == pytest.approx(line[name], rel=1e-4, abs=1e-6), (step, name)
        assert apart_[step]["training/rollout_probs_diff_max"] < 1e-5, "the engine has the actor's weights"
