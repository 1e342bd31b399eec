"""What is said of a crash beside its frames: what was dropped, what nobody asked for, what has changed since."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.clue_lines import clues_of
from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import clues, misfits
from devkit.debug.inworker.clues import Failure
from tests.debug.conftest import frozen
from tests.debug.hub_fake import printed
from tests.debug.test_snapshot import crash_of, take


@pytest.fixture(scope="module", autouse=True)
def _what_was_there() -> Iterator[None]:
    """Frozen, so that it isn't looked through before each test."""
    gc.collect()
    with pytest.MonkeyPatch.context() as patch, frozen(patch):
        yield


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests(_what_was_there: None) -> None:
    gc.collect()


def told(error: BaseException, **facts: Any) -> dict[str, Any]:
    return clues.found(Failure(error, facts.pop("kind", "actor"), **facts))


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


# ---- a finally that drops


class Loader:
    def load(self, name: str) -> Any:
        try:
            return {"a": 1}[name]
        finally:
            return None  # noqa: B012, SIM107

    def retry(self) -> None:
        for number in range(2):
            try:
                int("x")
            finally:
                for _ in range(3):
                    break
                if number:
                    continue  # noqa: B012

    def careful(self) -> int:
        try:
            return int("1")
        finally:
            for _ in range(3):
                break

    def run(self) -> int:
        return len(self.load("b"))

    def other(self) -> None:
        raise ValueError(self.careful())


def test_a_finally_that_drops_what_is_raised_is_named_where_the_failing_code_calls_it() -> None:
    [line] = told(crash_of(Loader().run))["dropped"]
    assert line.startswith("load has a `return` in a `finally`, at test_clues.py:") and line.endswith("what is raised")
    assert "dropped" not in told(crash_of(Loader().run), light=True)
    [line] = told(crash_of(Loader().retry))["dropped"]
    assert line.startswith("retry has a `continue` in a `finally`")
    assert "dropped" not in told(crash_of(Loader().other))


# ---- what nobody asked for


def test_a_task_in_the_background_that_failed_and_that_nobody_awaits_is_told() -> None:
    async def fill() -> None:
        raise KeyError("missing")

    async def serve() -> None:
        for task in await started():
            raise IndexError(task)

    async def started() -> list[str]:
        tasks.extend(asyncio.create_task(fill()) for _ in range(2))
        await asyncio.wait(tasks)
        tasks[1].exception()
        return [tasks[0].get_name()]

    tasks: list[asyncio.Task[None]] = []

    document = take(crash_of(asyncio.run, serve()), kind="actor")
    [line] = document["unasked"]
    assert line.startswith("a task of asyncio has failed by KeyError: 'missing' at test_clues.py:")
    assert line.endswith(".fill, and nobody had asked for that")
    assert line in printed(crash_page(document, [], document["time"]))


class Engine:
    """Its loop ends by an error, of which a callback tells who waits; so do the requests that come later."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []
        self.background: asyncio.Task[None] | None = None
        self.pair = [1, 2]

    async def loop(self) -> None:
        await asyncio.sleep(0)
        self.pair[321] += 1  # @background

    def ended(self, task: asyncio.Task[None]) -> None:
        task.exception()
        for each in self.waiting:
            each.set_exception(RuntimeError("Background loop is not running."))

    async def generate(self) -> int:
        self.background = asyncio.create_task(self.loop())
        self.background.add_done_callback(self.ended)
        done = asyncio.get_running_loop().create_future()
        self.waiting.append(done)
        return await done


def test_a_task_of_self_that_had_failed_comes_first_though_somebody_has_asked_it_for_its_error() -> None:
    document = take(crash_of(asyncio.run, Engine().generate()), kind="actor")
    [line] = document["failed"]
    at = f"test_clues.py:{line_of('background')} in Engine.loop"
    assert line == f"`self.background`, a task of asyncio, has failed by IndexError: list index out of range at {at}"
    assert "unasked" not in document
    assert next(iter(clues_of({**document, "way": "x"}))) == line
    assert line in printed(crash_page(document, [], document["time"]))


def test_a_future_in_a_variable_that_had_failed_is_named() -> None:
    def score(number: int) -> int:
        raise KeyError(number)

    def mean() -> float:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(score, 7)
        return int(future.cancelled()) / 0

    document = told(crash_of(mean))
    [line] = document["failed"]
    assert line.startswith("`future`, a future of a pool, has failed by KeyError: 7 at test_clues.py:"), line
    assert "unasked" not in document


def test_others_that_failed_as_the_crash_did_are_more_of_it_and_no_other_matter() -> None:
    async def wait(number: int) -> None:
        await asyncio.sleep(0)
        raise KeyError(number)

    async def serve(many: int) -> None:
        await (await started(many))

    async def started(many: int) -> asyncio.Task[None]:
        kept.extend(asyncio.create_task(wait(number)) for number in range(many))
        await asyncio.wait(kept)
        return kept[0]

    async def drain(many: int) -> None:
        running = {asyncio.create_task(wait(number)) for number in range(many)}
        done, running = await asyncio.wait(running)
        running, done = done, running
        await running.pop()

    kept: list[asyncio.Task[None]] = []
    [line] = told(crash_of(asyncio.run, serve(4)))["unasked"]
    assert line.startswith("3 other tasks of asyncio failed likewise at test_clues.py:"), line
    kept.clear()
    [line] = told(crash_of(asyncio.run, serve(2)))["unasked"]
    assert line.startswith("another task of asyncio failed likewise at test_clues.py:"), line
    [line] = told(crash_of(asyncio.run, drain(4)))["failed"]
    assert line.startswith("one of `running` and 2 more have failed likewise at test_clues.py:"), line


def test_a_task_whose_error_is_the_crash_itself_is_no_news() -> None:
    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def fail() -> None:
        raise KeyError("missing")

    assert not told(crash_of(asyncio.run, serve())).keys() & {"unasked", "failed"}


def test_futures_of_a_pool_that_failed_and_whose_result_nobody_took_are_told() -> None:
    def score(number: int) -> int:
        raise KeyError(number)

    def mean() -> float:
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(score, 7) for _ in range(3)]
        return len([each for each in futures if each.cancelled()]) / 0

    [line] = told(crash_of(mean))["unasked"]
    assert line.startswith("3 futures have failed by KeyError: 7 at test_clues.py:"), line

    def taken() -> None:
        with ThreadPoolExecutor(1) as pool:
            future: Future[int] = pool.submit(score, 7)
        try:
            future.result()
        except KeyError:
            raise ValueError("no score") from None

    assert not told(crash_of(taken)).keys() & {"unasked", "failed"}


# ---- what has changed since


def test_variables_that_were_written_to_after_the_error_are_told() -> None:
    def step(batch: dict[str, Any]) -> None:
        size = 3
        try:
            batch["ids"][size]
        finally:
            batch.pop("ids")
            size = 0
        assert size

    def fine(batch: dict[str, Any]) -> None:
        try:
            batch["ids"][3]
        except IndexError:
            len(batch)
            raise

    [line] = told(crash_of(step, {"ids": [1]}))["changed"]
    assert (
        line.startswith("batch, size may have changed since the error: ") and ".step went on to test_clues.py:" in line
    )
    assert "changed" not in told(crash_of(fine, {"ids": [1]}))


def test_what_from_none_hides_is_told() -> None:
    def parse() -> None:
        try:
            int("x")
        except ValueError:
            raise KeyError("config") from None

    def chained() -> None:
        try:
            int("x")
        except ValueError as error:
            raise KeyError("config") from error

    hidden = told(crash_of(parse))["hidden"]
    assert hidden.startswith(
        "`from None` hides ValueError: invalid literal for int() with base 10: 'x' at test_clues.py:"
    )
    assert "hidden" not in told(crash_of(chained)) and "hidden" not in told(ValueError())


def share(number: int) -> float:
    return 10 / number


def test_where_the_process_of_a_pool_raised_it_is_told() -> None:
    def shares() -> None:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(share, [0])

    line = share.__code__.co_firstlineno + 1
    assert told(crash_of(shares))["remote"] == f"another process raised it, at test_clues.py:{line} in share"
    assert "remote" not in told(crash_of(share, 0))


def test_of_two_exceptions_of_a_group_none_is_said_to_be_in_the_other() -> None:
    def both() -> None:
        raise ExceptionGroup("two", [KeyError("a"), ValueError("b")])

    document = take(crash_of(both))
    page = printed(crash_page(document, [], document["time"]))
    assert page.index("ValueError: b") < page.index("and beside it") < page.index("KeyError: 'a'")
    assert page.count("one of those in") == 1


def test_an_error_of_cuda_may_be_of_an_earlier_line(monkeypatch: Any) -> None:
    error = RuntimeError("CUDA error: device-side assert triggered")
    monkeypatch.delenv(clues.BLOCKING, raising=False)
    assert told(error)["late"].startswith("CUDA may report it late")
    monkeypatch.setenv(clues.BLOCKING, "1")
    assert "late" not in told(error)


def test_a_clue_that_cannot_be_looked_for_costs_no_other(monkeypatch: Any, capsys: Any) -> None:
    def fails(_failure: Failure) -> str:
        raise RuntimeError("no look")

    monkeypatch.setattr(clues, "CLUES", (("bad", fails), ("good", lambda _failure: "seen")))
    assert told(ValueError("x")) == {"good": "seen"}
    assert "the clue 'bad' of a crash could not be looked for: RuntimeError('no look')" in capsys.readouterr().err


# ---- what did not fit


class Shelf:
    def __init__(self) -> None:
        self.kept = {f"policy-{number}": number for number in range(9)}
        self.by_step = {1: "a", 2: "b"}
        self.rows = [1, 2, 3]

    def named(self, name: str) -> int:
        return self.kept[name]

    def stepped(self, step: Any) -> str:
        return self.by_step[step]

    def row(self, at: int) -> int:
        return self.rows[at]


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        (Shelf.named, "policy_3", "`self.kept` has 9 keys, but not 'policy_3'; near it: 'policy-"),
        (
            Shelf.named,
            "zzz",
            "`self.kept` has 9 keys, but not 'zzz'; the last ones: 'policy-6', 'policy-7', 'policy-8'",
        ),
        (Shelf.stepped, "2", "`self.by_step` has 2 keys, and 2 as int among them, where '2' is str"),
        (Shelf.row, 7, "`self.rows` has 3 items, and `at` is 7"),
    ],
)
def test_a_key_or_an_index_that_is_not_there(call: Any, given: Any, said: str) -> None:
    with pytest.raises(LookupError) as caught:
        call(Shelf(), given)
    [line] = told(caught.value)["misfits"]
    assert line.startswith(said)


def test_a_row_without_the_key_of_a_comprehension() -> None:
    rows = [{"chosen": 1, "rejected": 2}] * 2 + [{"chosen": 1, "rejected_answer": 3}] + [{"rejected": 2}]

    def step(rows: list[dict[str, int]]) -> int:
        r = {"chosen": 0}  # another one of that name
        return len([r["rejected"] for r in rows]) + len(r)

    def total(rows: list[dict[str, int]]) -> int:
        return sum(r["rejected"] for r in [*rows]) if rows is None else sum(row["chosen"] for row in rows)

    for call, said in (
        (step, "`rows[2]` has 2 keys, but not 'rejected'; near it: 'rejected_answer'"),
        (total, "`rows[3]` has 1 key, but not 'chosen'; the last ones: 'rejected'"),
    ):
        with pytest.raises(KeyError) as caught:
            call(rows)
        assert told(caught.value)["misfits"] == [said]
    with pytest.raises(KeyError) as caught:
        step([*rows, {"chosen": 3}])
    assert told(caught.value)["misfits"] == [
        "`rows[2]` has 2 keys, but not 'rejected'; near it: 'rejected_answer'; so it is with 1 more of the 5"
    ]


def test_a_key_error_of_somebody_elses_making_says_nothing_of_this_lines_dictionaries() -> None:
    def looks(name: str) -> int:
        if Shelf().kept["policy-1"] == 1:
            raise KeyError(name)
        return 0

    with pytest.raises(KeyError) as caught:
        looks("nothing")
    assert "misfits" not in told(caught.value)


def test_a_file_that_is_read_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misfits, "SECONDS", 60.0)
    path = tmp_path / "step-8.json"
    with open(path, "w") as file:
        file.write('{"step": 8, "rows": [')
        file.flush()
        with pytest.raises(json.JSONDecodeError) as caught, open(path) as again:
            json.load(again)
        [line] = told(caught.value)["misfits"]
    assert line.startswith(f"the file that it read, {path}, had 21 bytes then, last written ")
    assert line.endswith("before, and this process had it open to write")


def test_text_that_is_no_files_is_no_files_fault() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert "misfits" not in told(caught.value)


# ---- a container that another call changes while a loop goes over it


class Fleet:
    def __init__(self) -> None:
        self.replicas = {"a": 1, "b": 2}

    def register(self, name: str) -> None:
        self.replicas[name] = 3

    def forget(self, name: str) -> None:
        del self.replicas[name]

    async def broadcast(self) -> None:
        for _, _each in self.replicas.items():
            await asyncio.sleep(0)

    def other(self, others: dict[str, int]) -> None:
        others["c"] = self.replicas["a"]


class OtherFleet:
    def __init__(self) -> None:
        self.replicas: dict[str, int] = {}

    def register(self) -> None:
        self.replicas["a"] = 1


def test_which_lines_change_what_a_loop_goes_over() -> None:
    async def main(fleet: Fleet) -> None:
        going = asyncio.create_task(fleet.broadcast())
        await asyncio.sleep(0)
        fleet.register("c")
        await going

    with pytest.raises(RuntimeError, match="changed size") as caught:
        asyncio.run(main(Fleet()))
    first = Fleet.__init__.__code__.co_firstlineno
    file = Path(__file__).name
    assert told(caught.value)["resized"] == (
        f"self.replicas is changed at {file}:{first + 4} in Fleet.register and {file}:{first + 7} in Fleet.forget; "
        f"the loop awaits at {file}:{first + 11}, where other calls go on"
    )
    assert printed(crash_page(take(caught.value), [], 0.0)).count("self.replicas is changed at") == 1
    assert "resized" not in told(RuntimeError("dictionary changed size during iteration")), "of which nothing is known"
    assert "resized" not in told(caught.value, light=True)


def test_a_loop_over_what_has_no_name_tells_nothing() -> None:
    def fails() -> None:
        known = {1: 1}
        for each in iter(known):
            known[each + 1] = each

    with pytest.raises(RuntimeError, match="changed size") as caught:
        fails()
    assert "resized" not in told(caught.value)
