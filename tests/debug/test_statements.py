"""What is told of the line at which a thread or a coroutine stands: its statement, and the values that it looks at."""

from __future__ import annotations

import ast
import asyncio
import multiprocessing
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import pytest

from devkit.debug.inworker import counterparts, expressions, locks, one_moment, polls, primitives, statements
from devkit.debug.inworker.expressions import own_text
from devkit.debug.inworker.words import ASLEEP
from tests.debug.conftest import eventually

Document = dict[str, Any]


class Server:
    patience = 30.0

    def __init__(self) -> None:
        self.version = 1
        self.changed = threading.Condition()
        self.slots = {"gpu0": 3, "gpu1": 4}
        self.items: dict[str, list[int]] = {"train": [], "eval": []}
        self.api_key = "sk-hidden"
        self.open = threading.Event()
        self.asked = 0

    @property
    def free(self) -> int:
        self.asked += 1
        return self.asked

    def fetch(self, wanted: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.version >= wanted, timeout=self.patience)

    def collect(self, split: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.items[split], timeout=self.patience)

    def serve(self, name: str) -> None:
        self.take(self.slots[name], self.api_key)

    def take(self, room: int, key: str) -> None:
        rows = [1] * 40
        while len(rows) > room:
            if self.open.wait((self.free and None) or 30):
                return


async def drains(pending: list[int], seconds: float) -> None:
    while pending:
        await asyncio.sleep(seconds)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.version = 99
    server.open.set()
    with server.changed:
        server.changed.notify_all()


def lines_of(thread: threading.Thread, text: str) -> list[Document]:
    """Once its innermost line has this in it."""

    def look() -> list[Document] | None:
        found = statements.describe(*locks.innermost("devkit"))
        lines = next((each["lines"] for each in found if each["thread"] == thread.name), [])
        return lines if lines and text in lines[0]["text"] else None

    result: list[Document] = eventually(look, text, 20)
    for line in result:
        (line["loop"] or {}).pop("whole", None)  # another one in each process
    return result


def started(call: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def test_a_predicate_is_shown_with_what_it_looks_at(server: Server) -> None:
    [line, *_] = lines_of(started(server.fetch, 118), "wait_for")
    assert line["text"] == "self.changed.wait_for(lambda: self.version >= wanted, timeout=self.patience)"
    assert line["values"] == {"self.patience": "30.0", "self.version": "1", "wanted": "118"}
    assert line["at"]["function"].endswith("Server.fetch") and line["loop"] is None


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        ("flying >= limit", False), ("len(rows) < limit", False), ("flying < limit and not closed", True),
        ("closed or flying", False), ("rows", None), ("closed or rows", None), ("rows[0] == 1", True),
        ("limit.real > 1", None), ("ready()", None), ("not closed", True), ("0 < flying < limit", None),
    ],
)  # fmt: skip
def test_whether_a_condition_holds_is_told_of_numbers_flags_and_sizes(test: str, wanted: bool | None) -> None:
    def frame() -> Any:
        flying, limit, closed, rows = 0, 2, False, [1, 2]
        yield flying, limit, closed, rows

    held = frame()
    next(held)
    assert expressions.holds(ast.parse(test, mode="eval").body, held.gi_frame) is wanted


def test_a_wait_in_a_loop_whose_condition_holds_no_more_says_so(server: Server) -> None:
    def acquires() -> None:
        flying, limit = 2, 2
        while flying >= limit:
            flying = 0
            server.open.wait(30)

    [line, *_] = lines_of(started(acquires), "server.open.wait(30)")
    assert line["loop"] == {
        "loop": "while flying >= limit", "values": {"flying": "0", "limit": "2"}, "over": True,
    }  # fmt: skip


def test_a_loop_that_passes_over_what_fails_says_which_errors(server: Server) -> None:
    def ready() -> bool:
        if server.open.is_set():  # the test is over
            return True
        raise ConnectionError

    def waits() -> None:
        while True:
            try:
                if ready():
                    break
            except OSError:
                pass
            server.open.wait(30)

    [line, *_] = lines_of(started(waits), "server.open.wait(30)")
    passed = {"errors": "OSError", "line": waits.__code__.co_firstlineno + 5}
    assert line["loop"] == {"loop": "until ready()", "values": {}, "passes_over": passed}


class Quota:
    def __init__(self) -> None:
        self.submitted, self.limit, self.name = 11, 4, "q"
        self.api_key = "hunter2hunter2"

    def left(self) -> int:
        return self.limit - self.submitted if self.api_key else 0

    @property
    def is_used(self) -> bool:
        return self.submitted > self.limit


def waits_for_room(quota: Quota, gate: threading.Event) -> None:
    if quota.is_used:
        while quota.left() <= 0:
            gate.wait(30)


def test_what_a_method_in_a_condition_reads_is_shown() -> None:
    quota, gate = Quota(), threading.Event()
    [line, *_] = lines_of(started(waits_for_room, quota, gate), "gate.wait")
    read = {"quota.limit": "4", "quota.submitted": "11"}
    assert line["loop"]["values"] == {**read, "quota.api_key": "<redacted>"}, line
    assert line["under"] == {"if": "quota.is_used", "values": {"quota.submitted": "11", "quota.limit": "4"}}
    quota.limit = 99
    gate.set()


def test_a_loop_is_around_its_own_condition(server: Server) -> None:
    def spins() -> None:
        while len(server.slots) < 9 and not server.open.wait(30):
            pass

    [line, *_] = lines_of(started(spins), "server.open.wait(30)")
    assert line["loop"]["loop"] == "while len(server.slots) < 9 and (not server.open.wait(30))"


def test_the_exception_that_a_thread_is_in_the_handler_of(server: Server) -> None:
    def retries() -> None:
        while True:
            try:
                server.slots["gpu7"] += 1
            except KeyError:
                server.open.wait(30)
                return

    [line, *_] = lines_of(started(retries), "server.open.wait(30)")
    assert line["handles"]["said"] == "KeyError: 'gpu7'" and line["handles"]["at"]["function"].endswith("retries")
    assert line["handles"]["at"]["line"] == line["at"]["line"] - 2
    [line, *_] = lines_of(started(server.fetch, 118), "wait_for")
    assert line["handles"] is None


def test_who_called_it_and_the_loop_around_it(server: Server) -> None:
    [line, caller, *_] = lines_of(started(server.serve, "gpu1"), "self.open.wait")
    assert line["loop"] == {
        "loop": "while len(rows) > room",
        "values": {"rows": "list of 40: [1, 1, ..., 1]", "room": "4"},
    }
    assert caller["text"] == "self.take(self.slots[name], self.api_key)"
    assert caller["values"] == {
        "self.slots[name]": "4",
        "self.api_key": "<redacted>",
        "self.slots": "{'gpu0': 3, 'gpu1': 4}",
        "name": "'gpu1'",
    }
    assert server.asked <= 1, "a property is code, and is not run for this"


def test_a_predicate_that_holds_while_its_waiter_waits_is_seen(server: Server) -> None:
    """`notify` has woken another one."""
    thread = started(server.collect, "train")
    [line, *_] = lines_of(thread, "self.changed.wait_for")
    assert not line["met"]
    server.items["train"].append(1)
    [line, *_] = lines_of(thread, "self.changed.wait_for")
    assert line["met"]


def test_a_coroutine_has_a_line_too() -> None:
    found: list[list[Document]] = []

    async def main() -> None:
        task = asyncio.create_task(drains([1, 2], 30.0), name="drain")
        await asyncio.sleep(0)
        every = statements.describe(*locks.innermost("devkit"))
        found.extend(each["lines"] for each in every if each["thread"] == "task drain")
        task.cancel()

    asyncio.run(main())
    [[line]] = found
    assert (line["text"], line["values"]) == ("await asyncio.sleep(seconds)", {"seconds": "30.0"})
    assert (line["loop"]["loop"], line["loop"]["values"]) == ("while pending", {"pending": "[1, 2]"})


def test_many_threads_do_not_hide_a_coroutine() -> None:
    done = threading.Event()

    def waits() -> None:
        done.wait()

    threads = [threading.Thread(target=waits, daemon=True) for _ in range(statements.MOST + 1)]
    for each in threads:
        each.start()
    try:
        test_a_coroutine_has_a_line_too()
    finally:
        done.set()
        for each in threads:
            each.join()


def test_of_a_head_only_the_head() -> None:
    tree_of = statements.statement
    with open(__file__) as file:
        lines = file.read().splitlines()
    number = next(at for at, line in enumerate(lines, 1) if line.strip() == "while pending:")
    import ast

    found = tree_of(__file__, number - 1, number)
    assert found is not None and ast.unparse(found).strip() == "while pending:"
    assert tree_of("/nowhere.py", 1, 1) is None


def test_arrays_by_their_shape_and_nothing_of_what_says_nothing() -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    assert expressions.told(torch.zeros(3, 4)) == "tensor [3, 4] float32"
    assert expressions.told(torch.tensor(0.5)) == "tensor 0.5"
    assert expressions.told(numpy.arange(3)) == "array [3] int64"
    assert expressions.told(numpy.zeros((2, 3))) == "array [2, 3] float64"
    assert expressions.told(numpy.ones(8)) == "array [8] float64, each 1", "all rewards of a group that is dropped"
    assert expressions.told(torch.full((4,), 0.5)) == "tensor [4] float32, each 0.5"
    assert expressions.told(numpy.full(4, numpy.nan)) == "array [4] float64, each nan"
    assert expressions.told(numpy.array(["a", "a"])) == "array [2] <U1"
    assert expressions.told(threading.Event()) == "<Event not set>"
    assert expressions.told(threading.Condition()) is None, "its class alone"
    assert expressions.told(Server()) is None


def test_which_lines_could_end_a_wait() -> None:
    import ast

    size, tree = expressions.tree_of(__file__)
    assert tree is not None and size
    waits = {ast.unparse(each): each for each in ast.walk(tree) if isinstance(each, ast.Expr | ast.Assign)}
    condition = next(each for text, each in waits.items() if text.startswith("self.changed.wait_for"))
    assert isinstance(condition, ast.stmt)
    here = sys._getframe()
    found = counterparts.of(condition, here, {})
    assert found is not None and (found["what"], found["how"]) == ("self.changed", "notified")
    assert [each["function"] for each in found["at"]] == ["server"], "the fixture"
    waits_for_any = counterparts.of(ast.parse("self.changed.wait()").body[0], here, {})
    assert waits_for_any is not None and waits_for_any["how"] == "notified", "it is no event"
    none = counterparts.of(ast.parse("self.never.wait()").body[0], here, {})
    assert none == {"what": "self.never", "how": "set", "at": [], "undone": []}
    for text in ("ray.get(references)", "print(self.never)", "done, _ = ray.wait(them)", "await f(self.never)"):
        assert counterparts.of(ast.parse(text).body[0], here, {}) is None


class Buffer:
    def __init__(self) -> None:
        self.items, self.capacity, self.filled = [1, 2], 2, threading.Event()

    def add(self, samples: list[int]) -> None:
        room = self.capacity - len(self.items)
        self.items.extend(samples[:room])
        if room > 0 and len(self.items) == self.capacity:
            self.filled.set()

    def sample(self) -> None:
        self.filled.clear()
        self.filled.wait()

    def drain(self, force: bool) -> None:
        if not force:
            return
        for _ in range(2):
            self.filled.set()


def test_the_condition_that_an_end_is_under_with_what_self_has_and_where_an_event_is_cleared() -> None:
    buffer = Buffer()
    [line, *_] = lines_of(started(buffer.sample), "self.filled.wait")
    ends = line["ends"]
    assert [(each["function"], each["under"], each["values"]) for each in ends["at"]] == [
        (
            "Buffer.add",
            "room > 0 and len(self.items) == self.capacity",
            {"self.items": "[1, 2]", "self.capacity": "2"},
        ),
        ("Buffer.drain", "", {}),
    ]
    assert ends["at"][1]["unless"] == "not force", "as it stands there, and not what it comes to"
    assert [each["function"] for each in ends["undone"]] == ["Buffer.sample"]
    buffer.drain(force=True)


class Manager:
    def __init__(self) -> None:
        self.futures: dict[int, asyncio.Future[str]] = {}

    async def generate(self, rid: int) -> str:
        future = self.futures[rid] = asyncio.get_running_loop().create_future()
        return await future

    async def answers(self) -> None:
        for rid, text in {"7": "seven"}.items():
            answer = self.futures.get(rid)  # type: ignore[call-overload]
            if answer is not None:
                answer.set_result(text)
            await asyncio.sleep(30)


def test_a_future_is_completed_under_any_name_and_its_condition_is_looked_at_where_it_is_under_way() -> None:
    found: dict[str, Document] = {}
    told: list[Document] = []

    async def main() -> None:
        manager = Manager()
        tasks = [asyncio.create_task(manager.generate(number), name=f"ask {number}") for number in (7, 8)]
        tasks.append(asyncio.create_task(manager.answers(), name="answers"))
        await asyncio.sleep(0)
        frames, names = locks.innermost("devkit")
        found.update({each["thread"]: each["lines"][0] for each in statements.describe(frames, names)})
        told.extend(each for each in primitives.describe(frames, names) if each["thread"].startswith("task ask"))
        for task in tasks:
            task.cancel()

    asyncio.run(main())
    ends = found["task ask 7"]["ends"]
    assert (ends["what"], ends["how"]) == ("future", "completed")
    at = next(each for each in ends["at"] if each["function"] == "Manager.answers")
    assert at["under"] == "answer is not None" and at["values"] == {"answer": "None"}
    assert found["task answers"]["locals"] == {"answer": "None", "text": "'seven'", "rid": "'7'"}
    assert [(each["what"], each["count"]) for each in told] == [("an asyncio.Future that is not done", 2)]


class Registry:
    def __init__(self) -> None:
        self.added, self.free, self.load = threading.Event(), threading.Event(), {"a": 0}
        self.added_up = threading.Event()
        self.frame: FrameType | None = None

    def handle(self, payload: dict[str, str]) -> None:
        if payload["url"] not in self.load:
            self.added.set()
            return
        self.frame = sys._getframe()
        self.free.wait()

    def put(self, size: int) -> None:
        if size > 32:
            raise ValueError
        self.added_up.set()

    def acquire(self) -> FrameType:
        return sys._getframe()


def test_values_of_a_call_that_is_at_another_branch_are_not_those_of_the_condition() -> None:
    registry = Registry()
    thread = threading.Thread(target=registry.handle, args=({"url": "a"},))
    thread.start()
    try:
        there = eventually(lambda: registry.frame)
        waits = ast.parse("self.added.wait()").body[0]
        ends = counterparts.of(waits, registry.acquire(), {"Registry.handle": there})
    finally:
        registry.free.set()
        thread.join()
    assert ends is not None
    [at] = ends["at"]
    assert (at["under"], at["values"]) == ('payload["url"] not in self.load', {"self.load": "{'a': 0}"})


def test_a_condition_that_must_not_hold_is_quoted_as_it_stands() -> None:
    ends = counterparts.of(ast.parse("self.added_up.wait()").body[0], Registry().acquire(), {})
    assert ends is not None
    [at] = ends["at"]
    assert (at["function"], at["under"], at["unless"]) == ("Registry.put", "", "size > 32")


TEXTS = """\
found = re.search(r"^\\w$", text)
with self.lock, open("ä", "r") as file: pass
for each in ("a", "b"):  # all
    pass
rows = ask(
    "a",
    b,
)
rows = ask(  # twice
    "a")
"""


def test_what_is_quoted_is_the_text_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(TEXTS)
    found = [own_text(each, str(file)) for each in ast.parse(TEXTS).body]
    assert found == [
        'found = re.search(r"^\\w$", text)',
        'with self.lock, open("ä", "r") as file:',
        'for each in ("a", "b"):',
        'rows = ask("a", b)',
        "rows = ask('a')",
    ]
    assert own_text(ast.parse("a['b']").body[0], "gone.py") == "a['b']"


def test_what_a_thread_of_an_executor_is_at_is_no_plain_future() -> None:
    ready, told = threading.Event(), []

    async def main() -> None:
        async def loads() -> None:
            await asyncio.get_running_loop().run_in_executor(None, ready.wait)

        task = asyncio.create_task(loads(), name="loads")
        while not task.done():
            await asyncio.sleep(0)
            found = [each for each in primitives.describe(*locks.innermost("devkit")) if each["thread"] == "task loads"]
            if found and "computed" in found[0]["what"]:
                told.append(found[0]["what"])
                ready.set()
                await task

    asyncio.run(main())
    assert told == ["a concurrent.futures.Future that is being computed"]


def asks(rows: list[int], wanted: int, gate: threading.Event) -> None:
    ray: Any = gate
    while len(rows) < wanted:
        for row in rows:
            if gate.wait(30 + row):
                return
            ray.get(row)


def test_the_loop_that_asks_ray_is_told_behind_an_inner_one() -> None:
    gate = threading.Event()
    [line, *_] = lines_of(started(asks, [1, 2], 9, gate), "if gate.wait")
    asked = {"loop": "while len(rows) < wanted", "values": {"rows": "[1, 2]", "wanted": "9"}}
    assert line["asking"] == {**asked, "kept": line["asking"]["kept"]}
    at = {"row": "1 (no. 1 of 2)", "rows": "[1, 2]"}
    assert line["loop"] == {"loop": "for row in rows", "values": at, "outer": [asked]}
    gate.set()
    [other, *_] = lines_of(started(receives, {"a": 30}, threading.Event()), "ready.wait")
    assert other["asking"] is None


class Stile:
    """Stands for Ray: who asks it waits until the test lets it go on."""

    def __init__(self) -> None:
        self.asked, self.answers = queue.SimpleQueue[int](), queue.SimpleQueue[bool]()

    def get(self, part: int) -> bool:
        self.asked.put(part)
        return self.answers.get()


class Rollout:
    def __init__(self, stile: Stile) -> None:
        self.stile, self.turns, self.version = stile, 0, 3

    def run(self, changes: str) -> None:
        ray, found = self.stile, numpy.zeros(4)
        while True:
            self.turns += 1
            for part in (1, 2):
                if not ray.get(part):
                    return
            self.version = self.turns if changes == "attribute" else self.version
            found = found + 1 if changes == "array" else found


@pytest.mark.parametrize(("changes", "same"), [("nothing", True), ("attribute", False), ("array", False)])
def test_a_loop_without_end_is_told_by_what_its_function_has(changes: str, same: bool) -> None:
    stile = Stile()
    thread = started(Rollout(stile).run, changes)
    found: list[Document | None] = []
    for part in (1, 2, 1, 2, 1):
        assert stile.asked.get(timeout=20) == part
        frame = sys._current_frames()[thread.ident or 0]
        found.append(polls.asking(next(each for each in polls.outwards(frame) if each.f_code.co_name == "run")))
        stile.answers.put(len(found) < 5)
    assert [each and each["loop"] for each in found] == ["while True"] * 5
    assert (len({each["kept"] for each in found if each}) == 1) == same, found


def until(stile: Stile, deadline: float) -> None:
    ray: Any = stile
    while time.monotonic() < deadline:
        ray.get(0)


def test_a_loop_that_the_clock_ends_asks_for_nothing() -> None:
    stile = Stile()
    thread = started(until, stile, time.monotonic() + 60)
    assert stile.asked.get(timeout=20) == 0
    frame = sys._current_frames()[thread.ident or 0]
    assert polls.asking(next(each for each in polls.outwards(frame) if each.f_code is until.__code__)) is None


def receives(shapes: dict[str, int], ready: threading.Event) -> None:
    for name, size in shapes.items():
        assert name
        ready.wait(size)


def test_where_a_loop_over_something_is(server: Server) -> None:
    [line, *_] = lines_of(started(receives, {"lm_head.weight": 30}, server.open), "ready.wait")
    assert line["loop"] == {
        "loop": "for name, size in shapes.items()",
        "values": {"name": "'lm_head.weight'", "size": "30", "shapes": "{'lm_head.weight': 30}"},
    }


class Rollouter:
    def __init__(self) -> None:
        self.stale, self.limit = 24, 24

    async def run(self) -> None:
        while True:
            if self.stale >= self.limit:
                await asyncio.sleep(30)
                continue
            self.stale += 1


def test_the_condition_that_a_line_is_under() -> None:
    found: list[list[Document]] = []
    told: list[Document] = []

    async def main() -> None:
        task = asyncio.create_task(Rollouter().run(), name="rollouter")
        await asyncio.sleep(0)
        frames, names = locks.innermost("devkit")
        found.extend(each["lines"] for each in statements.describe(frames, names) if each["thread"] == "task rollouter")
        told.extend(each for each in primitives.describe(frames, names) if each["thread"] == "task rollouter")
        task.cancel()

    asyncio.run(main())
    [[line]] = found
    assert line["under"] == {"if": "self.stale >= self.limit", "values": {"self.stale": "24", "self.limit": "24"}}
    assert line["loop"] is None and [each["what"] for each in told] == [ASLEEP]


class Router:
    """With a condition of its own, by the same name as that of `Feed`."""

    def __init__(self) -> None:
        self.news = threading.Condition()

    def waits(self) -> FrameType:
        return sys._getframe()

    def update(self) -> None:
        with self.news:
            self.news.notify_all()


class Feed:
    def __init__(self) -> None:
        self.news = threading.Condition()

    def put(self) -> None:
        with self.news:
            self.news.notify()


class Hands:
    def __init__(self, news: threading.Condition) -> None:
        self.news = news

    def on(self) -> None:
        with self.news:
            self.news.notify()


def test_a_condition_of_another_class_that_makes_its_own_is_another_one() -> None:
    frame = Router().waits()
    waits = ast.parse("self.news.wait()").body[0]
    found = counterparts.of(waits, frame, {})
    assert found is not None and [each["function"] for each in found["at"]] == ["Router.update", "Hands.on"]


def test_a_line_that_a_signal_has_interrupted_has_not_called_its_handler() -> None:
    seen: list[list[Document]] = []

    def on_preempt(_number: int, _frame: FrameType | None) -> None:
        frames = {1: sys._getframe()}
        seen.extend(
            each["lines"] for each in statements.describe(frames, {1: "MainThread"}) if each["thread"] == "MainThread"
        )

    before = signal.signal(signal.SIGUSR1, on_preempt)
    try:
        signal.raise_signal(signal.SIGUSR1)
        on_preempt(int(signal.SIGUSR1), None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [lines[0].get("signal") for lines in seen] == ["SIGUSR1", None]


def test_a_handler_that_something_wraps_has_interrupted_a_line_all_the_same() -> None:
    """As Ray wraps the methods of actors."""
    seen: list[str | None] = []

    def on_preempt(_number: int, _frame: FrameType | None) -> None:
        frames = {1: sys._getframe()}
        seen.extend(each["lines"][0].get("signal") for each in statements.describe(frames, {}) if each["lines"])

    span: dict[str, Any] = {"method": on_preempt}
    exec(compile("def wrapper(*given): return method(*given)", numpy.__file__, "exec"), span)
    before = signal.signal(signal.SIGUSR1, span["wrapper"])
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["SIGUSR1"]


def test_a_variable_of_a_comprehension_that_is_over_is_not_what_the_frame_has_by_that_name() -> None:
    """A loop has left another one before, which on Python 3.12 the frame has again when the comprehension is over."""
    seen: list[dict[str, str]] = []

    def look(number: int = 0) -> int:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name not in ("starts", "<listcomp>"):
            frame = frame.f_back
        assert frame is not None
        seen.append(statements._line(frame)["values"])
        return number

    def starts() -> int:
        for worker in ("killed",):
            len(worker)
        workers, steps = [4, 5], 12
        return look(len([worker + steps for worker in workers])) + len([look(worker * steps) for worker in workers])

    starts()
    over, *inside = seen
    assert over == {"workers": "[4, 5]", "steps": "12"}
    assert [each["worker"] for each in inside] == ["4", "5"]


def runs_in_pairs(stop: threading.Event) -> None:
    """What its inner function is given is always what its loop is at."""
    while not stop.is_set():
        for rule in range(50):
            is_given(rule)


def is_given(given: int) -> int:
    total = 0
    for _ in range(3):
        total += given
    return total


def test_values_of_a_thread_that_runs_are_of_one_moment() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=runs_in_pairs, args=(stop,), name="runs", daemon=True)
    thread.start()
    pairs = []
    try:
        for _ in range(60):
            found = statements.describe(*locks.innermost("devkit"))
            lines = next((each["lines"] for each in found if each["thread"] == "runs"), [])
            if len(lines) > 1 and lines[0].get("locals") and lines[1]["loop"]:  # else it ran on
                pairs.append((lines[0]["locals"] | lines[0]["values"], lines[1]["loop"]["values"]))
    finally:
        stop.set()
        thread.join(30)
    seen = [(inner["given"], loop["rule"].split()[0]) for inner, loop in pairs if "given" in inner and "rule" in loop]
    assert seen and all(inner == outer for inner, outer in seen), seen


def test_of_a_thread_that_goes_on_at_each_look_the_text_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(one_moment, "_computed", lambda ident: next(ticks))
    monkeypatch.setattr(one_moment, "_place", lambda frame: [(next(ticks), 0)])
    wait, count = threading.Event(), 3

    def waits(count: int) -> None:
        while count:
            wait.wait(30)
            count -= 3

    thread = threading.Thread(target=waits, args=(count,), name="waits")
    thread.start()
    line = lines_of(thread, "wait.wait")[0]
    wait.set()
    thread.join(30)
    assert (
        line["text"] == "wait.wait(30)"
        and line["values"] == {}
        and line["loop"]
        == {
            "loop": "while count",
            "values": {},
        }
    ), line


def test_frames_that_a_child_has_of_its_parent_are_not_where_it_is() -> None:
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def works() -> None:
        frames = {1: sys._getframe()}
        [own] = [each for each in statements.describe(frames, {1: "MainThread"}) if each["thread"] == "MainThread"]
        said.put([line["at"]["function"].rpartition(".")[2] for line in own["lines"]])

    def starts() -> None:
        for child in [context.Process(target=works)]:
            child.start()
            child.join()

    starts()
    assert said.get() == ["works"]


class Writer:
    """Which a signal asks to write what it has, while it may be writing."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.left = 3
        self.seen: list[list[Document]] = []

    def append(self) -> None:
        with self.mutex:
            self.write()

    def write(self) -> None:
        signal.raise_signal(signal.SIGUSR1)  # @held

    def on_preempt(self, _number: int, _frame: FrameType | None) -> None:
        self.flush()

    def flush(self) -> None:
        self.left -= 1
        if self.left:
            signal.raise_signal(signal.SIGUSR1)
        else:
            self.waits()

    def waits(self) -> None:
        self.mutex.acquire()


def test_of_nested_handlers_the_one_that_interrupted_the_holder_of_the_lock_counts() -> None:
    buffer, mine = Writer(), threading.get_ident()

    def looks() -> None:
        def at() -> bool:
            frame = sys._current_frames()[mine]
            return frame.f_code.co_name == "waits" and locks.awaited(frame) is not None

        eventually(at)
        names = {mine: "MainThread"}
        found = statements.describe({mine: sys._current_frames()[mine]}, names)
        buffer.seen += [each["lines"] for each in found if each["thread"] == "MainThread"]
        buffer.mutex.release()

    before = signal.signal(signal.SIGUSR1, buffer.on_preempt)
    looker = threading.Thread(target=looks)
    try:
        looker.start()
        buffer.append()
    finally:
        looker.join()
        signal.signal(signal.SIGUSR1, before)
    [lines] = buffer.seen
    signals = [(line.get("signal"), line["at"]["function"].rpartition(".")[2]) for line in lines]
    assert signals == [(None, "waits"), (None, "flush"), ("SIGUSR1 (2 more since)", "on_preempt"), (None, "write")]
