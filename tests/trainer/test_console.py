"""What a run says on its console: a headline a step, all metrics where nobody else has them, what takes long."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.trainer.conftest import Words
from trainer import forecast
from trainer.config import load
from trainer.config.chosen import CPU, Device, choose
from trainer.config.schema import Config
from trainer.tracking import HEADLINE, METRICS_FILE, console_log, make_tracker

A, CRITIC = "actor_rollout_ref.actor", "critic.model"
METRICS = dict.fromkeys(HEADLINE, 0.25) | {"actor/lr": 1e-6, "critic/score/max": 1.0, "timing_s/gen": 0.1}

Of = Callable[..., Config]


@pytest.fixture
def of(words: Words, tmp_path: Path) -> Of:
    return lambda *changes: load(words(f"trainer.default_local_dir={tmp_path}", *changes)).config


def logged(config: Config, capsys: pytest.CaptureFixture[str], more: dict[str, float] | None = None) -> str:
    with closing(make_tracker(config, 3)) as tracker:
        tracker.log(2, METRICS | (more or {}))
    return capsys.readouterr().err


def test_a_step_is_a_headline_under_verls_names(of: Of, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And the file has everything."""
    line = logged(of(), capsys, {"val-core/nq/reward/mean@1": 0.5, "actor/skipped_steps": 0.0})
    assert line.startswith("step:2 - critic/score/mean:0.25 - ") and line.count("\n") == 1 and len(line) < 400
    assert "timing_s/step:0.25" in line and "val-core/nq/reward/mean@1:0.5" in line
    assert not [name for name in ("actor/lr", "critic/score/max", "timing_s/gen") if name in line]
    assert METRICS.items() <= json.loads((tmp_path / METRICS_FILE).read_text()).items()


@pytest.mark.parametrize("changes", [("trainer.console_metrics=all",), ("trainer.logger=[console]",)])
def test_the_whole_line_if_asked_for_or_if_nobody_else_has_it(
    of: Of, capsys: pytest.CaptureFixture[str], changes: tuple[str, ...]
) -> None:
    line = logged(of(*changes), capsys)
    assert line.count("\n") == 1 and not [name for name in METRICS if f" - {name}:" not in line]


def test_a_headline_though_nobody_else_has_it(of: Of, capsys: pytest.CaptureFixture[str]) -> None:
    assert "actor/lr" not in logged(of("trainer.logger=[console]", "trainer.console_metrics=headline"), capsys)


@pytest.mark.parametrize(("wanted", "there"), [("", False), ("headline", False), ("all", True)])
def test_on_a_terminal_the_other_metrics_are_there_if_asked_for(of: Of, wanted: str, there: bool) -> None:
    changes = ("trainer.logger=[console]", *([f"trainer.console_metrics={wanted}"] if wanted else []))
    console = Console(file=StringIO(), force_terminal=True, width=200)
    with closing(console_log(of(*changes).trainer, console, 3)) as log:
        log.log(2, METRICS)
    assert isinstance(console.file, StringIO)
    line = next(line for line in console.file.getvalue().splitlines() if "step 2: " in line)
    assert "score 0.25" in line and ("actor/lr 1e-06" in line) is there


# ------------------------------------------------------------------------------------------------- what takes long


def test_what_takes_long_is_told_before(of: Of) -> None:
    assert forecast.of_start(of()) is None and forecast.of_first_step(of(), ()) is None
    said = forecast.of_start(of("actor_rollout_ref.rollout.name=sglang"))
    assert said is not None and "SGLang" in said and "half a minute" in said
    config = of("algorithm.use_kl_in_reward=True")
    on_cpu = choose(config, {}, CPU)
    assert list(forecast.of_training(on_cpu)) == [] and forecast.of_first_step(config, on_cpu) is None
    assert forecast.at_first_step(config, on_cpu) == "first step"
    on_gpu = choose(config, {}, Device(cuda=True, compiles=True))
    said = forecast.of_first_step(config, on_gpu)
    assert said is not None and "(actor, reference, critic)" in said and "a minute longer" in said
    assert forecast.at_first_step(config, on_gpu) == "first step, compiling layers"
    adapters = of(
        "algorithm.use_kl_in_reward=True",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
    )
    said = forecast.of_first_step(adapters, choose(adapters, {}, Device(cuda=True, compiles=True)))
    assert said is not None and "(actor, reference, critic)" in said  # the reference is the actor
    alone = choose(of(f"{CRITIC}.fsdp_config.use_torch_compile=False"), {}, Device(cuda=True, compiles=True))
    said = forecast.of_first_step(of(), alone)
    assert said is not None and "(actor)" in said
    assert [line.split(",")[0] for line in forecast.of_training(alone)] == [
        "actor: layers compiled",
        "critic: layers not compiled",
    ]
