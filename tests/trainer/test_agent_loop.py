"""The loop: who is ready goes on, what fails is told by its kind and place, and a draw depends on its turn alone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pace import stretched
from tests.trainer.conversations import END, SAMPLING, Characters, Scripted, dice, prompts_of
from trainer.agent import contract, loop
from trainer.agent.homes import Apart, Home, Houses, Inline
from trainer.agent.loop import Conversations, Limits
from trainer.agent.messages import Messages, digest
from trainer.agent.player import limits_of
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.config.agent_schema import AgentConfig
from trainer.config.schema import Config
from trainer.env.frozen_lake import FrozenLake
from trainer.env.sokoban import Sokoban
from trainer.errors import ConfigError
from trainer.records import Prompts, Rollout
from trainer.rollout.sampling import uniform_streams
from trainer.rows import repeat, take
from trainer.user_file import text_of

LIMITS = Limits(
    turns=4, turn_tokens=8, prompt_tokens=40, response_tokens=60, turn_s=20.0, trajectory_s=60.0, at_once=64
)


class Echo:
    """Says what it was told, and ends after as many turns as its seed says: seed % 3 + 1."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        self.left = seed % 3 + 1
        return f"#{seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"<{action}>", 0.5, self.left == 0, False, {"success": self.left == 0, "metrics": {"left": self.left}}

    def close(self) -> None:
        self.closed = True


def played(
    prompts: Prompts,
    engine: Scripted,
    kind: Any = Echo,
    limits: Limits = LIMITS,
    home: Callable[[], Home] | None = None,
    messages: Messages | None = None,
) -> Rollout:
    at = home or (lambda: Inline(Source("frozen_lake"), kind))
    speech = Speech(Characters(), [END])
    return Conversations(
        prompts, SAMPLING, engine=engine, speech=speech, limits=limits, home=at, pad_id=0, messages=messages
    ).play()


def texts(rollout: Rollout) -> list[str]:
    """Each row as it is read, `[` and `]` around what is trained."""
    found, decode = [], Characters().decode
    for ids, mask, read in zip(rollout.response_BT, rollout.mask_BT, rollout.context_BT, strict=True):
        text, before = "", 0
        for token, trained in zip(ids[: int(read.sum())].tolist(), mask.tolist(), strict=False):
            text += "[" * (trained > before) + "]" * (trained < before) + decode([token])
            before = trained
        found.append(text + "]" * before)
    return found


def test_rows_are_conversations() -> None:
    engine = Scripted(lambda context, uid, sample, turn: f"{uid}.{turn}")
    rollout = played(prompts_of([[]] * 3, seeds=True), engine)
    # seeds 100, 101, 102: two turns, three turns, one turn
    assert texts(rollout) == ["[0.0|]<0.0>[0.1|]", "[1.0|]<1.0>[1.1|]<1.1>[1.2|]", "[2.0|]"]
    assert [
        Characters().decode(ids[m.bool()].tolist())
        for ids, m in zip(rollout.prompts.ids_BP, rollout.prompts.mask_BP, strict=True)
    ] == ["#100", "#101", "#102"]
    assert rollout.episodes is not None
    assert [(each.ended, len(each.turns), each.reward) for each in rollout.episodes] == [
        ("terminated", 2, 1.0),
        ("terminated", 3, 1.5),
        ("terminated", 1, 0.5),
    ]
    assert rollout.episodes[0].numbers == {"success": 1.0, "left": 0.0}
    # a call is of those that are ready, in their own order, each with all that it has read
    assert engine.calls == [[(0, 0, 0), (1, 0, 0), (2, 0, 0)], [(0, 0, 1), (1, 0, 1)], [(1, 0, 2)]]
    assert [Characters().decode(ids) for ids in engine.contexts[-1:]] == ["#101" + "1.0|<1.0>1.1|<1.1>"]


ROLLS = (  # the end of `agent_template` in its traj_envs.yaml
    "Turn {turn_idx}:\nObservation:\n{observation}\n"
    "2. You have {actions_left} actions left. \n3. Max response length: {max_response_length} words (tokens).\n"
)


def test_observations_are_shown_in_their_template() -> None:
    engine = Scripted(lambda context, uid, sample, turn: "<answer>Right</answer>")
    messages = Messages(ROLLS, "Play.", turns=10, turn_tokens=64)
    room = lambda: Inline(Source("sokoban", None, {"rows": "######/#P_XO#/######"}), Sokoban)  # noqa: E731
    limits = replace(LIMITS, prompt_tokens=900, response_tokens=900, turn_tokens=64)
    rollout = played(prompts_of([[]]), engine, limits=limits, home=room, messages=messages)
    shown = (
        "Turn {}:\nObservation:\n######\n{}\n######\n2. You have {} actions left. \n3. Max response length: 64 words"
    )
    first = Characters().decode(rollout.prompts.ids_BP[0].tolist())
    assert first.startswith("Play.\nYou are solving the Sokoban puzzle. ")
    assert first.endswith("\nUp, Down, Left, Right\n" + shown.format(1, "#P_XO#", 10) + " (tokens).\n")
    second = shown.format(2, "#_PXO#", 9) + " (tokens).\n"
    assert texts(rollout) == [f"[<answer>Right</answer>|]{second}[<answer>Right</answer>|]"]
    assert rollout.episodes is not None and rollout.episodes[0].turns[0].observation == "######\n#_PXO#\n######"


def test_turns_name_the_state_that_they_were_taken_in() -> None:
    """Equal where the same could be done: by what the environment says, else by what it shows."""
    engine = Scripted(lambda context, uid, sample, turn: "LRUD"[sample])
    lake = lambda: Inline(Source("frozen_lake", None, {"rows": "SFF/FFG", "terse": True}), FrozenLake)  # noqa: E731
    rollout = played(repeat(prompts_of([[]]), 4), engine, home=lake, limits=replace(LIMITS, turns=2))
    states = [[turn.state for turn in episode.turns] for episode in rollout.episodes or ()]
    assert len({first for first, _ in states}) == 1
    left, right, up, down = (second for _, second in states)
    assert left == up == states[0][0] and len({left, right, down}) == 3
    echo = played(prompts_of([[]] * 2), Scripted(lambda *_: "same"))
    assert [[turn.state for turn in each.turns] for each in echo.episodes or ()] == [
        [digest("#100"), digest("<same>")],
        [digest("#101"), digest("<same>"), digest("<same>")],
    ]
    # instructions before the first board are no part of it
    told = lambda: Inline(Source("frozen_lake", None, {"rows": "SFF/FFG"}), FrozenLake)  # noqa: E731
    engine = Scripted(lambda *_: "?")
    limits = replace(LIMITS, prompt_tokens=900, response_tokens=900)
    turns = (played(prompts_of([[]]), engine, home=told, limits=limits).episodes or ())[0].turns
    assert len({turn.state for turn in turns}) == 1 and len(turns) == 4


def test_ends_by_turns_length_and_environment() -> None:
    engine = Scripted(lambda context, uid, sample, turn: "abc")
    prompts = prompts_of([[]] * 2)  # of two and three turns
    ended = lambda limits: [each.ended for each in played(prompts, engine, limits=limits).episodes or ()]  # noqa: E731
    assert ended(replace(LIMITS, turns=2)) == ["terminated", "turns"]
    # "abc|" and "<abc>" are 4 and 5 tokens: a second turn has no room where only the observation has
    assert ended(replace(LIMITS, response_tokens=9)) == ["length", "length"]
    rollout = played(prompts, engine, limits=replace(LIMITS, response_tokens=10))
    assert texts(rollout) == ["[abc|]<abc>[a]", "[abc|]<abc>[a]"]  # one token of room, and it acts on it
    assert rollout.response_BT.shape[1] == 10
    # a turn of its own limit, without an end
    assert texts(played(prompts, engine, limits=replace(LIMITS, turn_tokens=2, turns=1))) == ["[ab]", "[ab]"]


FILE = """
import os, signal, time

class Odd:
    def __init__(self, how="", turn=1): self.how, self.turn, self.at = how, turn, 0
    def reset(self, *, seed):
        self.seed = seed
        return f"#{seed}", {}
    def step(self, action):
        self.at += 1
        if self.at == self.turn and self.seed == 101:
            if self.how == "raises": raise KeyError("lost")
            if self.how == "hangs": signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1000)
            if self.how == "dies": os.kill(os.getpid(), signal.SIGSEGV)
            if self.how == "leaves": os._exit(0)
            if self.how == "leaves a child":
                import subprocess; subprocess.Popen(["sleep", "1000"], close_fds=False); os._exit(0)
            if self.how == "exits": raise SystemExit(3)
            if self.how == "four": return "text", 1.0, True, {}
            if self.how == "bytes": return b"text", 1.0, True, False, {}
            if self.how == "surrogate": return "\\ud800", 1.0, True, False, {}
            if self.how == "nan": return "text", float("nan"), True, False, {}
            if self.how == "huge": return "x" * 5_000_000, 1.0, True, False, {}
            if self.how == "prints": print("no answer"); os.write(1, b"nor this")
            if self.how == "slow": time.sleep(1.5)
        return f"<{action}>", 0.5, self.at == 2, False, {}
    def close(self):
        if self.how == "never closes": time.sleep(1000)
"""


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[Callable[..., Houses]]:
    """`houses(how)`: environments of FILE in processes of their own."""
    made: list[Houses] = []

    def make(how: str = "", turn: int = 1, *, isolate: bool = True, text: str = FILE, name: str = "Odd") -> Houses:
        path = tmp_path / "odd.py"
        path.write_text(text)
        kwargs = {"how": how, "turn": turn} if name == "Odd" else {}
        made.append(Houses(Source(f"{path}:{name}", text, kwargs), isolate=isolate))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raises", "raised", r"lake, turn 2: step raised KeyError: 'lost' at .*odd.py:12 in step"),
        ("hangs", "hung", r"turn 2: step had not answered after agent.turn_timeout=0.5 s"),
        ("dies", "died", r"its process was ended by SIGSEGV"),
        ("leaves", "died", r"its process left by itself, with exit code 0"),
        ("leaves a child", "died", r"its process left by itself"),
        ("exits", "raised", r"raised SystemExit"),
        ("four", "wrong", r"step gave a tuple of 4 .* and not \(observation, reward, terminated"),
        ("bytes", "wrong", r"no text but a bytes"),
        ("surrogate", "wrong", r"lone surrogate"),
        ("nan", "wrong", r"the reward of step is not a finite fp32 number: nan"),
        ("huge", "wrong", r"5,000,000 characters"),
    ],
)
def test_one_that_fails_is_told_and_the_others_go_on(
    houses: Callable[..., Houses], how: str, kind: str, said: str
) -> None:
    engine = Scripted(lambda context, uid, sample, turn: "a")
    limits = replace(LIMITS, turn_s=0.5 if how == "hangs" else stretched(20.0))
    rollout = played(prompts_of([[]] * 3), engine, limits=limits, home=houses(how, 2).home)
    assert texts(rollout) == ["[a|]<a>[a|]", "", "[a|]<a>[a|]"]
    assert rollout.episodes is not None
    failure = rollout.episodes[1].failure
    assert failure is not None and failure.kind == kind, failure
    assert re.search(said, failure.message), failure.message
    assert failure.message.startswith("row 1 of lake, turn 2: ")
    assert [each.failure for each in (rollout.episodes[0], rollout.episodes[2])] == [None, None]
    assert rollout.mask_BT[1].sum() == 0 and rollout.context_BT[1].sum() == 0


@pytest.mark.parametrize("how", ["prints", "never closes"])
def test_what_prints_or_never_closes_is_none_that_fails(houses: Callable[..., Houses], how: str) -> None:
    began = time.monotonic()
    rollout = played(prompts_of([[]] * 2), Scripted(lambda *_: "a"), home=houses(how).home)
    assert texts(rollout) == ["[a|]<a>[a|]"] * 2 and time.monotonic() - began < stretched(4.0)


def test_a_slow_one_delays_nobody(houses: Callable[..., Houses]) -> None:
    """Row 1 is 1.5 s in its first step. The others' second turn was asked of the engine before it came back."""
    engine = Scripted(lambda context, uid, sample, turn: "a")
    rollout = played(prompts_of([[]] * 4), engine, home=houses("slow", 1).home)
    assert texts(rollout) == ["[a|]<a>[a|]"] * 4
    assert engine.calls == [[(i, 0, 0) for i in range(4)], [(0, 0, 1), (2, 0, 1), (3, 0, 1)], [(1, 0, 1)]]


def test_quick_ones_make_the_same_batches_every_time(houses: Callable[..., Houses]) -> None:
    """Though processes answer in any order: they are waited for."""
    made = []
    for _ in range(3):
        engine = Scripted(lambda context, uid, sample, turn: "a")
        played(prompts_of([[]] * 6), engine, home=houses().home)
        made.append(engine.calls)
    assert made[0] == made[1] == made[2] and [len(call) for call in made[0]] == [6, 6]


def test_in_the_ranks_process_nothing_is_apart(houses: Callable[..., Houses]) -> None:
    assert isinstance(houses(isolate=False).home(), Inline)
    apart = houses().home()
    assert isinstance(apart, Apart)
    apart.end()
    rollout = played(prompts_of([[]] * 3), Scripted(lambda *_: "a"), home=houses("raises", isolate=False).home)
    assert rollout.episodes is not None and rollout.episodes[1].failure is not None
    assert rollout.episodes[1].failure.kind == "raised"


def test_only_so_many_environments_at_once() -> None:
    """And the next one begins as soon as one ends, not when all have."""
    engine = Scripted(lambda context, uid, sample, turn: "a")
    alive: list[Inline] = []

    class Counted(Inline):
        def __init__(self) -> None:
            super().__init__(Source("frozen_lake"), Echo)
            alive.append(self)
            assert len(alive) <= 2

        def end(self, *, kill: bool = False) -> None:
            alive.remove(self)
            super().end(kill=kill)

    rollout = played(prompts_of([[]] * 5), engine, limits=replace(LIMITS, at_once=2), home=Counted)
    assert [len(each.turns) for each in rollout.episodes or ()] == [2, 3, 1, 2, 3] and not alive
    assert engine.calls[:4] == [
        [(0, 0, 0), (1, 0, 0)],
        [(0, 0, 1), (1, 0, 1)],
        [(1, 0, 2), (2, 0, 0)],
        [(3, 0, 0), (4, 0, 0)],
    ]


def test_a_trajectory_that_takes_too_long_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted(lambda context, uid, sample, turn: time.sleep(0.05) or "a")  # type: ignore[func-returns-value]
    rollout = played(prompts_of([[]] * 2), engine, limits=replace(LIMITS, trajectory_s=0.06))
    failures = [each.failure for each in rollout.episodes or ()]
    assert all(each is not None and each.kind == "late" for each in failures)
    assert "agent.trajectory_timeout=0.06 s" in failures[0].message  # type: ignore[union-attr]


def test_a_first_observation_without_room_or_text_fails() -> None:
    rollout = played(prompts_of([[]]), Scripted(lambda *_: "a"), limits=replace(LIMITS, prompt_tokens=3))
    failure = (rollout.episodes or ())[0].failure
    assert failure is not None and failure.kind == "long"
    assert "4 tokens; data.max_prompt_length is 3" in failure.message


def test_rows_of_an_engine_that_died_are_open_and_not_failed() -> None:
    rollout = played(prompts_of([[]] * 2), Scripted(lambda *_: "a", dies_in=[1]))
    assert rollout.mask_BT.sum() == 0
    assert [(each.failure, each.ended) for each in rollout.episodes or ()] == [(None, "")] * 2


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12), st.randoms())
@settings(max_examples=30)
def test_a_row_is_the_same_whatever_is_played_beside_it(prompts: int, n: int, at_once: int, order: Any) -> None:
    """What is said depends on the whole context and the draw's key: as with a model."""

    def say(context: str, uid: int, sample: int, turn: int) -> str:
        return "abcdefg"[: 1 + dice(context, uid, sample, turn) % 6]

    rows = repeat(prompts_of([[]] * prompts, seeds=True), n)
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    whole = texts(played(rows, Scripted(say)))
    other = played(take(rows, torch.tensor(shuffled)), Scripted(say), limits=replace(LIMITS, at_once=at_once))
    assert [texts(other)[shuffled.index(i)] for i in range(len(rows))] == whole
    alone = [texts(played(take(rows, slice(i, i + 1)), Scripted(say)))[0] for i in range(len(rows))]
    assert alone == whole


def test_a_turns_draws_are_its_own_and_the_first_ones_todays() -> None:
    prompts = prompts_of([[5], [6]])
    first = uniform_streams(prompts, SAMPLING)

    def of(turn: int) -> torch.Tensor:
        return uniform_streams(replace(prompts, turn_B=torch.tensor([turn, turn])), SAMPLING)

    assert torch.equal(of(0), first)
    assert not any(torch.equal(of(turn), first) for turn in (1, 2))
    mixed = uniform_streams(replace(prompts, turn_B=torch.tensor([2, 1])), SAMPLING)
    assert torch.equal(mixed[0], of(2)[0]) and torch.equal(mixed[1], of(1)[1])


@pytest.mark.parametrize(
    ("text", "name", "said", "hint"),
    [
        ("x = 1 / 0", "Odd", "raised while it was loaded: ZeroDivisionError: division by zero at", "python"),
        ("class Other: pass", "Odd", "has no class Odd", "it has Other"),
        ("class Odd:\n def reset(self): pass", "Odd", "has no step", "an environment has reset"),
        ("import os; os._exit(3)", "Odd", "left by itself, with exit code 3", "it must load on its own"),
    ],
)
def test_a_file_that_is_none_is_refused_before_the_first_turn(
    houses: Callable[..., Houses], text: str, name: str, said: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        houses(text=text, name=name)
    assert said in caught.value.message and hint in caught.value.hint


def test_nothing_is_left_of_environments(houses: Callable[..., Houses]) -> None:
    """A process that sleeps with all signals blocked ends with its house."""
    house = houses("hangs", 1)
    home = house.home()
    assert isinstance(home, Apart)
    home.ask("reset", 101)
    home.take()
    home.ask("step", "a")
    pid = home._pid
    assert is_alive(pid)
    house.close()
    home.end()
    deadline = time.monotonic() + stretched(5.0)
    while is_alive(pid):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def test_they_end_with_their_rank_however_it_ends(tmp_path: Path) -> None:
    """A rank that is killed has no time to tell them."""
    (tmp_path / "odd.py").write_text(FILE)
    program = (
        "import sys, time\n"
        "from trainer.agent.homes import Houses\n"
        "from trainer.agent.source import Source\n"
        "house = Houses(Source(sys.argv[1] + ':Odd', open(sys.argv[1]).read(), {'how': 'hangs'}), isolate=True)\n"
        "home = house.home(); home.ask('reset', 101); home.take(); home.ask('step', 'a')\n"
        "print(house._process.pid, home._pid, flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "odd.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pids = rank.stdout.readline().split()
        assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
        rank.kill()
    deadline = time.monotonic() + stretched(10.0)
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "they live on"
        time.sleep(0.01)


def is_alive(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_house_that_is_gone_is_built_again(houses: Callable[..., Houses]) -> None:
    house = houses()
    assert house._process is not None
    house._process.kill()
    house._process.wait()
    assert texts(played(prompts_of([[]] * 2), Scripted(lambda *_: "a"), home=house.home)) == ["[a|]<a>[a|]"] * 2


def test_the_wait_for_others_is_short() -> None:
    assert 0 < loop.GATHER_S <= 0.5


def test_in_the_ranks_own_process_a_stop_fails_no_trajectory() -> None:
    """Somebody at a breakpoint in a step takes longer than any limit."""

    class Stopped(Echo):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            time.sleep(0.05)
            return super().step(action)

    agent = AgentConfig(env="a.py:A", isolate=False, turn_timeout=0.01, trajectory_timeout=0.02)
    for isolate in (False, True):
        limits = limits_of(replace(Config(), agent=replace(agent, isolate=isolate)))
        rollout = played(prompts_of([[]] * 2), Scripted(lambda *_: "a"), Stopped, limits)
        failed = {each.failure.kind for each in rollout.episodes or () if each.failure is not None}
        assert failed == ({"late"} if isolate else set())


@pytest.mark.parametrize("name", ["turns", "score", "", "a b", "ü", "x\n"])
def test_the_name_of_a_metric_is_one_that_can_be_logged_and_is_nobody_elses(name: str) -> None:
    """A metric `turns` took the place of the recorded turns."""
    with pytest.raises(contract.Unfit, match="metric"):
        contract.reset(Reports(name), seed=1)
    assert contract.reset(Reports("search/hits"), seed=1).numbers == {"search/hits": 1.0}


class Reports:
    def __init__(self, name: str) -> None:
        self.name = name

    def reset(self, *, seed: int) -> tuple[str, dict[str, dict[str, float]]]:
        return "go", {"metrics": {self.name: 1.0}}


def test_an_error_whose_text_cannot_be_had_is_named_all_the_same() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert contract.told(Odd()) == "Odd: its str raises"


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"# coding: latin-1\n# \xe4\n"])
def test_a_file_is_read_as_python_reads_it(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "lake.py"
    path.write_bytes(start + b"class Lake: pass\n")
    assert compile(text_of(str(path)), str(path), "exec")
