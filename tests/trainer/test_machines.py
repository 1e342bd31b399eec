"""ROLL's script on every machine: who runs, who lends its part of Ray, and for how long."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.config.test_roll import DEMO
from trainer import machines, main_agentic
from trainer.errors import ClusterError

SECOND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """This machine is the second of two, and no Ray of another program is seen."""
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(machines, "LOOK_S", 0.01)
    return monkeypatch


@pytest.mark.parametrize(
    "changes", [{"WORLD_SIZE": "1"}, {"RANK": "2"}, {"RANK": ""}, {"WORLD_SIZE": "two"}, {"LOCAL_RANK": "0"}]
)
def test_variables_that_do_not_count_machines(changes: dict[str, str]) -> None:
    assert machines.rank_among(SECOND | changes) is None


def test_the_run_is_that_of_the_first(second: pytest.MonkeyPatch) -> None:
    second.setenv("RANK", "0")
    assert not machines.lends_only(pytest.fail)


def test_another_waits_until_the_ray_of_all_has_ended(second: pytest.MonkeyPatch) -> None:
    head = socket.create_server(("127.0.0.1", 0))
    second.setenv("RAY_ADDRESS", address := f"127.0.0.1:{head.getsockname()[1]}")
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        head.close()

    assert machines.lends_only(note)
    [text] = said
    assert text.startswith("RANK=1: the run is that of RANK=0") and text.endswith(f"until {address} ends")


def test_without_a_ray_there_is_nothing_to_lend(second: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="RANK=1 of 2 machines, and no Ray runs on this one") as caught:
        machines.lends_only(pytest.fail)
    assert "devkit debug-cluster --from-env" in caught.value.hint


def test_a_file_can_be_checked_on_every_machine(second: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--config_path", DEMO, "--config_name", "frozen_lake"]
    assert main_agentic.main([*where, "--print-config"]) == 0
    assert main_agentic.main(where) == 3
    assert "error: RANK=1 of 2 machines" in capsys.readouterr().err
