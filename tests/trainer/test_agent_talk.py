"""Conversations with an engine in another process, over the line that real ones have: here a thread is at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.pace import stretched
from tests.trainer.conversations import END, SAMPLING, Characters, Say, prompts_of
from tests.trainer.test_agent_loop import LIMITS, Echo, texts
from trainer.agent.homes import Home, Inline
from trainer.agent.loop import Conversations, Limits
from trainer.agent.source import Source
from trainer.agent.speech import Speech
from trainer.errors import DeadlineError, EngineError
from trainer.interfaces import Sampling
from trainer.records import Prompts, Rollout
from trainer.rollout import exchange
from trainer.rollout.exchange import Asked, Door, Dropped, Line
from trainer.rollout.handle import EngineDied
from trainer.rollout.sampling import seed_of
from trainer.rollout.server import Draw
from trainer.rollout.talk import Talk


@dataclass(frozen=True)
class Turn:
    """One that was asked for, as the engine heard it."""

    row: int
    number: int  # of the row's turns
    text: str  # all that it reads
    most: int
    seed: int
    replica: int


Hold = Callable[[Turn, "Engine"], bool]  # whether the answer is kept back


class Engine:
    """In place of one in an actor: `say` tells what is answered. Its handle is the engine itself."""

    def __init__(self, folder: Path, say: Say, *, replicas: int = 1, hold: Hold = lambda turn, engine: False) -> None:
        self.info = SimpleNamespace(reports=str(folder))
        self.spec = SimpleNamespace(replicas=replicas)
        self.timeout_s, self.others = stretched(20.0), ()
        self.say, self.hold = say, hold
        self.turns: list[Turn] = []
        self.dropped: list[int] = []
        self.calls = self.deaths = 0
        self.held: list[Turn] = []
        self.dies = self.refuses = False
        self._doors = [Door(str(folder), number) for number in range(replicas)]
        self._lines: dict[int, Line] = {}
        self._threads: list[threading.Thread] = []
        self._heard = threading.Lock()

    # -- as `interfaces.Talks`

    def talk(self, prompts: Prompts, sampling: Sampling) -> Talk:
        draw = Draw(sampling.max_new_tokens, 1.0, 1.0, -1, (END,), sampling.seed, sampling.stop)
        return Talk(self, draw, len(prompts), died=self._died)  # type: ignore[arg-type]

    def _died(self) -> None:
        self.deaths += 1

    # -- as `EngineHandle`

    def ask(self, method: str, draw: Draw, session: str) -> str:
        assert method == "converse"
        self.calls += 1
        self._threads = [
            threading.Thread(target=self._converse, args=(number, session)) for number in range(self.spec.replicas)
        ]
        for thread in self._threads:
            thread.start()
        return session

    def wait(self, call: str, doing: str) -> None:
        for thread in self._threads:
            thread.join(stretched(20.0))
            assert not thread.is_alive()
        if self.dies:
            raise EngineDied(f"it died: it was to {doing}", hint="-")
        if self.refuses:
            raise EngineError("it refused a prompt", hint="-")

    def require_others(self, doing: str) -> None: ...

    def late(self, doing: str) -> DeadlineError:
        return DeadlineError(f"no answer; it was to {doing}", hint="-")

    # -- its process

    def _converse(self, number: int, session: str) -> None:
        heard: SimpleQueue[Asked | Dropped | None] = SimpleQueue()
        with self._doors[number].opened(session) as line:
            self._lines[number] = line
            line.listen(heard.put)
            while (said := heard.get()) is not None:
                if isinstance(said, Dropped):
                    self.dropped.append(said.row)
                    continue
                with self._heard:
                    count = sum(turn.row == said.row for turn in self.turns)
                    text = Characters().decode(said.ids)
                    turn = Turn(said.row, count, text, said.most, said.seed, number)
                    self.turns.append(turn)
                    if self.hold(turn, self):
                        self.held.append(turn)
                    else:
                        self.answer(turn)
                if self.dies or self.refuses:
                    return

    def close(self) -> None:
        for thread in self._threads:
            thread.join(stretched(20.0))
        for door in self._doors:
            door.close()

    def answer(self, turn: Turn) -> None:
        ids = Characters()(self.say(turn.text, turn.row, 0, turn.number) + "|")["input_ids"][: turn.most]
        self._lines[turn.replica].answer(turn.row, ids, [-0.5] * len(ids))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """`engine(say, hold=...)`."""
    made: list[Engine] = []

    def make(*args: Any, **changes: Any) -> Engine:
        made.append(Engine(tmp_path, *args, **changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def script(text: str, uid: int, sample: int, turn: int) -> str:
    return f"{uid}.{turn}"


def played(
    engine: Engine, count: int = 3, kind: Any = Echo, limits: Limits = LIMITS, home: Callable[[], Home] | None = None
) -> Rollout:
    at = home or (lambda: Inline(Source("frozen_lake"), kind))
    return Conversations(
        prompts_of([[]] * count, seeds=True),
        SAMPLING,
        engine=engine,  # type: ignore[arg-type]
        speech=Speech(Characters(), [END]),
        limits=limits,
        home=at,
        pad_id=0,
    ).play()


WHOLE = ["[0.0|]<0.0>[0.1|]", "[1.0|]<1.0>[1.1|]<1.1>[1.2|]", "[2.0|]"]  # seeds 100, 101, 102


def test_rows_are_conversations_as_with_batches(engine: Callable[..., Engine]) -> None:
    made = engine(script)
    rollout = played(made)
    assert texts(rollout) == WHOLE and made.calls == 1
    assert (rollout.logp_BT[rollout.mask_BT == 1] == -0.5).all() and (rollout.logp_BT[rollout.mask_BT == 0] == 0).all()
    assert {(turn.row, turn.number): turn.text for turn in made.turns}[1, 2] == "#1011.0|<1.0>1.1|<1.1>"


def test_each_goes_on_as_soon_as_it_has_its_own_answer(engine: Callable[..., Engine]) -> None:
    """Row 0's first turn is answered when row 1 has asked for its last: it waits for nobody."""

    def hold(turn: Turn, self: Engine) -> bool:
        if (turn.row, turn.number) == (1, 2):
            for held in self.held:
                self.answer(held)
        return (turn.row, turn.number) == (0, 0)

    made = engine(script, hold=hold)
    assert texts(played(made)) == WHOLE
    order = [(turn.row, turn.number) for turn in made.turns]
    assert order.index((1, 2)) < order.index((0, 1))


def test_draws_and_room_are_of_the_row_the_sample_and_the_turn(engine: Callable[..., Engine]) -> None:
    made = engine(lambda *_: "abcdefghijkl")
    played(made, limits=replace(LIMITS, response_tokens=27))  # eight tokens, an observation of ten, eight more
    seeds = {(turn.row, turn.number): turn.seed for turn in made.turns}
    assert seeds == {(row, number): seed_of(SAMPLING.seed, row, 0, number) for row, number in seeds}
    assert len(set(seeds.values())) == len(seeds) == 5
    assert {turn.number: turn.most for turn in made.turns if turn.row == 1} == {0: 8, 1: 8}
    assert [turn.most for turn in engine_with_room(made, 12).turns if turn.number == 1] == []


def engine_with_room(made: Engine, tokens: int) -> Engine:
    made.turns.clear()
    played(made, limits=replace(LIMITS, response_tokens=tokens))
    return made


def test_all_turns_of_a_row_go_to_one_replica_and_neighbours_stay_together(engine: Callable[..., Engine]) -> None:
    made = engine(script, replicas=2)
    rollout = played(made, 6)
    assert texts(rollout)[:3] == WHOLE
    assert {(turn.row, turn.replica) for turn in made.turns} == {(row, row // 3) for row in range(6)}


def test_one_that_takes_too_long_is_given_up_while_it_speaks(engine: Callable[..., Engine]) -> None:
    """And the engine hears of it."""
    made = engine(script, hold=lambda turn, self: turn.row == 0)
    rollout = played(made, limits=replace(LIMITS, trajectory_s=1.0))
    assert texts(rollout) == ["", *WHOLE[1:]]
    failure = (rollout.episodes or ())[0].failure
    assert failure is not None and failure.kind == "late" and "agent.trajectory_timeout=1 s" in failure.message
    assert made.dropped == [0]


def test_what_is_at_its_end_stands_when_the_engine_dies(engine: Callable[..., Engine]) -> None:
    ended = threading.Event()

    class Ends(Echo):
        def close(self) -> None:
            ended.set()

    def hold(turn: Turn, self: Engine) -> bool:
        self.dies = (turn.row, turn.number) == (1, 1) and ended.wait(stretched(20.0))
        return turn.row == 0 or self.dies

    made = engine(script, hold=hold)
    rollout = played(made, kind=Ends)
    assert texts(rollout) == ["", "", WHOLE[2]] and made.deaths == 1
    assert [(each.failure, each.ended) for each in rollout.episodes or ()] == [
        (None, ""),
        (None, ""),
        (None, "terminated"),
    ]


def test_with_one_that_is_dead_already_nothing_begins() -> None:
    class Dead:
        def talk(self, prompts: Prompts, sampling: Sampling) -> Talk:
            return Talk(None, Draw(8, 1.0, 1.0, -1, (), 0), len(prompts))

    rollout = played(Dead(), home=lambda: pytest.fail("an environment"))  # type: ignore[arg-type]
    assert texts(rollout) == ["", "", ""] and not any(each.failure for each in rollout.episodes or ())


def test_what_the_engine_raises_is_raised(engine: Callable[..., Engine]) -> None:
    made = engine(script)
    made.refuses = True
    with pytest.raises(EngineError, match="refused a prompt"):
        played(made)
    made.refuses = False
    made.turns.clear()
    assert texts(played(made)) == WHOLE  # and the next one is none the worse


def test_one_that_says_nothing_is_late(engine: Callable[..., Engine]) -> None:
    """Nor is it waited for a second time, at the end."""
    made = engine(script, hold=lambda turn, self: turn.row == 1)
    made.timeout_s = 0.5
    made.wait = lambda *_: pytest.fail("waited")  # type: ignore[method-assign]
    with pytest.raises(DeadlineError, match=r"converse, 3 turns done, 1 open"):
        played(made)


def test_ranks_without_rows_call_nobody(engine: Callable[..., Engine]) -> None:
    made = engine(script)
    assert len(played(made, 0)) == 0 and made.calls == 0


def test_a_session_that_came_to_nothing_is_passed_over(tmp_path: Path) -> None:
    """Its rank has connected, and was gone before the engine came to it."""
    rows: SimpleQueue[Any] = SimpleQueue()
    door = Door(str(tmp_path))
    exchange.meet(str(tmp_path), 0, "first").close()
    silent = exchange.meet(str(tmp_path), 0, "second")
    line = exchange.meet(str(tmp_path), 0, "third")
    with door.opened("third") as opened:
        opened.listen(rows.put)
        exchange.ask(line, Asked(7, [1, 2], 3, -(2**63)))
        exchange.drop(line, 7)
        assert [rows.get(timeout=20), rows.get(timeout=20)] == [Asked(7, [1, 2], 3, -(2**63)), Dropped(7)]
        opened.answer(7, [5], [-0.1])
        assert exchange.answer_on(line) == (7, [5], [-0.1])
        line.close()
        assert rows.get(timeout=20) is None
        opened.answer(7, [5], [-0.1])  # nobody hears it
    silent.close()
    door.close()


def test_a_folder_may_have_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    door = Door(str(folder))
    with closing(exchange.meet(str(folder), 0, "a")) as line, door.opened("a") as opened:
        opened.answer(1, [2], [-0.5])
        assert exchange.answer_on(line) == (1, [2], [-0.5])
    door.close()
    with pytest.raises(OSError, match="refused"):
        exchange.meet(str(folder), 0, "b")


def test_a_rank_that_does_not_come_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MEET_S", 0.1)
    door = Door(str(tmp_path))
    with pytest.raises(EngineError, match=r"did not come within 0.1 s"), door.opened("a"):
        pass
    door.close()
