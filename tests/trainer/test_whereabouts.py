"""Where a run says that its results are: each place once, and afterwards only what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.config import load
from trainer.config.schema import Config
from trainer.whereabouts import ahead, there


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config_of(*changes: str) -> Config:
    return load(["trainer.default_local_dir=out", *changes]).config


def test_a_plain_run(tmp_path: Path) -> None:
    config = config_of("trainer.save_freq=2")
    assert [*ahead(config)] == [f"results go to {tmp_path}/out/metrics.jsonl", f"checkpoints go to {tmp_path}/out"]
    assert [*there(config)] == []  # it has written nothing
    (tmp_path / "out/global_step_4").mkdir(parents=True)
    (tmp_path / "out/latest_checkpointed_iteration.txt").write_text("4")
    (tmp_path / "out/metrics.jsonl").write_text("{}")
    assert [*there(config)] == [
        f"results in {tmp_path}/out/metrics.jsonl",
        f"checkpoints in {tmp_path}/out, the newest is global_step_4",
    ]
    assert len([*there(config_of())]) == 1, "the checkpoints are an earlier run's"


def test_the_folder_of_a_ray_job_is_said_to_be_rays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Search-R1's command, whose checkpoints go to `verl_checkpoints/`."""
    folder = tmp_path / "session_1/runtime_resources/working_dir_files/_ray_pkg_1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert [*ahead(config_of("trainer.save_freq=2"))][-1].startswith("Ray made that folder for this job, and removes")
    assert [*ahead(config_of("trainer.logger=console"))] == []


def test_a_run_that_writes_nothing() -> None:
    assert [*ahead(config_of("trainer.logger=console"))] == []


def test_each_place_is_told_once_and_those_that_are_empty_not(tmp_path: Path) -> None:
    config = config_of(
        "trainer.logger=[file,tensorboard]",
        *("trainer.rollout_data_dir=samples", "trainer.validation_data_dir=samples", "trainer.capsule_dir=capsules"),
        *("global_profiler.tool=torch", "global_profiler.steps=[1]", "global_profiler.save_path=profile"),
    )
    names = ("out/metrics.jsonl", "out/tensorboard", "samples", "capsules", "profile")
    places = ", ".join(f"{tmp_path}/{name}" for name in names)
    assert [*ahead(config)] == [f"results go to {places}"]
    for name in names[1:]:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "samples/1.jsonl").touch()
    assert [*there(config)] == [f"results in {tmp_path}/samples"]
    val_only = config_of("trainer.val_only=True", "trainer.rollout_data_dir=samples", "trainer.save_freq=1")
    assert [*ahead(val_only)] == [f"results go to {tmp_path}/out/metrics.jsonl"]
