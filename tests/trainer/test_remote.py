"""Engines in actors of their own, on a real Ray: the trainer's side and the adapter for SGLang, over a stub of it."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from safetensors.torch import save_file

from tests.pace import stretched
from tests.trainer.stubbed import spec_of, stub_in
from trainer.config import load
from trainer.errors import DeadlineError, EngineError, WeightMismatch
from trainer.group import WorkerGroup
from trainer.interfaces import Request, Sampling
from trainer.records import Prompts, Row
from trainer.rollout import handle as handles
from trainer.rollout import wire
from trainer.rollout.bucket import Filler, read
from trainer.rollout.handle import EngineHandle, PartLost, gone
from trainer.rollout.memory import Needed
from trainer.rollout.remote import Limits, RemoteEngine, free_port
from trainer.rollout.server import Answer, Draw, PartSpec
from trainer.rollout.sums import sums_of
from trainer.rollout.talk import Talk
from trainer.rollout.wire import Look

pytestmark = pytest.mark.trainer

HANG = 7  # the first token of a prompt without an answer
SAMPLING = Sampling(max_new_tokens=3, temperature=1.0, top_p=1.0, top_k=-1, do_sample=True, ignore_eos=False, seed=3)
DRAW = Draw(max_new_tokens=3, temperature=1.0, top_p=1.0, top_k=-1, stop_ids=(1,), seed=3)
CPU = torch.device("cpu")
WEIGHTS = {"model.embed.weight": torch.randn(6, 4), "model.norm.weight": torch.randn(4)}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the stub is told what to do; the model lies there, too."""
    with tempfile.TemporaryDirectory() as name:
        save_file(WEIGHTS, Path(name) / "model.safetensors")
        yield Path(name)


@pytest.fixture(scope="module")
def local_ray(folder: Path) -> Iterator[None]:
    """Its processes find the stub."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="eng", dir="/tmp") as place:
        for name, value in (stub_in(folder) | settled_authentication()).items():
            patch.setenv(name, value)
        ray.init(address="local", num_cpus=2, include_dashboard=False, _temp_dir=place, log_to_driver=False)
        yield
        ray.shutdown()


def settled_authentication() -> dict[str, str]:
    """What Ray keeps once it was asked for it: by a test before these, in this process, perhaps."""
    raylet = ray._raylet
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return {"RAY_AUTH_MODE": "disabled"}
    token = raylet.AuthenticationTokenLoader.instance().get_raw_token()
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


class OneRank:
    """`interfaces.Calls` of this process."""

    world_size = 1

    def __init__(self, folder: Path, mesh: Any, **changes: Any) -> None:
        limits = Limits(60.0, 60.0, bucket_bytes=128, memory_bytes=0, needed=Needed(0, 0))
        self.engine = RemoteEngine(spec_of(str(folder), **changes), limits, device=CPU, eos_ids=[1], pad_id=0)
        rollout = "actor_rollout_ref.rollout"
        words = [f"{rollout}.name=sglang", f"{rollout}.tensor_model_parallel_size=1", "data.max_response_length=3"]
        config = load(["trainer.n_gpus_per_node=1", *words]).config
        self.workers = WorkerGroup(self, config)
        self.weights = {name: torch.randn_like(tensor) for name, tensor in WEIGHTS.items()}
        self.phases: list[str] = []

    def all(self, phase: str, args: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        self.phases.append(phase)
        if phase == "revive_engines":
            return [self.engine.revive(iter(self.weights.items()))]
        assert phase == "generate" and args[0] is not None
        return [self.engine.generate(*args[0])]

    @property
    def pids(self) -> tuple[int, ...]:
        info = self.engine.handles[0].info
        assert info is not None
        return info.pids

    def generate(self, firsts: Sequence[int]) -> Any:
        self.phases.clear()
        return self.workers.generate(prompts_of(firsts), 1, validate=False)


def prompts_of(firsts: Sequence[int]) -> Prompts:
    """Prompts of a first token and another; the responses of the stub repeat the latter."""
    ids_BP = torch.tensor([[first, 20 + index] for index, first in enumerate(firsts)])
    count = len(firsts)
    rows = tuple(Row(i, "f", "s", "1") for i in range(count))
    return Prompts(ids_BP, torch.ones_like(ids_BP), torch.arange(count), torch.zeros(count, dtype=torch.long), rows)


@pytest.fixture(scope="module")
def rank(local_ray: None, folder: Path, mesh: Any) -> OneRank:
    return OneRank(folder, mesh)


@contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """Prompts that begin with HANG have no answer."""
    (folder / "hang").write_text(str(HANG))
    try:
        yield
    finally:
        (folder / "hang").unlink(missing_ok=True)


def test_weights_are_proved_and_prompts_answered(rank: OneRank) -> None:
    rank.engine.load_weights(iter(rank.weights.items()), 1)
    assert rank.engine.checksums() == {name: str(sums_of(tensor)) for name, tensor in rank.weights.items()}
    rollout = rank.generate([5, 5, 5])
    assert rollout.response_BT.tolist() == [[20] * 3, [21] * 3, [22] * 3]
    assert rollout.mask_BT.all() and (rollout.logp_BT == -0.5).all()
    assert rank.phases == ["generate"]


def test_what_is_not_the_trainers_is_named(rank: OneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightMismatch, match=r"sglang engine 0 .*model.norm.weight on rank 0 got no weights"):
        rank.engine.load_weights((item for item in rank.weights.items() if "norm" not in item[0]), 2)
    fill = Filler.fill

    def spoiled(self: Filler, bucket: Any, *args: Any) -> Any:
        filled, following = fill(self, bucket, *args)
        for _, tensor in read(bucket.memory_N, filled.slots):
            tensor.view(torch.int32).view(-1)[1] ^= 1  # one bit
        return filled, following

    with monkeypatch.context() as patch:
        patch.setattr(Filler, "fill", spoiled)
        with pytest.raises(WeightMismatch, match=r"model.embed.weight on rank 0 arrived as"):
            rank.engine.load_weights(iter(rank.weights.items()), 2)
    rank.engine.load_weights(iter(rank.weights.items()), 2)


def test_an_engine_that_dies_in_a_generation_comes_back_with_the_weights(
    rank: OneRank, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a prompt without an answer beside two that have one, when the engine is killed, it alone runs again."""
    before, parts = rank.pids, []
    generate = EngineHandle.generate

    def killing(self: EngineHandle, prompts: Any, draw: Draw) -> Iterator[Any]:
        for part in generate(self, prompts, draw):
            parts.append((len(prompts), len(part)))
            yield part
            if sum(done for _, done in parts) == 2:
                (folder / "hang").unlink()
                os.kill(before[0], signal.SIGKILL)

    monkeypatch.setattr(EngineHandle, "generate", killing)
    with hanging(folder):
        rollout = rank.generate([5, HANG, 5])
    assert rank.phases == ["generate", "revive_engines", "generate"]
    assert parts[-1] == (1, 1), "what is done stands, and what is open runs again"
    assert rollout.response_BT.tolist() == [[20] * 3, [21] * 3, [22] * 3]
    assert rank.pids != before and all(gone(pid, 0) for pid in before)
    assert rank.engine.checksums() == {name: str(sums_of(tensor)) for name, tensor in rank.weights.items()}


def spoken(talk: Talk, count: int) -> list[Answer]:
    """The next answers."""
    found: list[Answer] = []
    while len(found) < count and not talk.gone:
        assert wait(talk.lines, stretched(60.0))
        found += talk.take()
    return found


def request(row: int, first: int, turn: int = 0) -> Request:
    return Request(row, (row, 0), turn, [first, 30 + row], 2, Row(row, "f", "s", "1"))


def test_a_turn_is_answered_beside_one_that_hangs_and_an_engine_that_dies_is_seen(rank: OneRank, folder: Path) -> None:
    """Over the line that stands for a call, which is one for all turns; the next call finds the actor free."""
    talk = rank.engine.talk(prompts_of([5, 5, 5]), SAMPLING)
    with hanging(folder):
        talk.ask([request(0, HANG), request(1, 5)])
        for turn in (1, 2):
            assert [(each.index, each.token_ids) for each in spoken(talk, 1)] == [(1, [31, 31])]
            talk.ask([request(1, 5, turn)])
        assert len(spoken(talk, 1)) == 1
        talk.drop(0)
        talk.close()
    assert rank.generate([5, 5]).response_BT.tolist() == [[20] * 3, [21] * 3]
    before, talk = rank.pids, rank.engine.talk(prompts_of([5, 5, 5]), SAMPLING)
    with hanging(folder):
        talk.ask([request(0, HANG), request(2, 5)])
        assert [each.index for each in spoken(talk, 1)] == [2]
        os.kill(before[0], signal.SIGKILL)
        assert spoken(talk, 1) == [] and talk.gone and not rank.engine.loaded
        talk.close()
    assert rank.engine.revive(iter(rank.weights.items())) == 1
    assert rank.generate([5, 5]).response_BT.tolist() == [[20] * 3, [21] * 3] and rank.pids != before


def test_a_call_that_is_late_and_a_prompt_that_is_refused(rank: OneRank, folder: Path) -> None:
    handle = rank.engine.handles[0]
    with pytest.raises(EngineError, match=r"sglang engine 0 .*refused a prompt of 99 tokens: too long for the"):
        list(handle.generate([[5] * 99], DRAW))
    impatient = replace(handle, timeout_s=1.0)
    node = ray.util.get_node_ip_address()
    with hanging(folder), pytest.raises(DeadlineError) as late:
        list(impatient.generate([[5, 9], [HANG, 9]], DRAW))
    said = f"sglang engine 0 (pid {rank.pids[0]} on {node}): no answer within 1 s; it was to generate, 1 of 2 responses"
    assert str(late.value).startswith(said) and "engine_timeout" in late.value.hint


def test_an_update_has_a_limit_of_its_own(rank: OneRank, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank.engine, "limits", replace(rank.engine.limits, update_s=1.0))
    (folder / "stuck").touch()
    try:
        with pytest.raises(DeadlineError, match=r"engine 0 \(pid .* no answer within 1 s; it was to take weights"):
            rank.engine.load_weights(iter(rank.weights.items()), 3)
    finally:
        (folder / "stuck").unlink()
    rank.engine.load_weights(iter(rank.weights.items()), 3)


def test_the_next_run_takes_the_engine_over_if_it_is_the_same(rank: OneRank, folder: Path, mesh: Any) -> None:
    before = rank.pids
    following = OneRank(folder, mesh)
    assert following.pids == before
    following.engine.load_weights(iter(following.weights.items()), 1)
    assert following.generate([5]).response_BT.tolist() == [[20] * 3]


def test_replicas_are_proved_each_and_come_back_together(local_ray: None, folder: Path, mesh: Any) -> None:
    """Given two engines in place of the one above; when one is killed; then both start again, with the weights."""
    rank = OneRank(folder, mesh, replicas=2)
    rank.engine.load_weights(iter(rank.weights.items()), 1)
    assert rank.generate([1, 2, 3]).response_BT.tolist() == [[20] * 3, [21] * 3, [22] * 3]
    talk = rank.engine.talk(prompts_of([5, 5]), SAMPLING)  # each replica has a line of its own
    talk.ask([request(0, 5), request(1, 5)])
    assert sorted((each.index, each.token_ids) for each in spoken(talk, 2)) == [(0, [30, 30]), (1, [31, 31])]
    assert len(talk.lines) == 0
    talk.close()
    reports = rank.engine.handles[0].call("send", wire.encode(Look(1)))
    assert [(report.tp_rank, report.version) for report in reports] == [(0, 1), (0, 1)]
    before = rank.pids
    os.kill(before[-1], signal.SIGKILL)
    assert rank.generate([1, 2, 3]).response_BT.tolist() == [[20] * 3, [21] * 3, [22] * 3]
    assert "revive_engines" in rank.phases and not set(before) & set(rank.pids)
    rank.engine.handles[0].end()


@contextmanager
def parts_of(folder: Path) -> Iterator[list[EngineHandle]]:
    """The two parts of an engine over two nodes, as their owners have them."""
    node, ip = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    address = f"{ip}:{free_port()}"
    made = [
        EngineHandle(
            spec_of(str(folder), tensor_parallel=2),
            PartSpec(0, of, 2, "", address),
            node,
            ip,
            timeout_s=stretched(60.0),
        )
        for of in range(2)
    ]
    made[0].others, made[1].others = (made[1],), (made[0],)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "LOOK_S", 0.2)
        yield made
    for handle in made:
        handle.end()


@pytest.fixture(scope="module")
def parts(local_ray: None, folder: Path) -> Iterator[list[EngineHandle]]:
    with parts_of(folder) as made:
        answers = [handle.create(f"part-{handle.part.node_rank}") for handle in made]
        for handle, answer in zip(made, answers, strict=True):
            handle.started(answer)
        yield made


def test_a_part_whose_node_is_lost_is_noticed(
    parts: list[EngineHandle], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts[1], "node_id", "gone")
    monkeypatch.setattr("trainer.failures.ray.nodes", lambda: [{"NodeID": "gone", "Alive": False}])
    with hanging(folder), pytest.raises(PartLost, match=r"part 2 of 2\) was lost with its node: .* was to generate"):
        list(parts[0].generate([[HANG, 9]], DRAW))
    monkeypatch.undo()
    parts[0].call("ping")  # it comes to it when it has ended the generation


def test_a_part_that_dies_while_another_generates_is_noticed_and_named(parts: list[EngineHandle], folder: Path) -> None:
    victim = parts[1].info
    assert victim is not None
    with hanging(folder):
        answers = parts[0].generate([[5, 9], [HANG, 9]], DRAW)
        assert [answer.index for answer in next(answers)] == [0]
        began = time.monotonic()
        os.kill(victim.pids[0], signal.SIGKILL)
        said = rf"engine 0 \(pid {victim.pids[0]} .*, part 2 of 2\) died: .*part 1 of 2\) was to generate, 1 of 2"
        with pytest.raises(PartLost, match=said):
            next(answers)
    assert time.monotonic() - began < 30


def test_a_part_that_ends_while_another_starts_is_noticed(local_ray: None, folder: Path) -> None:
    with parts_of(folder) as (first, second):
        answer = first.create("waits-for-the-other")
        second.create("leaves")
        ray.kill(second._actor)
        with pytest.raises(PartLost, match=r"part 2 of 2\) died: .*part 1 of 2\) was to start"):
            first.started(answer)


def test_an_engine_that_ends_while_it_starts_says_its_last_error(local_ray: None, folder: Path) -> None:
    """What SGLang's own processes raise ends its actor, too, which says nothing any more."""
    (folder / "broken").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7 GiB")
    try:
        with parts_of(folder) as (first, _):
            first.others = ()  # alone
            answer = first.create("is-broken")
            said = r"ended while it started: torch.OutOfMemoryError: CUDA out of memory"
            with pytest.raises(EngineError, match=said) as raised:
                first.started(answer)
    finally:
        (folder / "broken").unlink()
    assert re.search(r"^/\S+/worker-\S+\.err on ", raised.value.hint)
