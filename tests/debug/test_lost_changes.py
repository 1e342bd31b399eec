"""Globals that a worker changes, and that the driver reads unchanged."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import calls_made, changed_globals, lost_arguments, lost_changes, noticeboard
from devkit.debug.inworker.core import asking
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark
from tests.debug.noticeboard_fake import Store, connected

PROGRAM = "lost_changes.py"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with monkeypatch.context() as patch:
        patch.setattr(calls_made, "_made", {})
        yield connected(patch)


class Processes:
    """A program as it is in a driver, which runs its `main`, and as it is in a worker, where what it sends runs."""

    def __init__(self, folder: Path, text: str, beside: str = "") -> None:
        self.state = lost_changes._State()
        self.file = folder / "job.py"
        self.file.write_text(textwrap.dedent(text))
        (folder / "beside.py").write_text(textwrap.dedent(beside))
        sides = []
        for _ in range(2):
            sys.modules.pop("beside", None)
            module = ModuleType("job")
            module.__file__ = str(self.file)
            vars(module).update(send=self.send)
            sys.modules["job"] = module
            exec(compile(self.file.read_text(), self.file, "exec"), vars(module))
            sides.append(module)
        self.worker, self.driver = sides
        self.actors: dict[str, Any] = {}

    def send(self, name: str, *arguments: Any) -> Any:
        frame = sys._getframe(1)
        made = calls_made.Called(name, 0.0, frame.f_code, frame.f_lineno, b"", 0, None)
        calls_made._made[len(calls_made._made).to_bytes(8, "big")] = made
        kind, dot, last = name.rpartition(".")
        if not dot:
            function = vars(self.worker)[name]
            return lost_changes.covered(function, f"job.{name}", [], self.state)(*arguments)
        owner = vars(self.worker)[kind]
        method = getattr(owner, last)

        def executor(actor: Any, *given: Any) -> Any:
            return method(actor, *given)

        executor.name, executor.method = last, method  # type: ignore[attr-defined]
        actor = self.actors.setdefault(kind, owner())
        return lost_changes.covered(executor, last, [owner], self.state)(actor, *arguments)

    def said(self) -> list[str]:
        self.driver.main()
        with asking():  # not beside its own thread
            assert self.state.tell()
        self.state.soon.end()
        notes = noticeboard.every(lost_changes.KIND)
        return [f"{Path(file).name}:{line}: {text}" for file, line, text in lost_changes.lost(notes)]


def said(folder: Path, text: str, beside: str = "", patch: pytest.MonkeyPatch | None = None) -> list[str]:
    if patch is not None:
        patch.syspath_prepend(str(folder))
    return Processes(folder, text, beside).said()


DICTIONARY = """
    COUNTS = {}
    def count(row):
        COUNTS[row] = 1
    def main():
        for row in range(64):
            send("count", row)
        print(len(COUNTS))
"""


def test_a_dictionary_that_tasks_fill(tmp_path: Path) -> None:
    assert said(tmp_path, DICTIONARY) == [
        "job.py:8: COUNTS is empty here, as it was at first: count changes it at job.py:4 in a worker, which "
        "has its own; there it had 64 entries"
    ]


@pytest.mark.parametrize(
    ("made", "change", "there"),
    [
        ("ROWS = []", "ROWS.append(1)", "had 1 entry"),
        ("ROWS = []", "ROWS.extend([1, 2])", "had 2 entries"),
        ("ROWS = set()", "ROWS.add(3)", "had 1 entry"),
        ("ROWS = {'a': 0, 'b': 0.0}", "ROWS['a'] += 2", "1 of 2 had something"),
        ("ROWS = []", "ROWS.extend([0, 1, 2])", "had 3 entries"),
        ("from collections import defaultdict\nROWS = defaultdict(list)", "ROWS['a'].append(2)", "had 1 entry"),
        ("from collections import Counter\nROWS = Counter()", "ROWS.update('ab')", "had 2 entries"),
        ("ROWS = 0", "global ROWS; ROWS += 3", "was 3"),
        ("ROWS = 0.0", "global ROWS; ROWS += 0.5", "was 0.5"),
        ("ROWS = []", "global ROWS; ROWS += [1]", "had 1 entry"),
    ],
)
def test_all_ways_to_change_one(tmp_path: Path, made: str, change: str, there: str) -> None:
    text = (
        f"{made}\ndef helper():\n    {change}\ndef task(): helper()\ndef main():\n    send('task')\n    print(ROWS)\n"
    )
    [line] = said(tmp_path, text)
    assert line.endswith(there) and "helper changes it at job.py:" in line


def test_attributes_of_a_class_and_methods_of_an_actor(tmp_path: Path) -> None:
    text = """
    class Stats:
        hits = 0
        rows = []
    class Actor:
        def _note(self, row):
            Stats.hits += 1
            Stats.rows.append(row)
        def step(self, row):
            self._note(row)
    def report():
        return f"{Stats.hits} of {len(Stats.rows)}"
    def main():
        for row in range(3):
            send("Actor.step", row)
        report()
    """
    lines = said(tmp_path, text)
    assert [line.partition(",")[0] for line in lines] == [
        "job.py:12: Stats.hits is 0 here",
        "job.py:12: Stats.rows is empty here",
    ]
    assert "Actor._note changes it at job.py:7" in lines[0] and lines[0].endswith("there it was 3")


def test_of_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = "SEEN = []\ndef note(row):\n    SEEN.append(row)\n"
    text = """
    import beside
    from beside import note
    def task(row): note(row)
    def main():
        send("task", 1)
        print(beside.SEEN)
    """
    [line] = said(tmp_path, text, beside, monkeypatch)
    assert line.startswith("job.py:7: SEEN is empty here") and "note changes it at beside.py:3" in line


def test_a_module_that_empties_it_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = "SEEN = []\ndef note(row):\n    SEEN.append(row)\ndef flush():\n    SEEN.clear()\n"
    text = """
    import beside
    def task(row): beside.note(row)
    def main():
        send("task", 1)
        beside.note(3)
        print(beside.SEEN)
        beside.flush()
    """
    assert said(tmp_path, text, beside, monkeypatch) == []


CACHE = """
    CACHE = {}
    MODEL = None
    def cached(row):
        if row not in CACHE:
            CACHE[row] = row * 2
        return CACHE[row]
    def model():
        global MODEL
        if MODEL is None:
            MODEL = [1]
        return MODEL
    def task(row): return cached(row), model()
    def main():
        send("task", 1)
        cached, model
"""
SILENT = {
    "a cache of each process": CACHE,
    "a cache that the driver's function uses, too": CACHE.replace("cached, model", "if not CACHE: pass"),
    "a rank of its own": """
        RANK = 0
        def task(rank):
            global RANK
            RANK = rank
        def main():
            send("task", 3)
            print(RANK)
    """,
    "read before the call": """
        COUNTS = {}
        def count(row): COUNTS[row] = 1
        def main():
            print(len(COUNTS))
            send("count", 1)
    """,
    "the driver counts, too": """
        COUNTS = {}
        def count(row): COUNTS[row] = 1
        def main():
            send("count", 1)
            count(3)
            print(len(COUNTS))
    """,
    "the driver fills it with what comes back, and empties it for each epoch": """
        LOSSES = []
        def step(row):
            LOSSES.append(row)
            return LOSSES[-1]
        def main():
            for epoch in range(2):
                LOSSES.append(send("step", epoch))
                print(sum(LOSSES))
                LOSSES.clear()
    """,
    "a buffer that is flushed": """
        BUFFER = []
        def add(row): BUFFER.append(row)
        def flush():
            rows = list(BUFFER)
            BUFFER.clear()
            return rows
        def main():
            send("add", 1)
            add(2)
            print(len(BUFFER), flush())
            flush()
    """,
    "set anew by what comes back": """
        COUNTS = {}
        def count(row):
            COUNTS[row] = 1
            return COUNTS
        def main():
            global COUNTS
            COUNTS = send("count", 1)
            print(len(COUNTS))
            COUNTS = {}
    """,
    "a variable of that name": """
        counts = {}
        def count(row):
            counts[row] = 1
            return counts
        def main():
            counts = send("count", 1)
            print(len(counts))
    """,
    "a configuration": """
        CONFIG = {"lr": 0.1}
        def task(): CONFIG["rank"] = 3
        def main():
            send("task")
            print(CONFIG)
    """,
    "a copy that a function makes": """
        ROWS = []
        def task():
            rows = list(ROWS)
            rows.append(1)
            return rows
        def main():
            print(send("task"), ROWS)
    """,
    "sent again": """
        ROWS = []
        def task(rows): ROWS.append(1)
        class ray:
            def put(rows): pass
        def main():
            send("task", 1)
            ray.put(ROWS)
    """,
    "another task's name": """
        ROWS = []
        def task(): ROWS.append(1)
        def outer(): send("task")
        def main():
            outer
            print(ROWS)
    """,
}


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_usual_programs_say_nothing(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == []


ROWS: list[int] = []
TABLE: dict[str, int] = {}
GROUPS: defaultdict[str, list[int]] = defaultdict(list)
TALLY: Counter[str] = Counter()


def looks_only(other: Any, key: str) -> None:
    other.append(ROWS)
    other[TABLE[key]] = 1
    other[key] = TALLY
    other[key] += len(GROUPS)
    TABLE.get(key)


def changes_items(key: str) -> None:
    TABLE[key + "b"] = 1 if key else 2
    GROUPS[key].append(3)
    TALLY[key] += 1


def test_what_bytecode_tells() -> None:
    assert changed_globals.changes_of([looks_only])[0] == []
    found, used = changed_globals.changes_of([changes_items])
    assert [each.name for each in found] == ["TABLE", "GROUPS", "TALLY"] and used == ("changes_items",)


def test_what_is_not_changed_runs_as_it_is() -> None:
    state = lost_changes._State()
    assert lost_changes.covered(looks_only, "a.looks_only", [], state) is looks_only
    assert lost_changes.covered(changes_items, "a.changes_items", [], state) is not changes_items


class Counting:
    def count(self, into: dict[str, int]) -> None:
        ROWS.append(1)
        into["a"] = len(ROWS)


def test_what_rays_own_manager_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    manager_of = pytest.importorskip("ray._private.function_manager").FunctionActorManager
    monkeypatch.setattr(manager_of, "get_execution_info", manager_of.get_execution_info)
    for each in (lost_changes, lost_arguments):
        each.watch()
    manager = manager_of(SimpleNamespace(load_code_from_local=False))
    manager._loaded_actor_classes["id"] = Counting
    executor = manager._make_actor_method_executor("count", Counting.count)
    info = importlib.import_module("ray._private.function_manager").FunctionExecutionInfo(executor, "count", 0)
    manager._function_execution_info["method"] = info
    descriptor = SimpleNamespace(function_id="method", is_actor_method=lambda: True)
    given = [manager.get_execution_info("job", descriptor) for _ in range(2)]
    function = given[0].function
    assert function is given[1].function is not executor, "it is looked at once"
    assert (function.name, function.method, given[0].max_calls) == ("count", Counting.count, 0)
    into: dict[str, int] = {}
    assert function(Counting(), into) is None and into == {"a": 1}
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        function(Counting())
    ROWS.clear()


@pytest.mark.verdicts
def test_a_driver_that_counts_in_its_workers(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    lines = [line for line in job.out.splitlines() if "DevkitWarning" in line]
    at = f"{PROGRAMS / PROGRAM}:{{}}: DevkitWarning: "
    assert {line.partition(" here")[0] for line in lines} == {
        at.format(mark(PROGRAM, "read")) + "COUNTS is empty",
        at.format(mark(PROGRAM, "report")) + "Stats.hits is 0",
    }
    assert all("CACHE" not in line for line in lines)
