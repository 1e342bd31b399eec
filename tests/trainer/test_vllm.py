"""What of the engine `vllm` needs no vLLM: its arguments, and its requests, with a stand-in for vLLM's own engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.stubbed import DRAW, PART, Conversation, gpu_spec
from trainer.config.schema import RolloutConfig
from trainer.errors import EngineError
from trainer.rollout import exchange, memory
from trainer.rollout.exchange import Asked
from trainer.rollout.memory import GIB, Needed
from trainer.rollout.server import Draw, PartSpec
from trainer.rollout.vllm import VllmEngine, arguments, logprobs_mode, named

SPEC = gpu_spec("vllm")


class Core:
    """In place of vLLM's `LLMEngine`: a request is done after as many steps as its first token says."""

    def __init__(self) -> None:
        self.open: dict[str, list[int]] = {}
        self.seen: list[str] = []
        self.draws: list[Draw] = []

    def add_request(self, request_id: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.draws.append(params)
        if len(prompt["prompt_token_ids"]) > 3:
            raise ValueError("longer than the maximum model length")
        assert request_id not in self.seen
        self.seen.append(request_id)
        self.open[request_id] = [prompt["prompt_token_ids"][0], *prompt["prompt_token_ids"]]

    def step(self) -> list[Any]:
        for state in self.open.values():
            state[0] -= 1
        done = {name: state for name, state in self.open.items() if state[0] <= 0}
        for name in done:
            del self.open[name]
        return [
            SimpleNamespace(request_id=name, finished=True, outputs=[completion(state[1:])])
            for name, state in done.items()
        ]

    def abort_request(self, names: Sequence[str]) -> None:
        for name in names:
            del self.open[name]


def completion(tokens: list[int]) -> Any:
    """The prompt's tokens again; each has the log-prob of minus itself, beside that of another token."""
    tables = [{0: SimpleNamespace(logprob=-100.0), token: SimpleNamespace(logprob=-float(token))} for token in tokens]
    return SimpleNamespace(token_ids=tokens, logprobs=tables)


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engine(core: Core, monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    monkeypatch.setattr("trainer.rollout.vllm.GATHER_S", 0.0)  # what is done goes off at once
    return VllmEngine(core, PART, "0.32.0", lambda draw: draw)


def test_answers_come_as_they_are_done_each_with_its_prompt(engine: VllmEngine) -> None:
    parts = list(engine.generate([[3, 9], [1, 8], [2]], DRAW))
    answers = [(answer.index, answer.token_ids, answer.logprobs) for part in parts for answer in part]
    assert answers == [(1, [1, 8], [-1.0, -8.0]), (2, [2], [-2.0]), (0, [3, 9], [-3.0, -9.0])]
    assert [len(part) for part in parts] == [1, 1, 1]


def test_nobody_finds_the_requests_of_a_generation_that_was_broken_off(engine: VllmEngine, core: Core) -> None:
    broken = engine.generate([[1], [5]], DRAW)
    assert [answer.index for answer in next(broken)] == [0] and len(core.open) == 1
    broken.close()  # type: ignore[attr-defined]
    assert core.open == {}
    assert [answer.index for part in engine.generate([[2]], DRAW) for answer in part] == [0]


def test_a_prompt_that_does_not_fit_is_an_error_with_its_length(engine: VllmEngine, core: Core) -> None:
    with pytest.raises(EngineError, match=r"vllm engine 3 \(0.32.0\) refused a prompt of 4 tokens: longer") as caught:
        list(engine.generate([[1], [5, 5, 5, 5]], DRAW))
    assert "data.max_prompt_length" in caught.value.hint
    assert core.open == {}  # nor those before it


def test_newer_releases_have_an_error_of_their_own_for_it(
    engine: VllmEngine, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("VLLMValidationError", (Exception,), {})

    def add(error: Exception) -> Any:
        def refuse(*_: Any) -> None:
            raise error

        return refuse

    monkeypatch.setattr(core, "add_request", add(kind("longer")))
    with pytest.raises(EngineError, match="refused a prompt of 1 tokens: longer"):
        list(engine.generate([[1]], DRAW))
    monkeypatch.setattr(core, "add_request", add(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        list(engine.generate([[1]], DRAW))


def test_sampling_in_vllms_names() -> None:
    given = named(DRAW)
    assert (given["max_tokens"], given["temperature"], given["top_p"], given["top_k"]) == (4, 0.7, 0.9, 5)
    assert (given["stop_token_ids"], given["ignore_eos"], given["logprobs"]) == ([1, 2], False, 0)
    assert named(replace(DRAW, stop_ids=()))["ignore_eos"]


def test_texts_that_end_a_turn_and_seeds_of_its_own() -> None:
    given = named(replace(DRAW, stop=("</search>",), own_seed=-7))
    assert (given["stop"], given["include_stop_str_in_output"], given["detokenize"]) == (["</search>"], True, True)
    assert given["skip_special_tokens"] is False and given["seed"] == -7
    assert not {"stop", "seed"} & named(DRAW).keys() and named(DRAW)["detokenize"] is False
    spoken = arguments(replace(SPEC, tokenizer="/t"), PART)
    assert (spoken["skip_tokenizer_init"], spoken["tokenizer"]) == (False, "/t")
    assert "tokenizer" not in arguments(SPEC, PART)


@pytest.fixture
def conversation(engine: VllmEngine, tmp_path: Path) -> Iterator[Conversation]:
    made = Conversation(engine, tmp_path)
    yield made
    made.close()


def test_a_turn_is_answered_when_it_is_done_beside_others(core: Core, conversation: Conversation) -> None:
    """A request is done after as many steps as its first token says, and a long one holds up nobody."""
    conversation.ask(Asked(0, [10**9, 9], 5, 100), Asked(1, [2, 8], 6, 101))
    assert conversation.answer() == (1, [2, 8], [-2.0, -8.0])
    conversation.ask(Asked(1, [3, 7], 4, 102))
    assert conversation.answer() == (1, [3, 7], [-3.0, -7.0])
    assert [(draw.max_new_tokens, draw.own_seed) for draw in core.draws] == [(5, 100), (6, 101), (4, 102)]
    exchange.drop(conversation.line, 0)
    conversation.ask(Asked(2, [1], 4, 103))
    assert conversation.answer() == (2, [1], [-1.0]) and core.open == {}
    conversation.ask(Asked(0, [10**9, 9], 5, 104))
    conversation.hang_up()
    assert conversation.ended() is None and core.open == {}


def test_a_prompt_that_is_refused_ends_the_conversations(core: Core, conversation: Conversation) -> None:
    conversation.ask(Asked(0, [10**9, 9], 5, 0), Asked(1, [5] * 4, 5, 0))
    with pytest.raises(EOFError):
        conversation.answer()
    assert "refused a prompt of 4 tokens" in str(conversation.ended()) and core.open == {}


def test_arguments_on_a_gpu_on_a_cpu_and_over_nodes() -> None:
    given = arguments(SPEC, PART)
    assert given["enable_sleep_mode"] and not given["enforce_eager"] and given["load_format"] == "dummy"
    assert (given["distributed_executor_backend"], given["gpu_memory_utilization"]) == ("uni", 0.5)
    assert not {"nnodes", "worker_cls", "kv_cache_memory_bytes"} & given.keys()
    on_cpu = arguments(replace(SPEC, device="cpu"), PART)
    assert on_cpu["enforce_eager"] and not on_cpu["enable_sleep_mode"] and "worker_cls" in on_cpu
    options = {"attention_backend": "TRITON_ATTN", "log_level": "info", "logprobs_mode": "raw_logprobs"}
    spread = PartSpec(engine=0, node_rank=1, nodes=2, gpus="0,1", address="10.0.0.1:5000")
    given = arguments(replace(SPEC, tensor_parallel=4, options=options), spread)
    assert (given["distributed_executor_backend"], given["attention_backend"]) == ("mp", "TRITON_ATTN")
    assert "log_level" not in given and given["logprobs_mode"] == "raw_logprobs"
    assert [given[name] for name in ("nnodes", "node_rank", "master_addr", "master_port")] == [2, 1, "10.0.0.1", 5000]


def test_log_probs_are_scaled_where_there_is_a_temperature() -> None:
    assert logprobs_mode(RolloutConfig(temperature=1.0, top_p=0.9)) == "raw_logprobs"
    assert logprobs_mode(RolloutConfig(temperature=0.6)) == "processed_logprobs"


def test_its_share_is_of_the_whole_memory_and_sglangs_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (40 * GIB, 80 * GIB))
    here = memory.room(20 * GIB, torch.device("cuda"))
    assert here is not None and memory.room(20 * GIB, torch.device("cpu")) is None
    assert memory.share({"rank 0": here}, Needed(GIB, GIB), "sglang", "engine 0") == 0.5
    assert memory.share({"rank 0": here}, Needed(GIB, GIB), "vllm", "engine 0") == 0.25
