"""The token of a Ray that a run starts for itself: other commands find it, and other users do not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainer.address import prepare_joining
from trainer.ray_token import ask_for_token, token_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_first_token_is_made_where_ray_looks_for_the_owner_alone(home: Path) -> None:
    ask_for_token()
    assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN" not in os.environ
    assert token_file() == home / ".ray" / "auth_token" and len(token_file().read_text()) == 64
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file().parent.stat().st_mode) == 0o700
    assert [path.name for path in token_file().parent.iterdir()] == ["auth_token"]


def test_a_token_that_is_there_stays(home: Path) -> None:
    token_file().parent.mkdir()
    token_file().write_text("mine\n")
    ask_for_token()
    assert token_file().read_text() == "mine\n"


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_TOKEN", "given"), ("RAY_AUTH_TOKEN_PATH", "/secrets/ray")])
def test_a_variable_that_ray_follows_is_left_to_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv(name, value)
    ask_for_token()
    assert os.environ["RAY_AUTH_MODE"] == "token" and not list(home.iterdir())


def test_who_wants_none_gets_none(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ask_for_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and not list(home.iterdir())


@pytest.mark.parametrize("link", [False, True])
def test_an_empty_file_or_a_link_to_nowhere_is_replaced(home: Path, link: bool) -> None:
    token_file().parent.mkdir()
    if link:
        token_file().symlink_to(home / "nowhere")
    else:
        token_file().touch()
    ask_for_token()
    assert len(token_file().read_text()) == 64 and not token_file().is_symlink()


def test_without_a_home_that_can_be_written_only_this_run_knows_it(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "file").touch()
    monkeypatch.setenv("HOME", str(home / "file"))
    ask_for_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


JOINED = "10.0.0.5:6379"


@pytest.mark.parametrize(
    ("token", "named", "mode", "shown"),
    [
        ("mine", None, None, "token"),
        ("", None, None, None),
        ("mine", JOINED, None, None),
        ("mine", "10.0.0.6:6379", None, "token"),
        ("mine", None, "disabled", "disabled"),
    ],
    ids=["a token", "no token", "RAY_ADDRESS", "another RAY_ADDRESS", "a mode"],
)
def test_a_cluster_of_this_machine_is_shown_the_token_as_by_ray_itself(
    token: str, named: str | None, mode: str | None, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `ray.init()` without an address; the run gives one, which it has found in the same place."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in (("RAY_ADDRESS", named), ("RAY_AUTH_MODE", mode)):
        if value is not None:
            monkeypatch.setenv(name, value)
    token_file().parent.mkdir()
    token_file().write_text(token)
    prepare_joining(JOINED)
    assert os.environ.get("RAY_AUTH_MODE") == shown
