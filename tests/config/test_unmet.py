"""What changes what is learned and is not there is a warning of its own; what is invented is an unknown key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trainer import main_ppo
from trainer.config import load, resolve, unmet, warning_lines
from trainer.config.schema import Config

from .conftest import SEED_SCRIPTS

A, O = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"  # noqa: E741
COMMANDS: dict[str, tuple[list[str], list[str]]] = {  # the words, and what their warnings are about
    "Search-R1": (
        ["max_turns=2", "do_search=true", f"{A}.state_masking=true", "data.max_prompt_length=9000"],
        [],
    ),
    "Search-R1 with a reranker": (
        ["max_turns=1", "reranker.topk=3", "data.max_prompt_length=9000"],
        ["a reranker between"],
    ),
    "Search-R1 without its search": (["do_search=false", "max_turns=2", "retriever.topk=3"], []),
    "a reranker of nothing": (["do_search=false", "reranker.topk=3"], []),
    "interactions": ([f"{O}.multi_turn.interaction_config_path=a.yaml"], ["verl's interactions"]),
    "interactions that are off": ([f"{O}.multi_turn.enable=False", f"{O}.multi_turn.completion_callback=x"], []),
    "tools": ([f"{O}.multi_turn.max_assistant_turns=5", f"{O}.agent.num_workers=8"], []),
    "processes for agents": ([f"{O}.agent.num_workers=8"], []),
    "a policy loss": ([f"{A}.policy_loss.ppo_kl_coef=1", f"{A}.tau_pos=0.5"], ["another policy loss"]),
    "a policy loss as a dictionary": ([f"{A}.policy_loss={{ppo_kl_coef:1}}"], ["another policy loss"]),
    "verl's defaults": ([f"{A}.policy_loss.ppo_kl_coef=0.1", f"{A}.policy_loss.clip_cov_ub=5"], []),
    "settings of no loss": ([f"{A}.policy_loss.loss_mode=vanilla", f"{A}.policy_loss.ppo_kl_coef=1"], []),
    "DAPO": (
        ["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=4096"],
        ["a penalty on long responses"],
    ),
    "DAPO as a dictionary": (
        ["+reward_model.reward_kwargs={overlong_buffer_cfg:{enable:True,len:4096},max_resp_len:8192}"],
        ["a penalty on long responses"],
    ),
    "DAPO that is off": (["+reward_model.reward_kwargs.overlong_buffer_cfg={enable:False,len:4096}"], []),
    "pictures": (["data.image_key=images"], ["images or videos in the prompts"]),
    "a quantized engine": (
        [f"{O}.engine_kwargs.vllm.quantization=fp8", f"+{O}.engine_kwargs.sglang.kv_cache_dtype=fp8_e5m2"],
        ["responses from a quantized model"],
    ),
    "an engine's defaults": ([f"{O}.engine_kwargs.vllm.kv_cache_dtype=auto", f"{O}.engine_kwargs.vllm.dtype=null"], []),
    "a new optimizer": ([f"{A}.checkpoint.load_contents=['model']"], ["a resumed run with a new optimizer"]),
    "all of a checkpoint": (
        [
            f"{A}.checkpoint.load_contents=[model,optimizer,extra,hf_model]",
            "critic.checkpoint.load_contents=${.save_contents}",
        ],
        [],
    ),
    "a new optimizer, and nothing to resume": (
        [f"{A}.checkpoint.load_contents=['model']", "trainer.resume_mode=disable"],
        [],
    ),
    "two things": (
        ["data.image_key=images", "reranker.topk=4", "do_search=true"],
        ["a reranker", "images or videos"],
    ),
    "what costs time alone": ([f"{O}.enable_prefix_caching=True", "reward_model.launch_reward_fn_async=True"], []),
    "an empty section": ([f"{A}.policy_loss={{}}", "+reward_model.reward_kwargs=null"], []),
}


def warnings(words: Sequence[str]) -> list[str]:
    return list(warning_lines(load(words).notes))


@pytest.mark.parametrize(("words", "about"), COMMANDS.values(), ids=COMMANDS)
def test_a_warning_for_each_thing_that_is_asked_for_in_vain(words: list[str], about: list[str]) -> None:
    said = warnings(words)
    assert len(said) == len(about)
    for line, topic in zip(said, about, strict=True):
        assert line.startswith("warning: ") and topic in line and "this trainer does not have: " in line


def test_a_warning_names_its_keys_with_their_values_and_no_note_does() -> None:
    words = ["reranker.topk=4", "reranker.url=http://10.0.0.1:6980/rerank"]
    (line,) = warnings(words)
    assert line.startswith("warning: reranker.topk=4, reranker.url=http://10.0.0.1:6980/rerank ask for ")
    assert [note for note in load(words).notes if note.kind == "inert"] == []


def test_a_key_that_asks_for_nothing_is_a_note() -> None:
    notes = {note.key: note for note in load(["do_search=false", "max_turns=2"]).notes if note.kind == "inert"}
    assert notes.keys() == {"do_search", "max_turns"}
    assert (
        notes["max_turns"].message
        == "max_turns has no effect: nothing is searched; agent.max_turns bounds other conversations"
    )


def test_the_seeds_are_not_warned_about(local_seed: Callable[[Path], list[str]]) -> None:
    said = {script.stem: warnings(local_seed(script)) for script in SEED_SCRIPTS}
    assert {name for name, lines in said.items() if lines} == set()


@pytest.mark.parametrize(
    ("word", "near"),
    [
        (f"+{O}.agent.agent_loop_configpath=x.yaml", f"{O}.agent.agent_loop_config_path"),
        (f"{O}.multi_turn.max_assistent_turns=5", f"{O}.multi_turn.max_assistant_turns"),
        (f"+{A}.policy_loss.los_mode=gspo", f"{A}.policy_loss.loss_mode"),
        (f"{A}.policy_loss={{loss_modes:gspo}}", f"{A}.policy_loss.loss_mode"),
        ("+reward_model.overlong_buffer.lens=4096", "reward_model.overlong_buffer.len"),
        ("+reward_model.reward_kwargs.max_response_len=9", "reward_model.reward_kwargs.max_resp_len"),
        ("+reward_model.reward_kwargs={max_response_len:9}", "reward_model.reward_kwargs.max_resp_len"),
        ("reward.num_worker=9", "reward.num_workers"),
    ],
)
def test_an_invented_name_in_a_free_section_is_an_unknown_key(word: str, near: str) -> None:
    (problem,) = resolve([word]).problems
    assert problem.message.startswith("there is no key ")
    assert problem.hint == f"did you mean {near}?"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        (f"{A}.policy_loss={{loss_mode:gspo}}", f"{A}.policy_loss.loss_mode"),
        ("+data.sampler={class_path:mine.py}", "data.sampler.class_path"),
        ("reward_model={enable:True}", "reward_model.enable"),
    ],
)
def test_what_is_refused_is_refused_in_a_dictionary_too(word: str, key: str) -> None:
    (problem,) = resolve([word]).problems
    assert problem.key == key and "is not supported" in problem.message


def test_a_text_for_a_whole_section_is_told_with_one_of_its_keys() -> None:
    (problem,) = resolve([f"{A}.policy_loss=gspo"]).problems
    assert problem.message == f"{A}.policy_loss is a section, not a key"
    assert problem.hint.startswith(f"for example {A}.policy_loss.")


def test_no_key_is_of_two_things() -> None:
    keys = [name for each in unmet.TABLE for name in each.keys]
    assert len(keys) == len(set(keys))


def test_warnings_come_last_in_a_check(command: Callable[..., list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    words = command("reranker.topk=4", f"{O}.tensor_model_parallel_size=1", "data.max_prompt_length=12000")
    assert main_ppo.main(["--check", *words]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith("warning: reranker.topk=4 asks for ")
    assert [line for line in lines[:-1] if line.startswith("warning:")] == []
    assert main_ppo.main(["--check", *words, "no.such.key=1"]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == lines[-1]


def test_warnings_come_first_in_a_run(
    command: Callable[..., list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Config] = []
    monkeypatch.setattr(main_ppo, "train", lambda config: trained.append(config) or 0)
    assert main_ppo.main(command("reranker.topk=4")) == 0
    assert len(trained) == 1
    assert capfd.readouterr().err.startswith("warning: reranker.topk=4 asks for ")


# -- loggers of verl's


@pytest.mark.parametrize(
    ("given", "taken", "named"),
    [
        ("[console,swanlab]", ["console"], "swanlab"),
        ("['console','mlflow','wandb']", ["console", "wandb"], "mlflow"),
        ("[clearml,trackio]", ["console", "file"], "clearml, trackio"),
        ("vemlp_wandb", ["console", "file"], "vemlp_wandb"),
        ("rerun", ["console", "file"], "rerun"),
        ("rl_insight", ["console", "file"], "rl_insight"),
    ],
)
def test_a_tracker_of_verls_is_a_note(given: str, taken: list[str], named: str) -> None:
    resolved = load([f"trainer.logger={given}"])
    assert resolved.config.trainer.logger == taken
    (note,) = [note for note in resolved.notes if note.key == "trainer.logger"]
    shown = f"[{','.join(taken)}]"
    assert note.message == f"trainer.logger names {named}, which this trainer does not have: it becomes {shown}"


def test_a_tracker_that_nobody_knows_is_refused() -> None:
    (problem,) = resolve(["trainer.logger=[console,swanlab,wandbb]"]).problems
    assert problem.message == "trainer.logger=wandbb is not one of its choices"
    assert resolve(["trainer.logger=[]"]).config.trainer.logger == []
