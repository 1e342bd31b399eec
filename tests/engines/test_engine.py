"""SGLang and vLLM themselves as the engine of one rank: log-probs, weights that are proved, an engine that dies."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch

from tests.engines.conftest import AGREE, CUDA, RESPONSE, ROLLOUT, World, gap
from trainer.config.schema import Config
from trainer.errors import DeadlineError, EngineError, WeightMismatch
from trainer.group import WorkerGroup
from trainer.records import Prompts
from trainer.rollout import bucket, push
from trainer.rollout.handle import EngineHandle, gone
from trainer.rows import take
from trainer.spec import RunSpec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
MODEL_PROCESS = {"sglang": 2, "vllm": 0}  # which of an engine's processes holds the model


@pytest.fixture(scope="module")
def world(local_ray: None, config_of: Callable[..., Config]) -> Iterator[World]:
    built = World(config_of())
    yield built
    built.pool.close()


def test_the_engine_answers_with_the_trainers_log_probs(world: World, prompts: Prompts) -> None:
    rollout = world.workers.generate(prompts, 1, validate=False)
    assert rollout.mask_BT.any(-1).all() and rollout.response_BT.shape[1] <= RESPONSE
    assert gap(world.workers, rollout) < AGREE  # at a temperature of 0.7
    eos = torch.tensor(world.engine.eos_ids)
    ended_B = torch.isin(rollout.response_BT, eos).any(-1)
    assert ((rollout.mask_BT.sum(-1) == RESPONSE) | ended_B).all()


def test_an_engine_with_nothing_to_do_leaves_the_cores_alone(world: World, prompts: Prompts) -> None:
    """While the trainer works; and `devkit hang` would take it for an engine at work."""
    world.workers.generate(prompts, 1, validate=False)
    processes = [psutil.Process(pid) for pid in world.engine.handles[0].info.pids]

    def computed() -> float:
        return sum(each.cpu_times().user + each.cpu_times().system for each in processes)

    before, seconds = computed(), 4.0
    time.sleep(seconds)
    assert computed() - before < 0.5 * seconds


def test_restricted_sampling_keeps_the_log_probs(world: World, prompts: Prompts) -> None:
    rollout = world.config.actor_rollout_ref.rollout
    part = dataclasses.replace(world.config.actor_rollout_ref, rollout=dataclasses.replace(rollout, top_p=0.8, top_k=5))
    workers = WorkerGroup(world.pool, dataclasses.replace(world.config, actor_rollout_ref=part))
    found = gap(workers, workers.generate(prompts, 1, validate=False))
    # vLLM has them only without a temperature: see the last test.
    assert found > 0.1 if rollout.name == "vllm" else found < AGREE


def test_greedy_sampling_repeats(world: World, prompts: Prompts) -> None:
    first, second = (world.workers.generate(prompts, 0, validate=True) for _ in range(2))
    assert torch.equal(first.response_BT, second.response_BT)


def test_responses_go_on_behind_eos_if_they_are_to(world: World, prompts: Prompts) -> None:
    rollout = dataclasses.replace(world.config.actor_rollout_ref.rollout, ignore_eos=True)
    part = dataclasses.replace(world.config.actor_rollout_ref, rollout=rollout)
    workers = WorkerGroup(world.pool, dataclasses.replace(world.config, actor_rollout_ref=part))
    assert workers.generate(prompts, 1, validate=False).mask_BT.sum() == 8 * RESPONSE


def test_weights_take_effect_and_are_the_trainers(world: World, prompts: Prompts) -> None:
    world.change_weights(seed=1)
    assert gap(world.workers, world.workers.generate(prompts, 1, validate=False)) > 0.1
    assert CUDA or not world.same_weights()
    before = world.engine.version
    world.workers.sync_weights()
    assert world.engine.version == before + 1
    assert gap(world.workers, world.workers.generate(prompts, 1, validate=False)) < AGREE
    assert world.same_weights()


def test_what_the_engine_remembers_of_prompts_goes_with_the_weights(world: World, prompts: Prompts) -> None:
    ids_BP = torch.randint(5, 60, (2, 200), generator=torch.Generator().manual_seed(2))  # blocks of a cache hold 128
    rows = dataclasses.replace(take(prompts, slice(0, 2)), ids_BP=ids_BP, mask_BP=torch.ones_like(ids_BP))
    first = world.engine.generate(
        rows, _sampling(world)
    )  # it goes on without releasing its memory, and the cache with it
    assert gap(world.workers, first) < AGREE
    world.change_weights(seed=3)
    world.workers.sync_weights()
    assert gap(world.workers, world.workers.generate(rows, 1, validate=False)) < AGREE


def test_a_tensor_that_is_spoiled_on_the_way_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fill = "model.layers.1.self_attn.k_proj.weight", bucket.Filler.fill

    def spoiled(self: Any, into: Any, *args: Any) -> Any:
        filled, following = fill(self, into, *args)
        for slot, tensor in bucket.read(into.memory_N, filled.slots):
            if slot.name == name:
                tensor.view(torch.int32)[2, 3] ^= 1  # one bit
        return filled, following

    monkeypatch.setattr(push.Filler, "fill", spoiled)
    with pytest.raises(WeightMismatch, match=rf"{name} on rank 0 arrived as"):
        world.workers.sync_weights()
    monkeypatch.undo()
    world.workers.sync_weights()
    assert world.same_weights()


def test_a_tensor_that_is_not_sent_is_named(world: World) -> None:
    actor, engine = world.pool.roles.actor, world.engine
    with pytest.raises(WeightMismatch, match=r"model.norm.weight on rank 0 got no weights"):
        engine.load_weights(((n, t) for n, t in actor.full_tensors() if n != "model.norm.weight"), 50)
    with pytest.raises(WeightMismatch, match=r"model.layers.7.odd.weight on rank 0 cannot be verified"):
        engine.load_weights([*actor.full_tensors(), ("model.layers.7.odd.weight", torch.zeros(2))], 51)
    world.workers.sync_weights()


def test_an_engine_that_dies_in_a_generation_comes_back(
    world: World, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change_weights(seed=2)
    world.workers.sync_weights()
    kept, handed_over, generate = world.engine.handles[0].info, [], EngineHandle.generate

    def killing(self: EngineHandle, *args: Any) -> Iterator[Any]:
        for part in generate(self, *args):
            handed_over.append(list(part))
            yield part
            if len(handed_over) == 1:
                os.kill(kept.pids[MODEL_PROCESS[world.engine.spec.name]], signal.SIGKILL)

    monkeypatch.setattr(EngineHandle, "generate", killing)
    rollout = world.workers.generate(prompts, 1, validate=False)
    early = handed_over[0]
    assert 0 < len(early) < 8, "the engine was to die between the first answer and the last"
    for answer in early:  # what was done before stands
        assert rollout.response_BT[answer.index][: len(answer.token_ids)].tolist() == list(answer.token_ids)
    assert rollout.mask_BT.any(-1).all() and torch.equal(rollout.prompts.ids_BP, prompts.ids_BP)
    assert gap(world.workers, rollout) < AGREE  # all of them by the current weights
    assert world.engine.handles[0].info.pids != kept.pids and all(gone(pid, 0) for pid in kept.pids)


def test_an_engine_that_dies_in_an_update_comes_back(world: World, prompts: Prompts) -> None:
    os.kill(world.engine.handles[0].info.pids[0], signal.SIGKILL)
    world.workers.sync_weights()
    assert not world.engine.loaded
    assert gap(world.workers, world.workers.generate(prompts, 1, validate=False)) < AGREE


def test_a_prompt_that_does_not_fit_and_a_call_that_is_late(world: World, prompts: Prompts) -> None:
    handle = world.engine.handles[0]
    draw = world.engine._draw(dataclasses.replace(_sampling(world), max_new_tokens=2))
    with pytest.raises(EngineError, match=f"{world.engine.spec.name} engine 0"):
        list(handle.generate([[5] * 2000], draw))
    impatient = dataclasses.replace(handle, timeout_s=0.0)
    impatient._actor = handle._actor
    with pytest.raises(DeadlineError, match=r"engine 0 .*no answer within 0 s; it was to generate, 0 of 1"):
        list(impatient.generate([[5, 6]], draw))


def _sampling(world: World) -> Any:
    from trainer.rollout.settings import sampling_of

    return sampling_of(world.config, 1, validate=False)


def test_the_next_run_takes_the_engine_over(world: World, config_of: Callable[..., Config]) -> None:
    pids = world.engine.handles[0].info.pids
    world.pool.build(RunSpec(config_of(f"{ROLLOUT}.top_p=0.9"), None, 3))  # type: ignore[arg-type]
    assert world.engine.handles[0].info.pids == pids
    assert world.same_weights()


def test_a_run_that_asks_for_another_engine_gets_one(
    world: World, prompts: Prompts, config_of: Callable[..., Config]
) -> None:
    pids = world.engine.handles[0].info.pids
    changes = (f"{ROLLOUT}.temperature=1.0", f"{ROLLOUT}.top_p=0.8", f"{ROLLOUT}.top_k=5", f"{ROLLOUT}.max_num_seqs=3")
    config = config_of(*changes)
    world.pool.build(RunSpec(config, None, 3))  # type: ignore[arg-type]
    assert world.engine.handles[0].info.pids != pids and all(gone(pid, 0) for pid in pids)
    workers = WorkerGroup(world.pool, config)
    assert gap(workers, workers.generate(prompts, 1, validate=False)) < AGREE


def test_two_replicas_have_the_trainers_weights_and_share_the_prompts(
    world: World, prompts: Prompts, config_of: Callable[..., Config]
) -> None:
    """Of SGLang, last: it takes the place of the engine above."""
    if world.config.actor_rollout_ref.rollout.name != "sglang":
        pytest.skip("of SGLang only")
    config = config_of(f"{ROLLOUT}.engine_kwargs.sglang.replicas=2", f"{ROLLOUT}.temperature=1.0")
    world.pool.build(RunSpec(config, None, 3))  # type: ignore[arg-type]
    workers = WorkerGroup(world.pool, config)
    for seed in (5, 6):
        world.change_weights(seed)
        workers.sync_weights()
        rollout = workers.generate(prompts, 1, validate=False)
        assert rollout.mask_BT.any(-1).all() and gap(workers, rollout) < AGREE
        assert world.same_weights()
