"""Environments on an OpenEnv server: one of openenv-core's own classes where that is installed, and a stand-in."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devkit import cli
from tests.trainer.conftest import Words
from tests.trainer.test_agent_run import ran
from trainer.agent import contract
from trainer.agent.contract import Away
from trainer.agent.homes import Broken, Houses, answered
from trainer.agent.others import Unknown, addresses
from trainer.agent.source import NoEnvironment, Source
from trainer.config.agent_schema import AgentConfig
from trainer.config.agents import agent_notes, agent_problems, constructor
from trainer.config.schema import Config, TrainerConfig
from trainer.env.openenv import Form, OpenEnv, form_of

ECHO = Path(__file__).parent / "openenv_echo.py"
START_S = 60
Serve = Callable[..., str]


@pytest.fixture(params=["ours", "openenv"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """`serve(sessions=8)`: the URL of a server that ends with the test."""
    if request.param == "openenv" and not all(map(importlib.util.find_spec, ("openenv", "uvicorn"))):
        pytest.skip("openenv-core is not installed: its stand-in is asked")
    begun: list[subprocess.Popen[str]] = []

    def start(sessions: int = 8) -> str:
        command = [sys.executable, str(ECHO), request.param, str(sessions)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        return f"openenv+ws://127.0.0.1:{int(process.stdout.readline())}"

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@contextmanager
def playing(url: str, **kwargs: Any) -> Iterator[OpenEnv]:
    with closing(Source(url, None, kwargs).load()(**kwargs)) as found:
        yield found


def test_it_is_played_by_its_seeds(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for action in ("one", "three", "x" * 30) for word in ("--action", action)]
    code = cli.main(["agent", "check", serve(sessions=1), "--json", "--episodes", "4", *words])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert code == 0, found
    assert found["determinism"]["status"] == "pass"
    assert "rewards from 0 to 0.5" in found["ends"]["detail"]


def test_what_it_says_becomes_an_answer(serve: Serve) -> None:
    with playing(serve()) as echo:
        first = contract.reset(echo, 7)
        assert first.text == f"Say {random.Random(7).randint(1, 9999)}"
        steps = [contract.step(echo, word) for word in ("a", "bc", "def")]
    assert [each.text for each in steps] == ["a", "bc", "def"]
    assert [each.reward for each in steps] == [0.1, 0.2, 0.3]
    assert [each.terminated for each in steps] == [False, False, True]


def test_several_fields_are_read(serve: Serve) -> None:
    with playing(serve(), observation=["echoed_message", "message_length"]) as echo:
        contract.reset(echo, 7)
        assert contract.step(echo, "abc").text == "abc\n3"


def test_an_action_that_it_refuses_is_answered_with_why_and_counted(serve: Serve) -> None:
    with playing(serve(), refused=-0.5) as echo:
        contract.reset(echo, 7)
        found = contract.step(echo, "x" * 21)
        assert found.text == "Invalid action: message: String should have at most 20 characters"
        assert (found.reward, found.terminated, found.numbers) == (-0.5, False, {"openenv/refused": 1})
        assert contract.step(echo, "a").text == "a"


def test_its_environments_error_is_told_with_its_url(serve: Serve) -> None:
    url = serve()
    with playing(url) as echo:
        contract.reset(echo, 7)
        with pytest.raises(Away) as caught:
            contract.step(echo, "raise")
    where = url.removeprefix("openenv+")
    assert (caught.value.kind, str(caught.value)) == (
        "raised",
        f"{where}: its environment raised at step: no such word",
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [("hang", " has not answered step in 0.5 s"), ("leave", " closed its connection")],
)
def test_a_server_that_is_slow_or_dies_fails_one_trajectory_with_its_url(serve: Serve, word: str, said: str) -> None:
    url = serve()
    with closing(Houses(Source(url, None, {"timeout": 0.5}), isolate=True)) as houses:
        home = houses.home()
        home.ask("reset", 3)
        assert answered([home], START_S)
        home.take()
        home.ask("step", word)
        assert answered([home], START_S)
        with pytest.raises(Broken) as caught:
            home.take()
        home.end(kill=True)
    assert caught.value.kind == "server"
    assert str(caught.value).startswith(url.removeprefix("openenv+") + said), caught.value


def test_a_session_is_waited_for_while_all_are_taken(serve: Serve) -> None:
    url = serve(sessions=1)
    with playing(url, timeout=0.3) as late:
        with playing(url) as first:
            contract.reset(first, 3)
            with pytest.raises(Away, match=r"has no session to give: .*1.* in 0.3 s") as caught:
                contract.reset(late, 3)
        assert caught.value.kind == "server"
    with playing(url, timeout=START_S) as next_one:
        assert contract.reset(next_one, 3).text.startswith("Say ")


def test_no_server_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "check", "openenv+ws://127.0.0.1:9"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: there is no OpenEnv server at ws://127.0.0.1:9: ConnectionRefusedError")
    assert hint == "hint: start it, or see its log; each node asks http://127.0.0.1:9/schema"


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"action": "words"}, "the action of ws://.* has no field words"),
        ({"observation": ["echoed_message", "board"]}, "the observation of ws://.* has no field board"),
        ({"seed": 3}, "agent.env_kwargs has seed, and agent.env=.* takes action, observation, fields"),
    ],
)
def test_settings_that_do_not_fit_its_schema_end_before_the_first_turn(
    kwargs: dict[str, Any], said: str, serve: Serve
) -> None:
    with pytest.raises(NoEnvironment, match=said):
        Source(serve(), None, kwargs).load()


def test_a_class_of_ones_own_says_what_an_action_is(serve: Serve, tmp_path: Path) -> None:
    text = (
        "from trainer.env.openenv import OpenEnv\n\n\n"
        "class Loud(OpenEnv):\n"
        "    def action_of(self, text): return {'message': text.upper()}\n"
        "    def text_of(self, observation): return f\"heard {observation['echoed_message']}\"\n"
    )
    kwargs = {"url": serve().removeprefix("openenv+")}
    with closing(Source(f"{tmp_path}/loud.py:Loud", text, kwargs).load()(**kwargs)) as loud:
        contract.reset(loud, 1)
        assert contract.step(loud, "hi").text == "heard HI"


def test_a_run_has_fewer_sessions_than_conversations(serve: Serve, words: Words, tmp_path: Path) -> None:
    (line,) = ran(
        words(
            *(f"agent.env={serve(sessions=2)}", "agent.val_episodes=0", "agent.max_turns=2", "agent.max_turn_tokens=6"),
            *("data.max_response_length=60", f"trainer.rollout_data_dir={tmp_path / 'samples'}"),
            f"trainer.default_local_dir={tmp_path / 'run'}",
            without=("data.train_files", "data.val_files"),
        )
    )
    assert (line["agent/dropped"], line["agent/turns/max"]) == (0, 2)
    samples = [json.loads(text) for text in (tmp_path / "samples/1.jsonl").read_text().splitlines()]
    assert len(samples) == 8
    for sample in samples:
        assert f"Say {random.Random(sample['seed']).randint(1, 9999)}<" in sample["prompt"]
        said = [turn["action"] for turn in sample["turns"] if len(turn["action"]) <= 20]
        assert sample["score"] == pytest.approx(sum(map(len, said)) / 10)


# -- without a server

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}


def _schema(action: dict[str, Any], observation: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {"action": {"properties": action, "required": required or []}, "observation": {"properties": observation}}


def test_a_schema_of_several_texts_needs_to_be_told() -> None:
    schema = _schema({"code": _TEXT, "lang": _TEXT}, {"out": _TEXT})
    with pytest.raises(Unknown, match="does not say which field the text goes into, of code, lang") as caught:
        form_of(schema, None, None, None, "ws://host")
    assert caught.value.hint == "give agent.env_kwargs={action:FIELD}"
    assert form_of(schema, "code", None, None, "ws://host") == Form("code", ("out",))
    assert form_of(schema, None, None, {"lang": "py"}, "ws://host") == Form("code", ("out",), {"lang": "py"})


def test_a_field_that_an_action_needs_is_asked_for() -> None:
    schema = _schema({"move": _TEXT, "game": _NUMBER}, {"out": {"anyOf": [_TEXT, {"type": "null"}]}}, ["move", "game"])
    with pytest.raises(Unknown, match="needs game beside move") as caught:
        form_of(schema, None, None, None, "ws://host")
    assert caught.value.hint == "give agent.env_kwargs={fields:{game:VALUE}}"


def test_a_server_without_a_schema_is_told_both() -> None:
    with pytest.raises(Unknown, match="its server has no schema"):
        form_of({}, "message", None, None, "ws://host")
    assert form_of({}, "message", "echo", None, "ws://host") == Form("message", ("echo",))


@pytest.mark.parametrize("url", ["openenv+ws://", "openenv+tcp://host:1", "openenv+ws://host:99999", "openenv+host:1"])
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValueError, match="not ws://HOST:PORT"):
        addresses(url)
    (found,) = agent_problems(Config(agent=AgentConfig(env=url)))
    assert (found.key, found.hint) == ("agent.env", "such as agent.env=openenv+ws://127.0.0.1:8000")


def test_its_answers_have_a_little_less_than_a_turns_time() -> None:
    agent = AgentConfig(env="openenv+ws://host:1", turn_timeout=20.0)
    assert constructor(Config(agent=agent)) == {"timeout": 19.0}
    in_rank = AgentConfig(env="openenv+ws://host:1", isolate=False, env_kwargs=["action:move"])
    assert constructor(Config(agent=in_rank)) == {"timeout": None, "action": "move"}


@pytest.mark.parametrize(("host", "count"), [("127.0.0.1", 1), ("10.0.0.7", 0)])
def test_a_loopback_address_is_another_server_on_each_node(host: str, count: int) -> None:
    config = Config(agent=AgentConfig(env=f"openenv+ws://{host}:8000"), trainer=TrainerConfig(nnodes=2))
    assert sum("each node's own" in note.message for note in agent_notes(config)) == count
