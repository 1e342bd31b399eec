"""Several engines that answer as one: how many there are, and what goes to which."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.stubbed import DRAW, PART, STUB, gpu_spec, spec_of, stub_in
from trainer.errors import EngineError
from trainer.rollout import replicas
from trainer.rollout.memory import GIB, Needed
from trainer.rollout.replicas import Replicas, split, suited
from trainer.rollout.server import REPORT_FOLDER
from trainer.rollout.sglang import arguments

MIB = 2**20
TINY = Needed(weights=34 * MIB, sequence=3 * MIB)
MANY = replace(gpu_spec("sglang"), max_sequences=1024)


@pytest.mark.parametrize(
    ("sequences", "needed", "memory", "cores", "count"),
    [
        (1024, TINY, 40 * GIB, 16, 4),
        (4096, TINY, 80 * GIB, 16, 4),  # more of them are not more tokens
        (512, TINY, 40 * GIB, 16, 2),
        (257, TINY, 40 * GIB, 16, 2),
        (256, TINY, 40 * GIB, 16, 1),
        (1024, TINY, 40 * GIB, 4, 2),  # two cores each
        (1024, TINY, 40 * GIB, 1, 1),
        (1024, TINY, 25 * GIB, 16, 2),  # a third of it, without 3.75 GiB of cache, by 2 GiB each
        (1024, Needed(129 * MIB, 3 * MIB), 40 * GIB, 16, 1),
    ],
)
def test_a_small_model_with_many_sequences_has_several_engines(
    sequences: int, needed: Needed, memory: int, cores: int, count: int
) -> None:
    spec = suited(replace(MANY, max_sequences=sequences), None, needed, memory, cores)
    assert spec.replicas == count and spec.small == (needed is TINY)


def test_who_has_replicas_only_if_asked() -> None:
    for spec in (replace(MANY, tensor_parallel=2), replace(MANY, device="cpu"), replace(MANY, name="vllm")):
        assert suited(spec, None, TINY, 40 * GIB, 16).replicas == 1
    assert suited(MANY, 1, TINY, 40 * GIB, 16).replicas == 1
    assert suited(replace(MANY, device="cpu"), 3, TINY, 0, 1).replicas == 3


def test_replicas_share_sequences_and_cache_and_draw_differently() -> None:
    parts = split(replace(MANY, max_sequences=1000, replicas=3), 3)
    assert [part.max_sequences for part in parts] == [334] * 3
    assert len({part.seed for part in parts}) == 3 and {part.replicas for part in parts} == {1}
    given = arguments(parts[0], PART)
    assert given["max_total_tokens"] == int(1.25 * 334 * 512) and given["cuda_graph_max_bs_decode"] == 334
    assert "max_total_tokens" not in arguments(MANY, PART)


def test_a_small_model_is_not_prepared_for_beside_its_work() -> None:
    assert arguments(replace(MANY, small=True), PART)["disable_overlap_schedule"]
    assert "disable_overlap_schedule" not in arguments(MANY, PART)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Of the stub, each in a process of its own; the last test ends them."""
    folder = tmp_path_factory.mktemp("three")
    save_file({"a.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stub_in(folder).items():
            patch.setenv(name, value)
        patch.setenv(REPORT_FOLDER, str(folder))
        for path in (folder, STUB):
            patch.syspath_prepend(path)
        made = replicas.start(spec_of(str(folder), replicas=3), replace(PART, engine=0))
        yield made
    for link in made._links:
        link.close()


@pytest.mark.trainer  # processes that load torch
def test_answers_come_back_under_the_prompts_numbers(three: Replicas) -> None:
    assert three.version == "0.5.23"
    for count in (7, 2, 1, 0):
        prompts = [[5, 30 + number] for number in range(count)]
        answers = [answer for some in three.generate(prompts, DRAW) for answer in some]
        assert {answer.index: answer.token_ids for answer in answers} == {n: [30 + n] * 4 for n in range(count)}
    # What one refuses is raised when the others are done, and the next call hears its own answers.
    with pytest.raises(EngineError, match="refused a prompt of 65 tokens"):
        list(three.generate([[5, 31], [5] * 65, [5, 33]], DRAW))
    answers = [answer for some in three.generate([[5, 41], [5, 42], [5, 43]], DRAW) for answer in some]
    assert sorted(answer.token_ids[0] for answer in answers) == [41, 42, 43]


class Ended(Exception):
    """In place of the process's end."""


@pytest.mark.trainer
def test_the_end_of_one_is_the_end_of_all(three: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    three._links[1].send(("no such call",))
    with pytest.raises(Ended):
        list(three.generate([[5, 31], [5, 32], [5, 33]], DRAW))
