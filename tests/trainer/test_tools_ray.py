"""Tools as a user starts them: on a Ray of their own, two ranks, files that stand where the command is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.conftest import Words
from tests.trainer.runs import DEADLINE_S, assert_one_error, complete, metrics_of
from tests.trainer.test_tools_run import ROWS
from tests.trainer.tool_files import CLASSES, MULTI_TURN, model_with_tools, write

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(3 * DEADLINE_S)]


def words_of(words: Words, folder: Path, model: str, *changes: str) -> list[str]:
    write(folder)
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    return words(
        *("data.train_files=rows.parquet", "data.val_files=rows.parquet", f"actor_rollout_ref.model.path={model}"),
        *(f"{MULTI_TURN}.enable=True", f"{MULTI_TURN}.tool_config_path=tools.yaml"),
        *("actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.mode=async", "data.return_raw_chat=True"),
        *("data.max_prompt_length=400", "data.max_response_length=24", "data.train_batch_size=4"),
        *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
        *("trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", "trainer.test_freq=2", *changes),
    )


def test_verls_command_trains_on_two_ranks(words: Words, tiny_model: str, tmp_path: Path) -> None:
    model = model_with_tools(tiny_model, tmp_path / "model")
    code, run = complete(words_of(words, tmp_path, model, "trainer.rollout_data_dir=samples"), tmp_path)
    assert code == 0, run.text
    metrics = metrics_of(tmp_path / "run")
    assert [metrics[step]["agent/dropped"] for step in (1, 2)] == [0, 0]
    assert all("agent/tools/calls/mean" in metrics[step] for step in (1, 2))
    samples = [json.loads(line) for line in (tmp_path / "samples/2.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all('"name": "add"' in sample["prompt"] for sample in samples)
    assert samples[0]["environment"]["files"]["tool_config_path"] == str(tmp_path / "tools.yaml")


def test_tools_that_do_not_load_end_it_before_ray_starts(words: Words, tiny_model: str, tmp_path: Path) -> None:
    model = model_with_tools(tiny_model, tmp_path / "model")
    command = words_of(words, tmp_path, model)
    (tmp_path / "my_tools.py").write_text(CLASSES.replace("self._instances = {}", "raise OSError('no key')"))
    code, run = complete(command, tmp_path)
    assert code == 2
    assert_one_error(run, "the tools cannot be made: OSError: no key", "my_tools.py:")
    assert "loading models" not in run.text
