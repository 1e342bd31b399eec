"""`devkit attach`: what can be typed, and sessions with real stops in this process, one and many at once."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.debug import terminal
from devkit.debug.dap_peer import Peers, Request
from devkit.debug.inworker.records import StopRecord
from devkit.debug.terminal_commands import BY_NAME, WORDS, Command, help_text, is_unfinished, location, parse, write
from devkit.debug.terminal_input import PipeLines
from devkit.debug.terminal_look import list_range, whole_word
from devkit.debug.terminal_source import function_at, line_in_function, parameters
from devkit.errors import DevkitError, UsageError
from tests.debug import debuggee
from tests.debug.hub_fake import stop
from tests.debug.workers_here import HereHub, HereWorker, wait_until
from tests.pace import stretched

ROOT = Path(__file__).parents[2]
SOURCE = Path(debuggee.__file__)


def line_of(mark: str) -> int:
    lines = SOURCE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


# ---- what a line means


@pytest.mark.parametrize(
    ("line", "word", "argument"),
    [
        ("n", "next", ""),
        ("  next ", "next", ""),
        ("s", "step", ""),
        ("r", "return", ""),
        ("c", "continue", ""),
        ("cont", "continue", ""),
        ("bt", "where", ""),
        ("u 2", "up", "2"),
        ("l", "list", ""),
        ("l .", "list", "."),
        ("l 3, 9", "list", "3, 9"),
        ("ll", "longlist", ""),
        ("p x + 1", "p", "x + 1"),
        ("p -x", "p", "-x"),
        ("p(x)", "p", "(x)"),
        ("p == 3", "p", "== 3"),  # as in pdb: what follows p is its expression, good or not
        ("pp self.model", "pp", "self.model"),
        ("b", "break", ""),
        ("b 88", "break", "88"),
        ("b train.py:88, step == 3", "break", "train.py:88, step == 3"),
        ("tbreak 9", "tbreak", "9"),
        ("cl 1 2", "clear", "1 2"),
        ("ranks 0,2:4", "ranks", "0,2:4"),
        ("ranks", "ranks", ""),
        ("ranks Actor[0]", "ranks", "Actor[0]"),
        ("all", "all", ""),
        ("q", "quit", ""),
        ("h n", "help", "n"),
        ("?", "help", ""),
        ("", "again", ""),
        # code, although it begins like a command
        ("n + 1", "run", "n + 1"),
        ("n = 3", "run", "n = 3"),
        ("c.grad", "run", "c.grad"),
        ("l[0]", "run", "l[0]"),
        ("list(x)", "run", "list(x)"),
        ("all(x)", "run", "all(x)"),
        ("b = 3", "run", "b = 3"),
        ("p = 3", "run", "p = 3"),
        ("p += 3", "run", "p += 3"),
        ("a: int = 3", "run", "a: int = 3"),
        ("d - 1", "run", "d - 1"),
        ("u is None", "run", "u is None"),
        ("s if s else t", "run", "s if s else t"),
        ("ranks + 1", "run", "ranks + 1"),
        ("!n", "run", "n"),
        ("!c = 3", "run", "c = 3"),
        ("step_count", "run", "step_count"),
        ("for x in y: print(x)", "run", "for x in y: print(x)"),
        ("(", "run", "("),
    ],
)
def test_a_line_is_this_command(line: str, word: str, argument: str) -> None:
    assert parse(line) == Command(word, argument)


@pytest.mark.parametrize("line", ["n 3", "c now", "u x y", "p", "!", "tbreak", "cl x", "l 3 4", "w 1 2", "b 3 4"])
def test_a_wrong_command_says_how_it_is_used(line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert caught.value.message.startswith("usage: ")


arguments = {
    "u [N]": st.integers(0, 99).map(str),
    "d [N]": st.integers(0, 99).map(str),
    "l [LINE[, LAST]]": st.one_of(
        st.just("."), st.tuples(st.integers(1, 99), st.integers(1, 99)).map(lambda two: f"{two[0]}, {two[1]}")
    ),
    "p EXPR": st.sampled_from(["x", "-x", "[a for a in b]", "'a  b'"]),
    "pp EXPR": st.sampled_from(["x", "self"]),
    "cl [N...]": st.lists(st.integers(1, 9), min_size=1).map(lambda numbers: " ".join(map(str, numbers))),
    "ranks [0,2:4]": st.sampled_from(["0", "0,2:4", "Actor", "Actor[0,2]", "::2", "s-12"]),
    "h [WORD]": st.sampled_from(["n", "c"]),
}
code = st.text(min_size=1).map(str.strip).filter(bool)
commands = st.one_of(
    st.sampled_from(WORDS).flatmap(
        lambda word: arguments.get(word.usage, st.just("")).map(lambda text: Command(word.names[0], text))
    ),
    st.tuples(st.integers(1, 999), st.sampled_from(["", ", x == 3"])).map(
        lambda two: Command("break", f"{two[0]}{two[1]}")
    ),
    code.map(lambda text: Command("run", text)),
    st.just(Command("again")),
).filter(lambda command: command.word not in ("tbreak", "p", "pp") or command.argument != "")


@given(commands)
def test_commands_are_written_and_read_back(command: Command) -> None:
    assert parse(write(command)) == command


@given(st.text())
def test_any_line_is_a_command_or_one_line_of_help(line: str) -> None:
    wrong = ""
    try:
        command = parse(line)
    except UsageError as error:
        command, wrong = Command("again"), error.message
    assert "\n" not in wrong
    assert command.word in ("run", "again") or command.word in BY_NAME


def test_where_a_breakpoint_goes() -> None:
    assert location("88").line == 88
    assert location("pkg/train.py:88").file == "pkg/train.py"
    assert location("Model.forward, x > 1").function == "Model.forward"
    assert location("88 , step == 3 and f(1, 2)").condition == "step == 3 and f(1, 2)"
    for text in ("", "88x", "train.py:", "88,", "88 if x"):
        with pytest.raises(UsageError):
            location(text)


def test_help_has_every_word_and_fits_80_columns() -> None:
    assert max(map(len, help_text().splitlines())) <= 80
    for word in WORDS:
        assert word.usage in help_text()
        assert all(name in help_text(name) for name in word.names)
    with pytest.raises(UsageError):
        help_text("nonsense")


def test_a_statement_of_several_lines_is_known() -> None:
    assert is_unfinished("for x in y:") and is_unfinished("f(1,")
    assert not is_unfinished("x = 1") and not is_unfinished("x = = 1")


def test_list_pages() -> None:
    assert list_range("", 2, None) == (1, 11)
    assert list_range(".", 20, 25) == (15, 25)
    assert list_range("30", 20, 25) == (25, 35)


def test_the_innermost_function_and_its_parameters() -> None:
    lines = ["def outer(a, /, b, *c, d, **e):", "    def inner(x):", "        return x", "    return inner"]
    inner, outer = function_at(lines, 3), function_at(lines, 4)
    assert inner is not None and inner.name == "inner"
    assert outer is not None and parameters(outer) == ["a", "b", "c", "d", "e"]
    assert function_at(["x = 1"], 1) is None and function_at(["def ("], 1) is None


def test_where_a_function_begins() -> None:
    lines = [
        "class A:",
        "    async def f(self):",
        "        x = 1",
        "def f(): 'only a text'",
        "def g():",
        "    def h(): pass",
    ]
    assert (
        line_in_function(lines, "A.f") == 3
        and line_in_function(lines, "g.h") == 6
        and line_in_function(lines, "h") == 6
    )
    assert line_in_function(lines[3:], "f") == 1
    assert line_in_function(lines, "nothing") == 0 and line_in_function(["def ("], "f") == 0


def test_completion_keeps_what_stands_before_the_dot() -> None:
    assert whole_word("model.lo", {"label": "loss"}) == "model.loss"
    assert whole_word("model.lo", {"label": "model.loss"}) == "model.loss"
    assert whole_word("mo", {"label": "model"}) == "model"


def test_attach_without_an_id_takes_the_only_stop_and_does_not_guess() -> None:
    records = [StopRecord.from_json(stop(number, number)) for number in range(3)]
    assert terminal.chosen(records[:1], None) == records[:1]
    assert terminal.chosen(records, "s1") == [records[1]]
    assert terminal.chosen(records, None, everything=True) == records
    assert terminal.chosen(records, None, ranks="1:") == records[1:]
    with pytest.raises(UsageError) as caught:
        terminal.chosen(records, None)
    assert caught.value.exit_code == 2 and "s0 (Worker[0])" in caught.value.hint and "--all" in caught.value.hint
    with pytest.raises(UsageError, match="no stop has the id"):
        terminal.chosen(records, "zz")
    with pytest.raises(UsageError):
        terminal.main("s1", everything=True)


# ---- sessions


@pytest.fixture
def start() -> Iterator[Callable[..., HereHub]]:
    started: list[HereWorker] = []
    hubs: list[HereHub] = []

    def make(ranks: int, program: Callable[..., None] = debuggee.train) -> HereHub:
        workers = [HereWorker(rank, program) for rank in range(ranks)]
        started.extend(workers)
        for worker in workers:
            if ranks == 1:
                worker.takes_breakpoints()
            worker.start()
        hubs.append(HereHub(workers))
        return hubs[-1]

    yield make
    for worker in started:
        worker.end()
    for hub in hubs:
        hub.close()


class Talk:
    """What a session printed, in order."""

    def __init__(self, hub: HereHub, capsys: pytest.CaptureFixture[str]) -> None:
        self.hub, self._capsys = hub, capsys
        self.code = -1
        self.out = self.err = ""

    def __call__(self, *lines: str, monkeypatch: pytest.MonkeyPatch, **how: object) -> Talk:
        monkeypatch.setattr("devkit.debug.terminal_move.STOP_SECONDS", 20.0)
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        self.code = terminal.run(self.hub, **how)  # type: ignore[arg-type]
        told = self._capsys.readouterr()
        self.out, self.err = told.out, told.err
        return self

    def answer(self, line: str, time: int = 1) -> str:
        """What came between this line, when it was typed for the first or second time, and the next prompt."""
        after = self.out.split(f") {line}\n")[time]
        return re.split(r"^\(devkit[^)]*\) ", after, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.fixture
def attach(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Talk]:
    def run(*lines: str, ranks: int = 1, program: Callable[..., None] = debuggee.train, **how: object) -> Talk:
        hub = start(ranks, program)
        how.setdefault("everything", ranks > 1)
        return Talk(hub, capsys)(*lines, monkeypatch=monkeypatch, **how)

    return run


def test_it_begins_where_the_program_stands(attach: Callable[..., Talk]) -> None:
    talk = attach()
    assert re.search(rf"debuggee\.py:{line_of('pause')} in train\n-> worker\.pause\(\)", talk.out)
    assert talk.code == 0


def test_values_expressions_and_statements(attach: Callable[..., Talk]) -> None:
    talk = attach("p step", "step + 1", "step = 40", "!step += 2", "p step", "None", "p None", "p nonsense", "p (")
    assert talk.answer("p step") == "17\n"
    assert talk.answer("step + 1") == "18\n"
    assert talk.answer("step = 40") == ""
    assert talk.out.count(") p step\n42\n") == 1
    assert talk.answer("None") == ""
    assert talk.answer("p None") == "None\n"
    assert talk.answer("p nonsense").startswith("*** NameError")
    assert talk.answer("p (").startswith("*** ")


def test_an_edit_stays_after_the_session(attach: Callable[..., Talk]) -> None:
    talk = attach("step = 100")
    [worker] = talk.hub.workers.values()
    worker.end()
    assert worker.results[0] == (1 + 2 + 100) * 2


def test_steps_over_into_and_out(attach: Callable[..., Talk]) -> None:
    talk = attach("n", "n", "s", "p scale", "r", "p __return__", "rv", "n", "rv")
    assert f"debuggee.py:{line_of('batch')} in train" in talk.answer("n")
    assert f"debuggee.py:{line_of('forward')} in " in talk.answer("s")
    assert talk.answer("p scale") == "2\n"
    assert " in train  Model.forward()->40" in talk.answer("r")
    assert talk.answer("p __return__") == "40\n"
    assert talk.out.split(") rv\n")[1].splitlines()[0] == "40"
    assert talk.out.split(") rv\n")[2].startswith("*** NameError")


def test_an_empty_line_steps_again_but_does_not_continue_again(attach: Callable[..., Talk]) -> None:
    talk = attach("n", "", "p 1", "")
    assert f":{line_of('batch')} in" in talk.out and f":{line_of('call')} in" in talk.out
    assert f":{line_of('after')} in" not in talk.out


def test_an_empty_line_after_c_does_nothing(attach: Callable[..., Talk]) -> None:
    talk = attach("c", "", "p step", "q", program=debuggee.train_twice)
    assert talk.answer("p step") == "1\n" and "stays stopped" in talk.err


def test_where_up_down_and_lists(attach: Callable[..., Talk]) -> None:
    talk = attach("n", "n", "s", "w", "u", "p step", "d", "a", "l", "l", "ll", "l 1, 2", "d", "u 99")
    stack = talk.answer("w").splitlines()
    assert stack[-2].startswith("> ") and "forward" in stack[-2] and "total = sum(batch)" in stack[-1]
    assert any("in train" in line for line in stack[:-2])
    assert f":{line_of('call')} in train" in talk.answer("u")
    assert talk.answer("p step") == "17\n"
    assert talk.answer("a").splitlines()[1:] == ["batch = [1, 2, 17]", "scale = 2"]
    assert re.search(rf"{line_of('forward')}  -> +total = sum", talk.answer("l"))
    assert talk.answer("ll").splitlines()[0].endswith("def forward(self, batch: list[int], *, scale: int = 2) -> int:")
    first, then = (part.splitlines()[0].split()[0] for part in talk.out.split(") l\n")[1:3])
    assert int(then) == int(first) + 11  # the second `l` goes on where the first one ended
    assert len(talk.answer("l 1, 2").splitlines()) == 2
    assert "*** this is the newest frame" in talk.err


def test_pp_shows_what_is_inside(attach: Callable[..., Talk]) -> None:
    talk = attach("pp model.layers")
    assert "first" in talk.answer("pp model.layers").splitlines()[1]


def test_bad_input_is_one_line_and_the_session_goes_on(attach: Callable[..., Talk]) -> None:
    talk = attach("n 3", "cl", "h nonsense", "ranks 9", "b", "p step")
    wrong = [line for line in talk.err.splitlines() if line.startswith("*** ")]
    assert len(wrong) == 5
    assert talk.answer("p step") == "17\n" and talk.code == 0


def test_leaving_leaves_it_stopped_and_says_so(attach: Callable[..., Talk]) -> None:
    talk = attach("q")
    [worker] = talk.hub.workers.values()
    [record] = worker.stops.records()
    assert f"rank 0 stays stopped: devkit attach {record.id} comes back" in talk.err
    assert record.attached == 0 and worker.results == []


def test_the_end_of_the_input_is_q(attach: Callable[..., Talk]) -> None:
    talk = attach()
    [worker] = talk.hub.workers.values()
    assert "stays stopped" in talk.err and len(worker.stops.records()) == 1


def test_c_at_the_end_of_a_script_lets_it_run_and_leaves(attach: Callable[..., Talk]) -> None:
    talk = attach("c")
    [worker] = talk.hub.workers.values()
    wait_until(lambda: not worker.thread.is_alive())
    assert worker.results[-1] == "end" and talk.code == 0


def test_c_at_the_end_of_a_script_does_not_wait_for_a_stop(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(HereWorker, "arrive", lambda self: release.wait(stretched(15)), raising=False)
    hub = start(1, debuggee.one_lags)
    talk = Talk(hub, capsys)("c", monkeypatch=monkeypatch)
    assert hub.workers["000000"].results == [] and "rank 0 left running" in talk.err
    release.set()
    hub.workers["000000"].end()  # it may not have come to `arrive` yet, which is there as long as this test


def test_c_comes_back_at_the_next_stop(attach: Callable[..., Talk]) -> None:
    talk = attach("p step", "c", "p step", program=debuggee.train_twice)
    assert talk.out.count("-> worker.pause()") == 2
    assert [line for line in talk.out.splitlines() if line in ("0", "1")] == ["0", "1"]


def test_a_breakpoint_of_the_session_stops_and_is_listed_and_cleared(attach: Callable[..., Talk]) -> None:
    loop = line_of("loop")
    talk = attach(
        f"b {loop}, step == 1",
        "b",
        "l",
        "c",
        "p step",
        "cl 1",
        "b 99999",
        "b forward",
        "cl",
        f"tbreak {line_of('end')}",
        "c",
        "cl 1",
        "q",
    )
    assert talk.answer(f"b {loop}, step == 1") == f"breakpoint 1 at tests/debug/debuggee.py:{loop} if step == 1\n"
    assert talk.answer("b").startswith("1  ")
    assert talk.answer("p step") == "1\n"
    assert "breakpoint 1 removed" in talk.answer("cl 1")
    assert "*** no breakpoint at" in talk.err
    assert talk.answer("b forward") == f"breakpoint 1 at tests/debug/debuggee.py:{line_of('forward')}\n"
    # the one of `tbreak` is gone when somebody stands at it
    assert f":{line_of('end')} in train" in talk.answer("c", 2)
    assert "*** no breakpoint 1" in talk.err


def test_threads_are_listed(attach: Callable[..., Talk]) -> None:
    assert re.search(r"^\* \d+  program-0", attach("threads").answer("threads"), re.MULTILINE)


def test_all_ranks_answer_at_once_and_equal_answers_are_one(attach: Callable[..., Talk]) -> None:
    talk = attach("p step", "p model.loss", "n", "n", ranks=4)
    assert talk.answer("p step") == "ranks 0-3: 17\n"
    assert talk.answer("p model.loss") == "ranks 0,1,3: 0.5\nrank 2:      nan\n"
    assert talk.answer("n").startswith("ranks 0-3:\n")
    assert "(devkit ranks 0-3) " in talk.out


def test_ranks_narrows_and_all_widens(attach: Callable[..., Talk]) -> None:
    talk = attach("ranks 1,3:", "n", "p model.rank", "all", "w", ranks=4)
    assert "(devkit ranks 1,3) n\n" in talk.out
    assert talk.answer("p model.rank") == "rank 1: 1\nrank 3: 3\n"
    both = talk.answer("all")
    assert f"ranks 0,2:\n    tests/debug/debuggee.py:{line_of('pause')}" in both
    assert f"ranks 1,3:\n    tests/debug/debuggee.py:{line_of('batch')}" in both


def test_a_rank_that_does_not_come_back_is_named_and_can_be_waited_for(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr("devkit.debug.terminal_move.STEP_SECONDS", 0.3)

    def arrive(worker: HereWorker) -> None:
        if worker.rank == 1:
            release.wait(stretched(20))

    monkeypatch.setattr(HereWorker, "arrive", arrive, raising=False)
    monkeypatch.setattr(HereWorker, "release", lambda self: release.set(), raising=False)
    hub = start(3, debuggee.one_lags)
    # given rank 1 hangs in the line that the others pass, then a peer frees it
    lines = ("n", "n", "p 1", "worker.release()", "wait", "p 2")
    talk = Talk(hub, capsys)(*lines, monkeypatch=monkeypatch, everything=True)
    assert "rank 1 is still running: type wait" in talk.err
    assert talk.answer("p 1") == "ranks 0,2: 1\n"
    assert talk.answer("p 2") == "ranks 0-2: 2\n"


def test_a_rank_that_dies_is_named_and_the_others_go_on(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(3)
    dying = hub.workers["000001"]
    monkeypatch.setattr(HereWorker, "die", lambda self: self.rank != 1 or self.channels[0].lose(), raising=False)
    talk = Talk(hub, capsys)("worker.die()", "p step", "n", monkeypatch=monkeypatch, everything=True)
    assert "rank 1 is gone" in talk.err
    assert "rank 1:    *** the process is gone" in talk.answer("worker.die()")
    assert talk.answer("p step") == "ranks 0,2: 17\n"
    assert talk.code == 1 and dying.rank == 1


def test_the_hub_explains_why_a_rank_is_gone(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(2)
    worker = hub.workers["000001"]
    [record] = worker.stops.records()

    def die(_worker: HereWorker) -> None:
        worker.channels[0].lose()
        hub.gone.append({"id": record.id, "reason": "killed by SIGKILL"})
        hub.tell()

    monkeypatch.setattr(HereWorker, "die", die, raising=False)
    talk = Talk(hub, capsys)("ranks 1", "worker.die()", "all", "p 1", monkeypatch=monkeypatch, everything=True)
    assert "rank 1: killed by SIGKILL" in talk.err


def test_a_rank_that_stops_later_joins_a_session_with_all(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(1)
    late = HereWorker(1, debuggee.train)
    late.changed = hub.tell
    hub.workers[late.identity.worker_id] = late

    def arrive(_worker: HereWorker) -> None:
        late.start()
        hub.settle()

    # given rank 1 comes to its breakpoint after the session has begun
    monkeypatch.setattr(HereWorker, "arrive", arrive, raising=False)
    talk = Talk(hub, capsys)("worker.arrive()", "p 7", "n", monkeypatch=monkeypatch, everything=True)
    late.end()
    assert "rank 1 stopped too" in talk.err
    assert talk.answer("p 7") == "ranks 0,1: 7\n"
    assert "(devkit ranks 0,1) n" in talk.out


def test_a_session_with_one_stop_leaves_the_others_alone(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(2)
    [record] = hub.workers["000001"].stops.records()
    talk = Talk(hub, capsys)("n", "p worker.rank", monkeypatch=monkeypatch, stop=record.id)
    assert talk.answer("p worker.rank") == "1\n"
    assert hub.workers["000000"].channels == []


def test_two_sessions_may_look_at_one_stop(
    start: Callable[..., HereHub], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start(1)
    first = Talk(hub, capsys)("step = 5", monkeypatch=monkeypatch)
    second = Talk(hub, capsys)("p step", monkeypatch=monkeypatch)
    assert first.code == 0 and second.answer("p step") == "5\n"


def test_only_the_stop_that_is_looked_at_counts_as_attached(attach: Callable[..., Talk]) -> None:
    look = "sorted(stop.attached for stop in worker.stops.records())"
    talk = attach(look, "worker.release()", program=debuggee.two_threads, stop="000000-1")
    assert talk.answer(look) == "[0, 1]\n"


def test_attach_to_nothing_is_an_error(start: Callable[..., HereHub]) -> None:
    with pytest.raises(DevkitError, match="nothing is stopped"):
        terminal.run(HereHub([]))


class Silent:
    """A channel to a worker that never answers."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._closed = threading.Event()

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message["command"])

    def receive(self, timeout: float) -> None:
        self._closed.wait(timeout)

    def close(self) -> None:
        self._closed.set()


def test_an_answer_that_does_not_come_is_an_error_and_not_an_empty_answer() -> None:
    peers, channel = Peers(lambda peer, message: None, lambda peer: None), Silent()
    peers.add("w", channel)
    replies = peers.gather({1: Request("w", "evaluate"), 2: Request("nobody", "evaluate")}, 0.05)
    assert replies[1].error == "no answer within 0.05 s" and channel.sent == ["evaluate"]
    assert replies[2].error == "the process is gone"
    peers.close()


def test_a_pipe_knows_its_end_before_the_last_line_is_asked_for() -> None:
    nudged = threading.Event()
    lines = PipeLines(io.StringIO("a\nb\n"), nudged.set)
    assert nudged.wait(stretched(10))
    assert not lines.ended()
    assert [lines.read(""), lines.read("")] == ["a", "b"]
    assert lines.ended() and lines.read("") is None and lines.read("") is None


# ---- a terminal


class Terminal:
    """`devkit attach` in a pseudo-terminal of 80 columns."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "DEVKIT_HOME": str(home)}
        command = [sys.executable, "-m", "tests.debug.workers_here", *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environment, start_new_session=True
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, wanted: str, seconds: float = stretched(30.0)) -> str:
        """What came until this; and the rest is for the next call."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(wanted, self._seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._master], [], [], left)[0], f"{wanted!r} not in {self._seen!r}"
            try:
                more = os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                raise AssertionError(f"{wanted!r} not in {self._seen!r}") from None
            self._seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x07|\r", "", more)
        seen, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return seen

    def interrupt(self, wanted: str) -> None:
        """Ctrl-C; again, if it came while readline was at work on a key: then Python sees it at the next key only."""
        for _ in range(10):
            self.process.send_signal(signal.SIGINT)
            with suppress(AssertionError):
                self.until(wanted, 3.0)
                return
        raise AssertionError(f"no {wanted!r} after Ctrl-C: {self._seen!r}")

    def close(self) -> int:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(stretched(20))
        self.process.kill()
        os.close(self._master)
        return self.process.wait()


PROMPT = r"\(devkit rank 0\) "


@pytest.fixture
def in_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(*arguments: str) -> Terminal:
        opened.append(Terminal(tmp_path, *arguments))
        return opened[-1]

    yield make
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_in_a_terminal_with_completion_history_and_an_end(in_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    here = in_terminal("1", "train")
    here.until(PROMPT)
    here.type('p model.lay\t["first"]\n')
    assert 'p model.layers["first"]' in here.until(r"\n1\n")
    here.type("p ste\t\n")
    here.until(r"p step\s*\n17\n" + PROMPT)
    here.type("q\n")
    here.until("stays stopped")
    assert here.close() == 0
    assert 'p model.layers["first"]' in (tmp_path / "history").read_text()


def test_ctrl_c_ends_the_wait_and_not_the_program(in_terminal: Callable[..., Terminal]) -> None:
    here = in_terminal("1", "waits_for_a_word")
    here.until(PROMPT)
    here.type("c\n")
    here.until("Ctrl-C returns")
    here.interrupt("interrupted: type q to quit\n" + PROMPT)
    here.type("p 1\n")
    here.until(r"\*\*\* rank 0 runs")
    here.type("q\n")
    here.until("left running")
    assert here.close() == 0


def test_ctrl_c_at_the_prompt_keeps_the_session_and_ctrl_d_leaves(in_terminal: Callable[..., Terminal]) -> None:
    here = in_terminal("1", "train")
    here.until(PROMPT)
    here.type("p ste")
    here.until("p ste")
    here.interrupt("interrupted: type q to quit\n" + PROMPT)
    here.type("p step\n")
    here.until("17\n" + PROMPT)
    here.type("\x04")
    here.until("stays stopped")
    assert here.close() == 0
