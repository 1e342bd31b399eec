"""Whole runs with tools in one process: prompts that show them, answers that are not trained, rewards, replay."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devkit.cli import main as devkit
from tests.trainer.conftest import Words
from tests.trainer.test_agent_run import ran
from tests.trainer.tool_files import MULTI_TURN, TEMPLATE, model_with_tools, write
from trainer import config, replay
from trainer.agent.tools.calls import Call
from trainer.config.problems import ConfigErrors
from trainer.data.reading import read_data
from trainer.errors import DataError, EpisodeError, ModelError
from trainer.findings import table
from trainer.rewards import score_by_data_source

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
Tools = Callable[..., list[str]]
ROWS = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"How much is {i} and 2? End with #### and the number."}],
        "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
        "extra_info": {
            **{"index": i, "need_tools_kwargs": True, "tools_kwargs": {"add": {"create_kwargs": {"more": i}}}},
            "tool_selection": ["add"],  # the others' schemas would make a long prompt
        },
    }
    for i in range(8)
]


@pytest.fixture(scope="module")
def model(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return model_with_tools(tiny_model, tmp_path_factory.mktemp("model") / "with-tools")


@pytest.fixture
def tools(words: Words, tmp_path: Path, model: str) -> Tools:
    """`tools("key=value", ..., rows=[...])`: two steps of 4 rows, two samples of each."""
    asked = write(tmp_path)

    def command(*changes: str, rows: list[dict[str, Any]] = ROWS) -> list[str]:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        return words(
            *(f"data.train_files={tmp_path / 'rows.parquet'}", f"data.val_files={tmp_path / 'rows.parquet'}"),
            *(f"actor_rollout_ref.model.path={model}", "data.max_prompt_length=400", "data.max_response_length=300"),
            *("agent.max_turn_tokens=6", f"{MULTI_TURN}.max_assistant_turns=3", f"{MULTI_TURN}.max_parallel_calls=2"),
            *(
                "data.train_batch_size=4",
                f"{ACTOR}.ppo_mini_batch_size=2",
                f"{ROLLOUT}.n=2",
                "trainer.total_training_steps=2",
            ),
            *(f"trainer.default_local_dir={tmp_path / 'run'}", *asked, *changes),
            without=("data.train_files", "data.val_files"),
        )

    return command


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that knows nothing calls nothing: whatever it says, it is two calls, in this process."""
    from trainer.env import tools as environment

    calls = [Call("add", {"a": 1, "b": 2}), Call("odd", {"how": "raise"})]
    monkeypatch.setattr(environment, "calls_in", lambda text: (calls, 0))
    yield
    for name in [each for each in sys.modules if each.startswith(("verl", "my_tools", "agent_functions"))]:
        del sys.modules[name]


def test_a_run_is_trained_recorded_and_replayed(tools: Tools, tmp_path: Path, calling: None) -> None:
    notes: list[str] = []
    lines = ran(
        tools(
            *("agent.isolate=False", "trainer.test_freq=2", "trainer.save_freq=2"),
            *(f"trainer.capsule_dir={tmp_path / 'capsules'}", f"trainer.rollout_data_dir={tmp_path / 'samples'}"),
        ),
        notes,
    )
    for line in lines:
        assert line["training/rollout_logp_diff_max"] < 1e-4
        assert (line["agent/turns/mean"], line["agent/tools/calls/mean"], line["agent/tools/errors/mean"]) == (3, 4, 2)
        assert line["agent/ended/turns"] == 1 and line["agent/observed_tokens/max"] > 60
    assert lines[1]["val-core/openai/gsm8k/reward/mean@1"] == 0
    samples = [json.loads(text) for text in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    for sample in samples:
        more = sample["asked"]["tools_kwargs"]["add"]["create_kwargs"]["more"]
        assert sample["prompt"].startswith(
            '<|im_start|>system\n<tools>\n{"type": "function", "function": {"name": "add"'
        )
        answered = (
            f"<|im_start|>user\n<tool_response>\n{3 + more} of 1\n</tool_response>\n<tool_response>\n"
            "Error when executing tool: 'odd'\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        assert [turn["answered"].endswith(answered) for turn in sample["turns"]] == [True, True, False]
        assert [turn["reward"] for turn in sample["turns"]] == [0.5, 0.5, 0.0] and sample["score"] == 0
    found = list(replay.replay(tmp_path / "capsules/step_2.capsule"))
    assert {each.verdict for each in found} == {"same", "skipped"}, "\n".join(table(found))
    assert max(each.difference or 0.0 for each in found) == 0.0, "\n".join(table(found))
    assert not [note for note in notes if "tool" in note]


def test_a_conversation_is_replayed_with_its_tools(
    tools: Tools, tmp_path: Path, calling: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(
        tools(
            "agent.isolate=False", f"trainer.rollout_data_dir={tmp_path / 'samples'}", "trainer.total_training_steps=1"
        )
    )
    assert devkit(["agent", "replay", str(tmp_path / "samples/1.jsonl"), "--row", "3", "--trust"]) == 0
    assert "same turn 3" in capsys.readouterr().out
    path = tmp_path / "my_tools.py"
    path.write_text(path.read_text().replace("return 0.5", "return 0.25"))
    assert devkit(["agent", "replay", str(tmp_path / "samples/1.jsonl"), "--row", "3", "--trust"]) == 1
    assert "DIFF turn 1: reward" in capsys.readouterr().out


def test_what_a_model_says_is_read_in_another_process(tools: Tools, tmp_path: Path) -> None:
    """A model that calls nothing has one turn; the tools are asked each time, and nobody is dropped."""
    lines = ran(tools(f"trainer.rollout_data_dir={tmp_path / 'samples'}"))
    assert [line["agent/turns/max"] for line in lines] == [1, 1]
    assert [line["agent/dropped"] for line in lines] == [0, 0]
    assert [line["agent/ended/terminated"] for line in lines] == [1, 1]


def test_a_tool_that_pictures_ends_the_run(tools: Tools, calling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.env import tools as environment

    monkeypatch.setattr(environment, "calls_in", lambda text: ([Call("odd", {"how": "picture"})], 0))
    with pytest.raises(EpisodeError, match=r"8 wrong\); the first: row \d of .*rows.parquet, turn 1: the tool odd"):
        ran(tools("agent.isolate=False", rows=rows_with(tool_selection=["odd"])))


# -- prompts


def prompts(command: list[str]) -> tuple[list[str], tuple[str, ...]]:
    data = read_data(config.load(command).config)
    batch = next(iter(data.train))
    texts = [data.decode(ids[mask.bool()].tolist()) for ids, mask in zip(batch.ids_BP, batch.mask_BP, strict=True)]
    return texts, data.notes


def rows_with(**extra: Any) -> list[dict[str, Any]]:
    return [{**row, "extra_info": {"index": 1, **extra}} for row in ROWS]


def test_a_prompt_shows_the_rows_own_tools(tools: Tools) -> None:
    texts, notes = prompts(tools(rows=rows_with(tool_selection=["twice"])))
    assert all('"twice"' in text and '"add"' not in text for text in texts) and notes == ()
    # a column says who plays: without tools, it is the prompt of any other run
    texts, notes = prompts(tools(rows=[{**row, "agent_name": "single_turn_agent"} for row in ROWS]))
    assert all(text.startswith("<|im_start|>user\nHow much") for text in texts)
    assert notes == ("no row is played with tools: each has agent_name=single_turn_agent, or it is the default",)
    texts, _ = prompts(tools(f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent"))
    assert all("<tools>" not in text for text in texts)


def test_rows_that_lack_something_are_told(tools: Tools) -> None:
    _, notes = prompts(tools(rows=rows_with(need_tools_kwargs=True, tool_selection=["twice"])))
    assert notes[0] == "16 rows have need_tools_kwargs and no tools_kwargs"
    with pytest.raises(DataError, match=r"row 0 of .* asks for agent_name=react_agent"):
        prompts(tools(rows=[{**row, "agent_name": "react_agent"} for row in ROWS]))
    with pytest.raises(DataError, match="its tool_selection has search"):
        prompts(tools(rows=rows_with(tool_selection=["search"])))


def test_a_template_that_shows_nothing_or_refuses(tools: Tools, model: str, tmp_path: Path) -> None:
    def with_template(text: str | None) -> list[str]:
        folder = tmp_path / "other"
        shutil.copytree(model, folder, dirs_exist_ok=True)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": text}))
        return tools(f"actor_rollout_ref.model.path={folder}")

    _, notes = prompts(with_template(TEMPLATE.replace("{% if tools %}", "{% if false %}")))
    assert notes == ("the model's chat template shows no tools: no prompt says that there are any",)
    refuses = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ messages }}"
    with pytest.raises(ModelError, match="refuses a conversation: no tools") as caught:
        prompts(with_template(refuses))
    assert "Qwen" in caught.value.hint
    with pytest.raises(ModelError, match="no chat template"):
        prompts(with_template(None))


# -- rewards


def test_what_a_tool_said_is_no_answer() -> None:
    said = {"turns": [{"action": "Let me see.", "observation": "#### 72"}, {"action": "#### 71", "observation": ""}]}
    whole = "Let me see.\n#### 72\n#### 71"
    scored = [
        score_by_data_source(data_source="openai/gsm8k", solution_str=whole, ground_truth=truth, extra_info=said)
        for truth in ("71", "72")
    ]
    assert scored == [1.0, 0.0]
    only = {"turns": [{"action": "Let me see.", "observation": "#### 72"}]}
    assert score_by_data_source(data_source="openai/gsm8k", solution_str=whole, ground_truth="72", extra_info=only) == 0


def test_a_reward_function_has_verls_names(tools: Tools, tmp_path: Path, calling: None) -> None:
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert '<tool_response>' in solution_str\n"
        "    return {'score': 1.0, 'all_turns': extra_info['num_turns'], 'tools': sum(extra_info['tool_rewards'])}\n"
    )
    lines = ran(
        tools(
            *("agent.isolate=False", f"custom_reward_function.path={tmp_path / 'reward.py'}"),
            *("trainer.total_training_steps=1", f"trainer.rollout_data_dir={tmp_path / 'samples'}"),
        )
    )
    assert lines[0]["critic/score/mean"] == 1
    sample = json.loads((tmp_path / "samples/1.jsonl").read_text().splitlines()[0])
    assert sample["tools"] == 1.0 and sample["all_turns"] == 6  # three of the model, two answers, and the prompt


# -- keys


def test_verls_keys_ask_for_tools(tmp_path: Path) -> None:
    asked = write(tmp_path)
    resolved = config.load(asked)
    assert resolved.config.agent.env == "tools" and resolved.dialect == "verl-head"
    assert resolved.origins["agent.env"] == f"follows {MULTI_TURN}.enable"
    for other in (["agent.env=tools"], [f"{ROLLOUT}.agent.default_agent_loop=tool_agent"]):
        same = config.load([*other, *asked[1:]]).config
        assert same.agent.env == "tools" and same.actor_rollout_ref.rollout.multi_turn.enable is True
    off = config.load(asked[1:])
    assert off.config.agent.env is None
    found = config.check_command(asked[1:])
    assert f"{MULTI_TURN}.tool_config_path has no effect: {MULTI_TURN}.enable is False" in str(found.notes)
    for engine in ("sglang", "vllm"):
        resolved = config.load([*asked, f"{ROLLOUT}.name={engine}"])
        assert resolved.config.actor_rollout_ref.rollout.name == engine


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{MULTI_TURN}.enable=True"], "neither .*tool_config_path nor .*function_tool_path is given"),
        ([f"{MULTI_TURN}.enable=True", "agent.env=frozen_lake"], "plays with tools, and agent.env=frozen_lake with"),
        ([f"{MULTI_TURN}.enable=True", f"{MULTI_TURN}.tool_config_path=none.yaml"], "none.yaml is not a file"),
        ([f"{MULTI_TURN}.enable=True", f"{MULTI_TURN}.function_tool_path=bad.py"], "bad.py"),
        (
            [f"{MULTI_TURN}.enable=True", f"{MULTI_TURN}.tool_config_path=bad.yaml"],
            "tool 1 of bad.yaml has no class_na",
        ),
        (["agent.env=tools", f"{MULTI_TURN}.function_tool_path=good.py", "agent.speech=plain"], "agent.speech=plain"),
        ([f"{MULTI_TURN}.format=gpt-oss"], "is not one of its choices"),
        ([f"{ROLLOUT}.agent.default_agent_loop=react_agent"], "is not one of its choices"),
    ],
)
def test_keys_that_cannot_be_honoured(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("def (")
    (tmp_path / "good.py").write_text("x = 1")
    (tmp_path / "bad.yaml").write_text("tools: [{}]")
    found = config.check_command(words)
    with pytest.raises(ConfigErrors, match=said):
        raise ConfigErrors(found.problems)


@pytest.mark.parametrize(
    ("word", "side"), [("left", "left"), ("right", "right"), ("middle", "middle")], ids=["left", "right", "middle"]
)
def test_the_side_of_an_older_release_is_the_other(word: str, side: str) -> None:
    key = f"{MULTI_TURN}.tool_response_truncate_side"
    other = {"left": "right", "right": "left", "middle": "middle"}

    def meant(dialect: str | None) -> tuple[str, bool]:
        resolved = config.load([f"{key}={word}"], dialect)
        told = any(note.key == key and "as in" in note.message for note in resolved.notes)
        return resolved.config.actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side, told

    assert meant(None) == meant("verl-head") == (side, False)
    assert meant("verl-0.7") == (other[side], side != "middle")
