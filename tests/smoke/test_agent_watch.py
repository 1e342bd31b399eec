"""What `devkit smoke --agent` looks at, on a run of its own command in this process: nothing is amiss, mistakes are."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devkit.smoke import conversing
from devkit.smoke.agent_watch import AgentWatch
from devkit.smoke.options import LAKE
from devkit.smoke.results import Results
from devkit.smoke.view import make_view
from trainer import config
from trainer.agent import laying, speech
from trainer.data.reading import read_data
from trainer.local import LocalPool
from trainer.run import train
from trainer.tokenizer import load_tokenizer
from trainer.tracking import Tracker

LOOKED_AT = {"turns", "glue", "turn-rewards", "rollout-logprobs", "first-mini-batch", "gradients", "mask-proof"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lake")
    conversing.write(LAKE, made, 0)
    return made


@pytest.fixture
def watched(folder: Path, tmp_path: Path) -> Any:
    """`watched()`: what a step of the run shows, by check."""

    def run() -> dict[str, tuple[str, str]]:
        own = ("trainer.n_gpus_per_node=1", "trainer.total_training_steps=1", "trainer.save_freq=-1")
        settings = config.load(
            [*conversing.words_of(LAKE, folder, own), f"trainer.default_local_dir={tmp_path}"]
        ).config
        results = Results()
        with make_view(json=True, log=tmp_path / "log") as view, closing(LocalPool()) as pool:
            watch = AgentWatch(results, view, settings, load_tokenizer(settings.actor_rollout_ref.model))
            train(settings, pool, read_data(settings), Tracker([]), watch)
        return {each.name: (each.status, each.detail) for each in results.all}

    return run


def test_nothing_is_amiss(watched: Any) -> None:
    found = watched()
    assert {name for name, (status, _) in found.items() if status == "pass"} >= LOOKED_AT, found
    assert not [name for name, (status, _) in found.items() if status == "fail"], found
    assert "0 would be other tokens" in found["glue"][1]


def test_what_is_read_and_trained_shows_in_the_proof(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = laying.lay

    def wrong(said: Any) -> laying.Laid:
        row = right(said)
        return laying.Laid(row.ids, [1] * len(row.ids), row.logp, row.turns)

    monkeypatch.setattr("trainer.agent.loop.lay", wrong)
    found = watched()
    assert found["mask-proof"][0] == found["turns"][0] == "fail", found
    assert "with other observations, of which nobody read any" in found["mask-proof"][1]


def test_glue_that_is_dropped_shows(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = speech.Speech.reply
    monkeypatch.setattr(speech.Speech, "reply", lambda self, *said: right(self, *said)[1:])
    found = watched()
    assert found["glue"][0] == "fail" and found["turns"][0] == "pass", found
