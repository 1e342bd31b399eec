"""The debug adapter over real stopped threads and event loops of this process."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

import pytest

from devkit.debug.inworker.adapter import Adapter
from devkit.debug.inworker.arming import Arming
from tests.debug.dialogue import Dialogue, Refusal
from tests.debug.parking_lot import SECONDS, Lot

# A look at all objects of the process touches what its libraries have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

PROGRAM = """\
import asyncio
import threading

import torch

ROUNDS = 3


class Settings:
    def __init__(self):
        self.rate = 0.5
        self.api_key = "hidden"

    def __repr__(self):
        return "<settings of mine>"


def train(model, rounds=ROUNDS):
    settings = Settings()
    loss = torch.arange(6.0).reshape(2, 3)
    history = list(range(250))
    total = 0
    for step in range(rounds):
        total += step
    result = total * 2
    return result, [total * k for k in range(2)]


def fail():
    try:
        {}["lost"]
    except KeyError as error:
        raise ValueError("no such thing") from error


class Actor:
    # As Ray runs an async actor: every call is a task of one loop.
    def __init__(self):
        self.calls = 0

    async def work(self, value):
        self.calls += 1
        value = await self.fetch(value)
        return value

    async def fetch(self, value):
        await asyncio.sleep(0.01)
        return value + 1

    async def ping(self):
        return "pong"


def spin(flag):
    count = 0
    while not flag.is_set():
        count += 1
    return count
"""


def line(text: str) -> int:
    return next(number for number, each in enumerate(PROGRAM.splitlines(), 1) if text in each)


@pytest.fixture
def lot(new_objects: None) -> Iterator[Lot]:
    lot = Lot()
    yield lot
    lot.finish()


@pytest.fixture
def program(tmp_path: Path, new_objects: None) -> Iterator[ModuleType]:
    path = tmp_path / "user_program.py"
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("user_program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_program"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_program"]


@pytest.fixture
def arming(lot: Lot) -> Iterator[Arming]:
    def hit(names: tuple[str, ...], frame: Any) -> None:
        lot.stops.park(frame, "breakpoint", breakpoints=names)

    arming = Arming(hit, lambda name, problem: None)
    arming.install()
    yield arming
    arming.uninstall()


Client = Callable[..., Dialogue]


@pytest.fixture
def client(lot: Lot, arming: Arming) -> Iterator[Client]:
    opened: list[Dialogue] = []

    def open_client(only: str | None = None) -> Dialogue:
        opened.append(Dialogue(lot.stops, arming, only))
        return opened[-1]

    yield open_client
    for dialogue in opened:
        dialogue.adapter.close()


def breakpoints(dialogue: Dialogue, module: ModuleType, *wanted: dict[str, Any]) -> list[dict[str, Any]]:
    body = dialogue.request("setBreakpoints", source={"path": module.__file__}, breakpoints=list(wanted))
    found: list[dict[str, Any]] = body["breakpoints"]
    return found


def test_a_whole_session(lot: Lot, program: ModuleType, client: Client) -> None:
    """Breakpoint, stop, look, change, step, and go on."""
    editor = client()
    editor.attach()
    (point,) = breakpoints(editor, program, {"line": line("total += step"), "condition": "step == 1"})
    assert point["verified"], point
    results: Queue[Any] = Queue()
    lot.start(lambda: results.put(program.train("m")), "trainer")

    stopped = editor.event("stopped")
    assert stopped["reason"] == "breakpoint" and stopped["allThreadsStopped"] is False
    assert stopped["hitBreakpointIds"] == [point["id"]]
    thread = stopped["threadId"]
    assert {"id": thread, "name": "trainer"} in editor.request("threads")["threads"]
    top = editor.top(thread)
    assert (top["name"], top["line"]) == ("train", line("total += step"))
    assert top["source"]["path"] == program.__file__

    names = editor.locals(top["id"])
    assert names["step"]["value"] == "1"
    assert names["loss"]["value"].startswith("tensor float32[2, 3] cpu min=0 max=5 mean=2.5 #")
    assert editor.children(names["loss"], filter="indexed")["1"]["value"].startswith("tensor float32[3]")
    assert editor.children(names["settings"])["api_key"]["value"] == "<redacted>"
    assert names["history"]["indexedVariables"] == 250
    page = editor.children(names["history"], filter="indexed", start=200, count=50)
    assert [int(value["value"]) for value in page.values()] == list(range(200, 250))

    value = editor.request("evaluate", expression="[step * k for k in range(3)]", frameId=top["id"], context="repl")
    assert value["result"] == "[0, 1, 2]"
    editor.request("evaluate", expression="total = 100", frameId=top["id"], context="repl")
    editor.request("next", threadId=thread)
    assert editor.event("stopped")["reason"] == "step"
    editor.request("next", threadId=thread)
    assert editor.event("stopped", threadId=thread)
    top = editor.top(thread)
    assert top["line"] == line("total += step")
    assert editor.locals(top["id"])["total"]["value"] == "101"
    reference = editor.request("scopes", frameId=top["id"])["scopes"][0]["variablesReference"]
    editor.request("setVariable", variablesReference=reference, name="total", value="5")
    breakpoints(editor, program)
    assert editor.request("continue", threadId=thread) == {"allThreadsContinued": False}
    assert results.get(timeout=SECONDS) == (14, [0, 7])
    assert editor.pending("continued") == []


def test_variables_of_a_stop_that_ended_are_refused(lot: Lot, client: Client) -> None:
    editor = client()
    editor.attach()
    lot.start(lot.hit)
    thread = editor.event("stopped")["threadId"]
    frame = editor.top(thread)["id"]
    scope = editor.request("scopes", frameId=frame)["scopes"][0]
    editor.request("continue", threadId=thread)
    lot.join()
    lot.wait(lambda: not lot.stops.records())
    with pytest.raises(Refusal, match="to a pause that has ended"):
        editor.children(scope)
    with pytest.raises(Refusal, match="is not stopped"):
        editor.request("next", threadId=thread)


def test_two_clients_see_the_same_stop_and_the_lost_one_resumes_nothing(lot: Lot, client: Client) -> None:
    first, second = client(), client()
    first.attach()
    lot.start(lot.hit)
    thread = first.event("stopped")["threadId"]
    second.attach()
    assert second.event("stopped")["threadId"] == thread
    assert lot.stops.records()[0].attached == 2

    first.adapter.close()
    second.request("disconnect", terminateDebuggee=True)
    second.event("terminated")
    assert [record.attached for record in lot.stops.records()] == [0]

    third = client()
    third.attach()
    fourth = client()
    fourth.attach()
    third.event("stopped")
    third.request("continue", threadId=thread)
    assert fourth.event("continued") == {"threadId": thread, "allThreadsContinued": False}
    lot.join()


def test_a_client_that_is_gone_before_its_requests_are_done_is_not_counted_and_leaves_no_thread(
    lot: Lot, program: ModuleType, arming: Arming
) -> None:
    """As who sends everything in one write and closes: what it asked for is done, and then nobody is there."""
    lot.start(lot.hit)
    lot.wait(lot.stops.records)
    before = set(threading.enumerate())
    may_go_on = threading.Event()
    gone = Adapter(lot.stops, arming, lambda _: print("it goes on:", may_go_on.wait(SECONDS)))
    place = {"source": {"path": program.__file__}, "breakpoints": [{"line": line("total += step")}]}
    requests = (("initialize", {}), ("attach", {}), ("setBreakpoints", place), ("configurationDone", {}))
    for command, arguments in (*requests, ("evaluate", {"expression": "1"}), ("threads", {})):
        gone.handle({"type": "request", "command": command, "arguments": arguments})
    gone.close()
    may_go_on.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("devkit-adapter"):
            thread.join(SECONDS)
            assert not thread.is_alive(), thread.name
    assert [record.attached for record in lot.stops.records()] == [0]
    results: Queue[Any] = Queue()
    lot.start(lambda: results.put(program.train("m")), "trainer")
    assert results.get(timeout=SECONDS), "its breakpoint has gone, too"


def test_continue_goes_to_one_thread(lot: Lot, client: Client) -> None:
    editor = client()
    editor.attach()
    threads = [lot.start(lot.hit, f"worker {number}") for number in range(2)]
    numbers = [editor.event("stopped")["threadId"] for _ in range(2)]
    names = {thread["id"]: thread["name"] for thread in editor.request("threads")["threads"]}
    editor.request("continue", threadId=numbers[0])
    threads[int(names[numbers[0]][-1])].join(SECONDS)
    assert [record.thread for record in lot.stops.records()] == [names[numbers[1]]]


def test_a_long_expression_holds_up_no_other_stop(lot: Lot, client: Client) -> None:
    editor = client()
    editor.attach()
    release = threading.Event()

    def work(event: threading.Event) -> None:
        lot.hit()

    for number in range(2):
        lot.start(lambda: work(release), f"worker {number}")
    one, other = (editor.event("stopped")["threadId"] for _ in range(2))
    frame = editor.top(one)["id"]
    waiting = editor.send("evaluate", expression=f"event.wait({SECONDS})", frameId=frame)
    assert editor.request("evaluate", expression="1 + 1", frameId=editor.top(other)["id"])["result"] == "2"
    editor.request("continue", threadId=other)
    release.set()
    assert editor.answer(waiting)["result"] == "True"
    stuck = editor.send("evaluate", expression="while True: pass", frameId=frame, timeout=0.2)
    with pytest.raises(Refusal, match=r"no answer within 0\.2 s"):
        editor.answer(stuck)
    assert editor.request("evaluate", expression="2 + 2", frameId=frame)["result"] == "4"


def test_what_an_expression_does(lot: Lot, program: ModuleType, client: Client) -> None:
    def work() -> None:
        settings = program.Settings()
        token = "abc"
        lot.hit()
        del settings, token

    editor = client()
    editor.attach()
    lot.start(work)
    frame = editor.top(editor.event("stopped")["threadId"])["id"]

    def ask(expression: str, context: str) -> Any:
        return editor.request("evaluate", expression=expression, frameId=frame, context=context)["result"]

    assert ask("settings", "repl") == "<settings of mine>"
    assert ask("settings", "hover") == "<Settings rate=0.5, api_key='<redacted>'>"
    assert ask("settings", "summary") == "<Settings rate=0.5, api_key='<redacted>'>"
    body = editor.request("evaluate", expression="settings", frameId=frame, context="summary")
    assert body["json"] == {"type": "Settings", "attributes": {"rate": 0.5, "api_key": "<redacted>"}}
    assert (ask("token", "hover"), ask("token", "repl")) == ("<redacted>", "'abc'")
    assert ask("settings.rate = 2", "repl") == "" and ask("settings.rate", "watch") == "2"
    assert ask("print('seen'); 7", "repl") == "7"
    assert editor.event("output", category="stdout")["output"] == "seen\n"
    assert editor.request("setExpression", expression="settings.rate", value="9", frameId=frame)["value"] == "9"
    for expression, problem in [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("((", "SyntaxError"),
        ("exit(3)", "SystemExit: 3"),
    ]:
        with pytest.raises(Refusal, match=problem):
            ask(expression, "repl")
    targets = editor.request("completions", text="settings.ra", column=12, frameId=frame)["targets"]
    assert targets == [{"label": "rate", "start": 9, "length": 2}]
    assert lot.stops.records()


def test_an_exception_stop_shows_its_causes(lot: Lot, program: ModuleType, client: Client) -> None:
    def work() -> None:
        try:
            program.fail()
        except ValueError as error:
            lot.stops.park(sys._getframe(), "exception", exception=error, traceback=error.__traceback__)

    lot.start(work)
    lot.stop()
    editor = client()
    editor.attach()
    stopped = editor.event("stopped")
    assert (stopped["reason"], stopped["text"]) == ("exception", "ValueError: no such thing")
    frames = editor.request("stackTrace", threadId=stopped["threadId"])
    assert [frame["name"].rpartition(".")[2] for frame in frames["stackFrames"]] == [
        "fail",
        "work",
        "[caused by: KeyError] fail",
    ]
    assert frames["stackFrames"][2]["line"] == line('{}["lost"]')
    info = editor.request("exceptionInfo", threadId=stopped["threadId"])
    assert (info["exceptionId"], info["details"]["message"]) == ("ValueError", "no such thing")
    assert "KeyError: 'lost'" in info["details"]["stackTrace"]
    editor.request("next", threadId=stopped["threadId"])
    lot.join()


def test_an_async_actor_goes_on_while_a_call_is_stepped(lot: Lot, program: ModuleType, client: Client) -> None:
    loop = asyncio.new_event_loop()
    lot.start(loop.run_forever, "AsyncIO Thread")
    actor = program.Actor()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    editor = client()
    editor.attach()
    breakpoints(editor, program, {"line": line("self.calls += 1")})
    first = call(actor.work(1))
    thread = editor.event("stopped")["threadId"]
    assert call(actor.ping()).result(SECONDS) == "pong"
    second = call(actor.work(10))
    inner = editor.event("stopped")["threadId"]
    assert inner != thread
    assert call(actor.ping()).result(SECONDS) == "pong"
    breakpoints(editor, program)
    editor.request("continue", threadId=inner)
    assert second.result(SECONDS) == 11
    lines = []
    for how in ("next", "stepIn", "stepOut"):
        editor.request(how, threadId=thread)
        editor.event("stopped", threadId=thread, reason="step")
        lines.append(editor.top(thread)["line"])
        assert call(actor.ping()).result(SECONDS) == "pong"
    assert lines == [line("value = await self.fetch"), line("await asyncio.sleep"), line("        return value")]
    editor.request("continue", threadId=thread)
    assert first.result(SECONDS) == 2
    loop.call_soon_threadsafe(loop.stop)
    lot.join()
    loop.close()


def test_a_breakpoint_on_the_line_of_a_step_stops_once(lot: Lot, program: ModuleType, client: Client) -> None:
    editor = client()
    editor.attach()
    breakpoints(editor, program, {"line": line("for step in")}, {"line": line("total += step")})
    results: Queue[Any] = Queue()
    lot.start(lambda: results.put(program.train("m")))
    thread = editor.event("stopped")["threadId"]
    seen = []
    for how in ("next", "next", "continue", "next", "continue"):
        editor.request(how, threadId=thread)
        event = editor.event("stopped")
        top = editor.top(thread)
        seen.append((event["reason"], top["line"], editor.locals(top["id"])["step"]["value"]))
    body, head = line("total += step"), line("for step in")
    assert seen == [
        ("step", body, "0"),
        ("step", head, "0"),
        ("breakpoint", body, "1"),
        ("step", head, "1"),
        ("breakpoint", body, "2"),
    ]
    editor.request("continue", threadId=thread)
    assert results.get(timeout=SECONDS)[0] == 6


def test_breakpoints_of_a_client_go_with_it_unless_another_has_them(
    lot: Lot, program: ModuleType, client: Client
) -> None:
    first, second = client(), client()
    first.attach()
    second.attach()
    for each in (first, second):
        assert breakpoints(each, program, {"line": line("result = total")})[0]["verified"]
    first.request("disconnect")
    results: Queue[Any] = Queue()
    lot.start(lambda: results.put(program.train("m")))
    thread = second.event("stopped")["threadId"]
    second.request("continue", threadId=thread)
    assert results.get(timeout=SECONDS)[0] == 6
    second.adapter.close()
    second.adapter._lane._thread.join(SECONDS)
    assert program.train("m")[0] == 6


def test_breakpoints_that_cannot_be_set_say_why(program: ModuleType, client: Client) -> None:
    editor = client()
    editor.attach()
    (point,) = breakpoints(editor, program, {"line": line("total += step"), "condition": "step =="})
    assert not point["verified"] and point["message"]
    body = editor.request("setBreakpoints", source={"path": "/no/such/file.py"}, breakpoints=[{"line": 3}])
    assert not body["breakpoints"][0]["verified"]
    body = editor.request("setFunctionBreakpoints", breakpoints=[{"name": "user_program.train"}])
    assert body["breakpoints"][0]["verified"]


def test_paths_are_mapped_both_ways(lot: Lot, program: ModuleType, client: Client) -> None:
    assert program.__file__ is not None
    editor = client()
    editor.attach(pathMappings=[{"localRoot": "/home/me/code", "remoteRoot": os.path.dirname(program.__file__)}])
    source = {"path": "/home/me/code/user_program.py"}
    body = editor.request("setBreakpoints", source=source, breakpoints=[{"line": line("result = total")}])
    assert body["breakpoints"][0]["verified"]
    lot.start(lambda: program.train("m"))
    thread = editor.event("stopped")["threadId"]
    assert editor.top(thread)["source"]["path"] == source["path"]
    assert editor.request("source", source=source)["content"] == PROGRAM
    editor.request("continue", threadId=thread)


def test_only_one_stop_is_shown_when_asked_for(lot: Lot, client: Client) -> None:
    lot.start(lot.hit, "first")
    chosen = lot.stop()
    lot.start(lot.hit, "second")
    lot.wait(lambda: len(lot.stops.records()) == 2)
    editor = client(only=chosen.id)
    editor.attach()
    assert editor.event("stopped")["threadId"] == chosen.thread_id
    assert [thread["name"] for thread in editor.request("threads")["threads"]] == ["first"]
    assert editor.pending("stopped") == []
    assert [record.attached for record in lot.stops.records()] == [1, 0]


def test_a_running_thread_is_paused_at_its_next_line(lot: Lot, program: ModuleType, client: Client) -> None:
    flag = threading.Event()
    traces: Queue[Any] = Queue()

    def work() -> None:
        program.spin(flag)
        traces.put((sys.gettrace(), sys._getframe().f_trace))

    lot.start(work, "spinner")
    editor = client()
    editor.attach()
    thread = next(each["id"] for each in editor.request("threads")["threads"] if each["name"] == "spinner")
    editor.request("pause", threadId=thread)
    stopped = editor.event("stopped")
    assert (stopped["reason"], stopped["threadId"]) == ("pause", thread)
    assert editor.top(thread)["name"] in ("spin", "Event.is_set")
    editor.request("stepOut" if editor.top(thread)["name"] != "spin" else "next", threadId=thread)
    editor.event("stopped", reason="step")
    flag.set()
    editor.request("continue", threadId=thread)
    assert traces.get(timeout=SECONDS) == (None, None)


def test_text_without_a_file_is_sent(lot: Lot, client: Client) -> None:
    import linecache

    text = "def made(hit):\n    hit()\n"
    linecache.cache["<made here>"] = (len(text), None, text.splitlines(True), "<made here>")
    names: dict[str, Any] = {}
    exec(compile(text, "<made here>", "exec"), names)
    editor = client()
    editor.attach()
    lot.start(lambda: names["made"](lot.hit))
    source = editor.top(editor.event("stopped")["threadId"])["source"]
    assert editor.request("source", source=source, sourceReference=source["sourceReference"])["content"] == text


def test_bad_requests_get_one_line(lot: Lot, client: Client) -> None:
    editor = client()
    editor.adapter.handle({"nonsense": True})
    editor.attach()
    for command, arguments in [
        ("goto", {}),
        ("stackTrace", {"threadId": 77}),
        ("variables", {}),
        ("evaluate", {"expression": "1"}),
        ("setBreakpoints", {"source": {"path": "/x.py"}, "breakpoints": [{"line": "seven"}]}),
        ("exceptionInfo", {"threadId": 1}),
        ("pause", {"threadId": 99}),
        ("source", {"source": {"path": "/no/such"}}),
    ]:
        with pytest.raises(Refusal, match=r".+"):
            editor.request(command, **arguments)
    assert editor.request("threads")["threads"]


def test_the_end_of_the_process_is_told(lot: Lot, client: Client) -> None:
    from devkit.debug.inworker import adapter

    editor = client()
    editor.attach()
    adapter._finish()
    editor.event("terminated")


def test_handle_returns_at_once(lot: Lot, client: Client) -> None:
    editor = client()
    editor.attach()
    lot.start(lot.hit)
    frame = editor.top(editor.event("stopped")["threadId"])["id"]
    waiting = editor.send("evaluate", expression="__import__('time').sleep(2)", frameId=frame, timeout=0.5)
    before = time.monotonic()
    editor.send("threads")
    assert time.monotonic() - before < SECONDS / 2
    with pytest.raises(Refusal, match="no answer"):
        editor.answer(waiting)
