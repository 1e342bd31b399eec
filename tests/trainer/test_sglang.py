"""What of the engine `sglang` needs no SGLang: arguments, requests and updates, with a stand-in for its `Engine`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.stubbed import DRAW, PART, Conversation, gpu_spec, spec_of
from trainer.errors import ConfigError, EngineError
from trainer.rollout import exchange, sglang, versions
from trainer.rollout.exchange import Asked
from trainer.rollout.server import PartSpec
from trainer.rollout.sglang import LOADER, SglangEngine, accepted, arguments, environment, sampling_parameters

SPREAD = PartSpec(engine=0, node_rank=1, nodes=2, gpus="0,1", address="10.0.0.1:5000")
ON_GPU = gpu_spec("sglang")
ON_CPU = spec_of("/m", max_sequences=8, max_tokens=512)


class Core:
    """In place of SGLang's `Engine`: a request is done when its first token's turn has come."""

    def __init__(self, answer: Any = (True, "")) -> None:
        self.loop = asyncio.new_event_loop()
        self.answer = answer
        self.calls: list[str] = []
        self.given: dict[str, Any] = {}
        self.aborted: list[str] = []
        self.tokenizer_manager = SimpleNamespace(abort_request=lambda rid: self.aborted.append(rid))
        self.turns = {token: asyncio.Event() for token in range(10)}

    def set(self, token: int) -> None:
        """From another thread than its own."""
        self.loop.call_soon_threadsafe(self.turns[token].set)

    async def async_generate(self, **given: Any) -> dict[str, Any]:
        self.given = given
        tokens = given["input_ids"]
        if len(tokens) > 5:
            raise ValueError("longer than the context")
        if len(tokens) > 4:
            raise RuntimeError("broken")
        if len(tokens) > 3:
            return {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "longer than 3"}}}
        await self.turns[tokens[0]].wait()
        logprobs = [(-float(token), token, None) for token in tokens]
        return {"output_ids": tokens, "meta_info": {"finish_reason": None, "output_token_logprobs": logprobs}}

    def update_weights_from_tensor(self, named: list[tuple[str, torch.Tensor]], **given: Any) -> Any:
        self.calls.append(named[0][0])
        self.given = given
        return self.answer

    def flush_cache(self) -> None:
        self.calls.append("flush")


class Core21(Core):
    """From 0.5.21 on updates need a session."""

    def begin_weight_update(self) -> Any:
        self.calls.append("begin")
        return self.answer

    def end_weight_update(self) -> Any:
        self.calls.append("end")
        return SimpleNamespace(success=True, message="")


@pytest.fixture
def core() -> Iterator[Core]:
    made = Core()
    yield made
    made.loop.close()


def engine_over(core: Core, monkeypatch: pytest.MonkeyPatch) -> SglangEngine:
    monkeypatch.setattr(sglang.metadata, "version", lambda _name: "0.5.23")
    return SglangEngine(core, PART)


# -- how it is started


def test_arguments_on_a_gpu() -> None:
    given = arguments(ON_GPU, PART)
    assert (given["model_path"], given["load_format"], given["dtype"]) == ("/m", "dummy", "bfloat16")
    assert (given["tp_size"], given["mem_fraction_static"], given["nccl_port"]) == (1, 0.5, 5000)
    assert given["custom_weight_loader"] == [LOADER] and given["skip_tokenizer_init"]
    assert not given["disable_cuda_graph"] and given["enable_memory_saver"] and given["enable_weights_cpu_backup"]
    assert not {"nnodes", "dist_init_addr", "attention_backend", "max_total_tokens"} & given.keys()
    assert given["gc_threshold"] == sglang.COLLECT_AFTER
    assert arguments(replace(ON_GPU, options={"gc_threshold": [700, 10, 10]}), PART)["gc_threshold"] == [700, 10, 10]
    kept = arguments(replace(ON_GPU, cuda_graphs=False, releases_memory=False), PART)
    assert kept["disable_cuda_graph"] and not kept["enable_memory_saver"] and not kept["enable_weights_cpu_backup"]


@pytest.mark.parametrize(("sequences", "graphed"), [(8, 8), (1024, 1024), (4096, 1024)])
def test_graphs_are_captured_for_as_many_sequences_as_there_are(sequences: int, graphed: int) -> None:
    """Under the name that SGLang 0.5.17 and later have; beyond 1,024 only where the command asks for it."""
    spec = replace(ON_GPU, max_sequences=sequences)
    assert arguments(spec, PART)["cuda_graph_max_bs_decode"] == graphed
    assert "cuda_graph_max_bs_decode" not in arguments(replace(spec, cuda_graphs=False), PART)
    asked = arguments(replace(spec, options={"cuda_graph_max_bs": 2048}), PART)
    assert asked["cuda_graph_max_bs_decode"] == 2048 and "cuda_graph_max_bs" not in asked


def test_arguments_on_a_cpu() -> None:
    given = arguments(ON_CPU, PART)
    assert (given["device"], given["sampling_backend"]) == ("cpu", "pytorch")
    assert given["attention_backend"] == "torch_native"
    assert given["disable_cuda_graph"] and not given["enable_memory_saver"] and "cuda_graph_max_bs_decode" not in given
    assert given["max_total_tokens"] == 8 * 512
    assert arguments(replace(ON_CPU, max_sequences=10**6), PART)["max_total_tokens"] == sglang.CPU_TOKENS


def test_arguments_over_nodes_and_ones_own() -> None:
    given = arguments(replace(ON_GPU, tensor_parallel=4, options={"attention_backend": "triton"}), SPREAD)
    assert [given[name] for name in ("tp_size", "nnodes", "node_rank", "dist_init_addr")] == [4, 2, 1, "10.0.0.1:5000"]
    assert given["disable_custom_all_reduce"] and "nccl_port" not in given
    assert given["attention_backend"] == "triton"


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    environment(ON_GPU, PART)
    assert not {"SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "SGLANG_USE_CPU_ENGINE"} & os.environ.keys()
    environment(replace(ON_CPU, tensor_parallel=2), SPREAD)
    assert os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] == "0", "else its constructor never returns there"
    assert os.environ["SGLANG_USE_CPU_ENGINE"] == "1"
    cores = [int(core) for core in os.environ["SGLANG_CPU_OMP_THREADS_BIND"].split("|")]
    assert len(cores) == 2 and set(cores) <= os.sched_getaffinity(0)


@pytest.mark.parametrize(("version", "why"), [(None, "is not installed"), ("0.5.16", "0.5.16 is installed")])
def test_it_is_not_started_where_it_does_not_fit(version: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda _name: version)
    with pytest.raises(ConfigError, match=why) as caught:
        sglang.start(ON_CPU, PART)
    assert "sglang>=0.5.17" in caught.value.hint


# -- generation


def test_answers_come_as_they_are_done_each_with_its_prompt(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a response that is done, it goes off though another is not."""
    engine = engine_over(core, monkeypatch)
    core.turns[2].set()
    answers = engine.generate([[3, 9], [2, 8]], DRAW)
    assert [(a.index, a.token_ids, a.logprobs) for a in next(answers)] == [(1, [2, 8], [-2.0, -8.0])]
    core.turns[3].set()
    assert [(a.index, a.token_ids, a.logprobs) for a in next(answers)] == [(0, [3, 9], [-3.0, -9.0])]
    assert list(answers) == []
    assert core.given["return_logprob"] and core.given["sampling_params"] == sampling_parameters(DRAW)


def test_what_is_done_within_a_moment_travels_together(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_over(core, monkeypatch)
    monkeypatch.setattr(sglang, "GATHER_S", 60.0)
    for turn in core.turns.values():
        turn.set()
    [part] = engine.generate([[3], [2], [1]], DRAW)
    assert sorted(answer.index for answer in part) == [0, 1, 2]


def test_a_thousand_answers_are_not_looked_through_for_the_next(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come through one queue; `asyncio.wait` would ask every task each time that one is done."""
    engine = engine_over(core, monkeypatch)
    monkeypatch.setattr(sglang, "GATHER_S", 0.0)
    monkeypatch.setattr(asyncio, "wait", None)
    core.turns[1].set()
    answers = [answer for part in engine.generate([[1, n] for n in range(1000)], DRAW) for answer in part]
    assert sorted(answer.index for answer in answers) == list(range(1000))


def test_what_waits_is_given_up_when_one_fails(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_over(core, monkeypatch)
    with pytest.raises(EngineError):
        list(engine.generate([[5, 5, 5, 5], [2]], DRAW))
    core.loop.run_until_complete(asyncio.sleep(0))
    assert [task for task in asyncio.all_tasks(core.loop) if not task.done()] == []


def test_a_prompt_that_it_aborts_is_an_error_with_its_length(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_over(core, monkeypatch)
    with pytest.raises(EngineError, match=r"sglang engine 3 \(0.5.23\) refused a prompt of 4 tokens: longer than 3"):
        list(engine.generate([[5, 5, 5, 5]], DRAW))


def test_sampling_in_sglangs_names() -> None:
    given = sampling_parameters(DRAW)
    assert (given["max_new_tokens"], given["temperature"], given["top_p"], given["top_k"]) == (4, 0.7, 0.9, 5)
    assert (given["stop_token_ids"], given["ignore_eos"]) == ([1, 2], False)
    endless = sampling_parameters(replace(DRAW, stop_ids=()))
    assert (endless["stop_token_ids"], endless["ignore_eos"]) == (None, True)


def test_a_text_that_ends_a_turn_is_a_pattern() -> None:
    """`stop` looks through as many tokens as the tokenizer would make of it; a model may say it in more."""
    given = sampling_parameters(replace(DRAW, stop=("</search>", "a.b")))
    assert (given["stop_regex"], given["no_stop_trim"]) == (["</search>", r"a\.b"], True) and "stop" not in given
    assert not {"stop_regex", "no_stop_trim"} & sampling_parameters(DRAW).keys()
    spoken = arguments(replace(ON_CPU, tokenizer="/t"), PART)
    assert (spoken["skip_tokenizer_init"], spoken["tokenizer_path"]) == (False, "/t")
    assert "tokenizer_path" not in arguments(ON_CPU, PART)


# -- conversations


@pytest.fixture
def conversation(core: Core, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Conversation]:
    made = Conversation(engine_over(core, monkeypatch), tmp_path)
    yield made
    made.close()


def test_a_turn_is_answered_when_it_is_done_beside_others(core: Core, conversation: Conversation) -> None:
    conversation.ask(Asked(0, [1, 9], 5, 0), Asked(1, [2, 8], 6, 0))
    core.set(2)
    assert conversation.answer() == (1, [2, 8], [-2.0, -8.0])
    conversation.ask(Asked(1, [3, 7], 4, 0))
    core.set(3)
    assert conversation.answer() == (1, [3, 7], [-3.0, -7.0])
    assert core.given["sampling_params"]["max_new_tokens"] == 4
    core.set(1)
    assert conversation.answer() == (0, [1, 9], [-1.0, -9.0])
    conversation.hang_up()
    assert core.aborted == [] and conversation.ended() is None


def test_what_nobody_waits_for_any_more_is_aborted(core: Core, conversation: Conversation) -> None:
    conversation.ask(Asked(0, [1, 9], 5, 0), Asked(1, [2, 8], 5, 0), Asked(2, [3], 5, 0))
    core.set(3)
    assert conversation.answer() == (2, [3], [-3.0])
    exchange.drop(conversation.line, 0)
    conversation.ask(Asked(3, [4], 5, 0))
    core.set(4)
    assert conversation.answer() == (3, [4], [-4.0])
    assert len(core.aborted) == 1
    conversation.hang_up()
    assert conversation.ended() is None and len(set(core.aborted)) == 2


def test_a_prompt_that_is_refused_ends_the_conversations(core: Core, conversation: Conversation) -> None:
    """The rank sees that the line is at its end, and asks the call why."""
    conversation.ask(Asked(0, [1, 9], 5, 0), Asked(1, [5] * 4, 5, 0))
    with pytest.raises(EOFError):
        conversation.answer()
    assert "refused a prompt of 4 tokens" in str(conversation.ended()) and len(core.aborted) == 1


@pytest.mark.parametrize(("tokens", "said"), [(6, "refused a prompt of 6 tokens: longer than"), (5, "broken")])
def test_whatever_it_raises_ends_the_conversations(conversation: Conversation, tokens: int, said: str) -> None:
    """SGLang 0.5.23 raises for a prompt that does not fit. Else the rank would wait to its deadline."""
    conversation.ask(Asked(0, [1, 9], 5, 0), Asked(1, [5] * tokens, 5, 0))
    with pytest.raises(EOFError):
        conversation.answer()
    assert said in str(conversation.ended())


# -- updates


def test_an_update_with_sessions_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for core, expected in (
        (Core(), ["a", "b", "flush"]),
        (Core21(), ["begin", "a", "b", "end", "flush"]),
    ):
        engine = engine_over(core, monkeypatch)
        engine.begin_update()
        engine.send("a")
        engine.send("b")
        engine.end_update()
        assert core.calls == expected
        assert core.given == {"load_format": LOADER, "flush_cache": False}
        core.loop.close()


def test_a_message_outside_of_an_update_has_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core21()
    engine = engine_over(core, monkeypatch)
    engine.send("look")
    assert core.calls == ["begin", "look", "end"]
    core.loop.close()


def test_an_update_that_came_to_no_end_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core21()
    engine = engine_over(core, monkeypatch)
    engine.begin_update()
    engine.begin_update()
    assert core.calls == ["begin", "end", "begin"]
    core.loop.close()


def test_what_it_refuses_is_an_error_with_its_reason(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    core.answer = (False, "no session is open")
    engine = engine_over(core, monkeypatch)
    with pytest.raises(EngineError, match=r"refused update_weights_from_tensor: no session is open") as caught:
        engine.send("a")
    assert "log_level=info" in caught.value.hint


def test_both_kinds_of_answers() -> None:
    assert accepted((True, "fine")) == (True, "fine")
    assert accepted(SimpleNamespace(success=False, message="no")) == (False, "no")
    assert accepted(None) == (True, "")
