"""Loops that train and have no round, and others that may have none."""

from __future__ import annotations

import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import line_warnings, loading, no_rounds, noticeboard
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark
from tests.debug.noticeboard_fake import Store, connected

PROGRAM = "no_rounds.py"

IS_MONITORED = sys.version_info >= (3, 12)
MONITORED = pytest.mark.skipif(not IS_MONITORED, reason="Python 3.11 tells of no loop")

HEAD = """
class Trainer:
    def update_actor(self, batch): pass
    def backward(self): pass
    def train_step(self, batch): pass

class Loader:
    def __init__(self, *epochs): self.epochs = list(epochs)
    def __len__(self): return 4
    def __iter__(self): return iter(range(self.epochs.pop(0)))

trainer = loss = Trainer()
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return connected(monkeypatch)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, store: Store) -> Iterator[no_rounds._State]:
    """A driver that is watched."""
    state = no_rounds._State()
    state.is_drivers = True
    monkeypatch.setattr(no_rounds, "_state", state)
    monkeypatch.setattr(no_rounds, "_loops", {})
    monkeypatch.setattr(loading, "_told", [])
    monkeypatch.setattr(line_warnings, "_told", set())
    if not IS_MONITORED:
        yield state
        return
    from devkit.debug.inworker import rounds_monitored

    monkeypatch.setattr(rounds_monitored, "_monitored", [])
    monkeypatch.setattr(rounds_monitored, "_here", list)
    rounds_monitored.watch()
    yield state
    rounds_monitored._monitored[0].close()


@pytest.fixture
def said(state: no_rounds._State, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """What is said of a program when it has run."""

    def run(text: str) -> list[str]:
        path = tmp_path / "job.py"
        path.write_text(HEAD + textwrap.dedent(text))
        if IS_MONITORED:
            from devkit.debug.inworker import rounds_monitored

            code = compile(path.read_text(), str(path), "exec")
            rounds_monitored._monitored[0].came(code)
            exec(code, {"__name__": "job"})
        else:
            runpy.run_path(str(path))
        no_rounds.tell()
        lines = capfd.readouterr().err.splitlines()
        return [line.partition("DevkitWarning: ")[2] for line in lines if "DevkitWarning" in line]

    return run


@MONITORED
def test_a_run_that_resumes_behind_its_last_step(said: Any) -> None:
    assert said(
        """
        def fit(start, total_steps):
            for step in range(start, total_steps):
                batch = step
                trainer.update_actor(batch)
            return "done"

        fit(8, 8)
        """
    ) == [
        "`for step in range(start, total_steps)` in fit had no round the only time it was begun since "
        "ray.init, with start=8, total_steps=8: trainer.update_actor, which it calls at line 17, was not called there"
    ]


@MONITORED
def test_a_loop_is_quoted_as_it_stands_in_its_file(said: Any) -> None:
    [line] = said(
        """
        def fit(start, options):
            for step in range(start, options["steps"]):  # all of them
                trainer.update_actor(step)

        fit(8, {"steps": 8})
        """
    )
    assert line.startswith('`for step in range(start, options["steps"])` in fit had no round'), line


@MONITORED
def test_an_epoch_that_is_left_out(said: Any) -> None:
    text = """
        def fit(loader, steps, epochs):
            current_epoch = steps // len(loader)
            for epoch in range(current_epoch, epochs):
                for batch in loader:
                    trainer.update_actor(batch)

        fit(Loader(0, 4), 4, 3)
        """
    [line] = said(text)
    assert line == (
        "`for batch in loader` in fit had no round the first time it was begun since ray.init, inside of `for epoch in "
        "range(current_epoch, epochs)` with current_epoch=1, epochs=3: trainer.update_actor, which it calls at line "
        "18, was not called then"
    )


@MONITORED
@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for batch in enumerate(loader):", "the only time"),
        ("for batch in Loader(0).epochs and loader:", ""),
        ("for step in steps:", "the only time"),
        ("while step < total:", "the only time"),
        ("while step < total and total > 2:", "the only time"),
        ("while total > 100 and step < total:", ""),
        ("for step in range(total - step):", "the only time"),
        ("for step in range(step + 1, total + 1):", "the only time"),
        ("for step in range(none):", ""),
        ("for step in range(len(rows) // 4):", ""),
        ("for step in range(0, len(rows), 4):", ""),
        ("for batch in rows:", ""),
        ("for batch in val_loader:", ""),
        ("for batch in pending():", ""),
        ("for worker in range(step, total):", "the only time"),
        ("while rows:", ""),
        ("while len(rows) > 0:", ""),
        ("while loss_now > 0.5:", ""),
    ],
)
def test_which_loops(said: Any, loop: str, expected: str) -> None:
    lines = said(
        f"""
        step = total = 8
        none, loss_now = 0, 0.1
        steps, rows, loader, val_loader = range(step, total), [], Loader(0, 0), Loader(0)
        def pending(): return []
        {loop}
            loss.backward()
        """
    )
    assert len(lines) == bool(expected)
    assert all(expected in line for line in lines)


@MONITORED
@pytest.mark.parametrize(
    "text",
    [
        # Validation, callbacks and pending work that there is none of.
        """
        for step in range(start, 3):
            trainer.train_step(step)
            for batch in Loader(0):
                print(batch)
            for each in []:
                each.on_step()
        """,
        # An inner loop over an empty group, each time and now and then.
        """
        for step in range(start, 3):
            for group in [[], [1], []]:
                for sample in group:
                    loss.backward()
                for at in range(0, len(group)):
                    loss.backward()
                for at in range(step + 1, 2):
                    loss.backward()
        """,
        # It has rounds when it is begun again.
        """
        def until(begin, end):
            for step in range(begin, end):
                trainer.train_step(step)
        until(2, 2)
        until(2, 4)
        """,
        # A loader that has nothing more at the end.
        """
        def epoch(loader):
            for batch in loader:
                trainer.train_step(batch)
        loader = Loader(2, 2, 0)
        for _ in range(3):
            epoch(loader)
        """,
        # Nothing in it trains.
        """
        for step in range(8, 8):
            env = step
            metrics.update(step)
            scheduler.step()
        """,
        # A wish.
        """
        class args: epochs = 0
        for epoch in range(args.epochs):
            trainer.train_step(epoch)
        """,
    ],
)
def test_healthy_programs(said: Any, text: str) -> None:
    assert said("start = 0\n" + textwrap.dedent(text)) == []


@MONITORED
def test_of_what_a_loop_calls_in_its_own_file(said: Any) -> None:
    [line] = said(
        """
        class Run:
            def one(self, step):
                loss.backward()

            def fit(self):
                for step in range(self.step, self.total):
                    self.one(step)

        run = Run()
        run.step, run.total = 3, 2
        run.fit()
        run.fit()
        """
    )
    assert line == (
        "`for step in range(self.step, self.total)` in Run.fit had no round any of the 2 times it was begun since "
        "ray.init, with self.step=3, self.total=2: self.one, which it calls at line 20, was not called there"
    )


@MONITORED
@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for step in range(start, total_steps):", 1),
        ("while step < total_steps:", 1),
        ("for worker in range(start, total_steps):", 0),  # as many as there are to be
        ("for each in todo:", 0),
        ("for epoch in range(2):\n    for step in range(start, total_steps):", 0),
    ],
)
def test_of_a_loop_that_counts_steps_a_call_of_a_worker_is_enough(said: Any, loop: str, expected: int) -> None:
    body = "    " * loop.count("for ") if "\n" in loop else "    "
    text = f"start = step = total_steps = 8\ntodo = []\n{loop}\n{body}worker.sample.remote()\n"
    assert len(said(text)) == expected


@MONITORED
def test_how_often_a_loop_with_rounds_was_begun_is_not_said(said: Any) -> None:
    """An error may leave it, and nobody hears of that."""
    [line] = said(
        """
        def epoch(loader):
            for batch in loader:
                trainer.train_step(batch)
                [][loader.epochs[0]]
        loader = Loader(0, 4, 4, 0)
        for _ in range(3):
            try: epoch(loader)
            except IndexError: pass
        """
    )
    assert "had no round the first time it was begun since ray.init:" in line


def test_a_loop_that_is_under_way_when_the_watch_begins(
    monkeypatch: pytest.MonkeyPatch, store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where `ray.init` is called in its only round: what is seen of it is its end."""
    data = pytest.importorskip("torch.utils.data")
    monkeypatch.setattr(no_rounds, "_state", no_rounds._State())
    monkeypatch.setattr(no_rounds, "_loops", {})
    monkeypatch.setattr(loading, "_told", [])
    if IS_MONITORED:
        from devkit.debug.inworker import rounds_monitored

        monkeypatch.setattr(rounds_monitored, "_monitored", [])
    else:
        kind = data.dataloader._BaseDataLoaderIter
        monkeypatch.setattr(kind, "__next__", kind.__next__)
    path = tmp_path / "job.py"
    path.write_text(f"{HEAD}\nfor batch in loader:\n    begin(driver=True)\n    loss.backward()\n")
    names = {"__name__": "job", "loader": data.DataLoader([0, 1], batch_size=2), "begin": no_rounds.watch}
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
    finally:
        if IS_MONITORED:
            rounds_monitored._monitored[0].close()
    no_rounds.tell()
    assert capfd.readouterr().err == ""


@MONITORED
def test_it_is_off_after_the_first_round(said: Any, state: no_rounds._State, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    original = no_rounds.came_round

    def came_round(*given: Any) -> bool:
        calls.append(given)
        return original(*given)

    monkeypatch.setattr(no_rounds, "came_round", came_round)
    assert said("for step in range(int(), 1000):\n    loss.backward()\n") == []
    assert len(calls) == 1


NOTE = {
    **{"file": "job.py", "line": 3, "who": "Trainer.fit", "text": "for a in range(b, c)", "trains": "d.step", "at": 5},
    **{"first": False, "values": [("b", "8")], "around": "", "around_values": [], "driver": False},
}


def test_what_workers_tell(state: no_rounds._State, store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    for name, has_rounds in (("1", False), ("2", False), ("3", True)):
        noticeboard.put(no_rounds.KIND, name, {**NOTE, "times": 1, "rounds": has_rounds})
    no_rounds.tell()
    assert capfd.readouterr().err == (
        "job.py:3: DevkitWarning: `for a in range(b, c)` in Trainer.fit had no round the only time it was begun, with "
        "b=8: d.step, which it calls at line 5, was never called there (so it was in 2 processes)\n"
    )
    assert not store.kept


def test_of_processes_that_tell_other_things_none_is_taken_for_all() -> None:
    """A process that had a round at once tells nothing, so "never" is of those that do."""
    notes = [{**NOTE, "times": times, "rounds": False} for times in (3, 5)]
    notes.append({**NOTE, "times": 1, "rounds": False, "values": [("b", "9")]})
    assert [text.partition(": ")[0].partition("begun")[2] for _, _, text in no_rounds.without_rounds(notes)] == [
        ", with b=8",
        ", with b=9",
    ]
    texts = [text for _, _, text in no_rounds.without_rounds(notes)]
    assert "had no round any of the at least 3 times it was begun" in texts[0]
    assert [text.partition(" there ")[2] for text in texts] == [
        "(so it was in 2 processes)",
        "(so it was in one process)",
    ]
    notes = [{**NOTE, "first": True, "times": 1, "rounds": has_rounds} for has_rounds in (False, True)]
    assert ["never" in text for _, _, text in no_rounds.without_rounds(notes)] == [True, False]


@MONITORED
def test_what_a_worker_has_told_is_taken_back_before_the_call_ends(
    said: Any, state: no_rounds._State, store: Store
) -> None:
    """The driver may end as soon as it has, and would read an old note."""
    state.is_drivers = False
    state.soon.wake = lambda: None  # type: ignore[method-assign]  # a thread that has no time
    [line] = said(
        """
        def until(begin, end):
            for step in range(begin, end):
                trainer.train_step(step)
        def epoch(loader):
            for batch in loader:
                trainer.train_step(batch)
        until(2, 2)
        until(2, 4)
        loader = Loader(0, 0, 0, 3)
        for _ in range(4):
            epoch(loader)
        """
    )
    assert line.startswith("`for batch in loader` in epoch had no round the first 3 times it was begun: ")


def test_the_same_is_not_said_again_at_a_second_end(
    state: no_rounds._State, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    code = compile("pass", "job.py", "exec")
    state.began[1] = no_rounds.Began(code, 3, NOTE)
    no_rounds.tell()
    assert "had no round the only time it was begun since ray.init" in capfd.readouterr().err
    no_rounds.tell()
    assert capfd.readouterr().err == ""


@MONITORED
def test_a_worker_tells_it_at_once(said: Any, state: no_rounds._State, store: Store) -> None:
    state.is_drivers = False
    told: list[bool] = []
    state.soon.wake = lambda: told.append(state.tell())  # type: ignore[method-assign]
    said("loader = Loader(0, 2)\nfor epoch in range(2):\n    for batch in loader:\n        loss.backward()\n")
    assert told and all(told)


def test_one_over_a_loader_of_torchs(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any Python."""
    data = pytest.importorskip("torch.utils.data")
    if not IS_MONITORED:
        from devkit.debug.inworker import rounds_of_loaders

        kind = data.dataloader._BaseDataLoaderIter
        monkeypatch.setattr(kind, "__next__", kind.__next__)
        rounds_of_loaders.watch()
    [line] = said(
        """
        from torch.utils.data import DataLoader

        class Left:
            rows = [[], [0, 1]]
            def __iter__(self): return iter(self.rows.pop(0))
            def __len__(self): return 2

        rows = DataLoader([0, 1], sampler=Left())
        for epoch in range(1, 3):
            for batch in rows:
                loss.backward()
        """
    )
    assert line.startswith(
        "`for batch in rows` had no round the first time it was begun since ray.init, inside of `for "
    )


@pytest.mark.ray
def test_a_run_that_resumes_at_its_end(cluster: Cluster) -> None:
    jobs = [Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM), done) for done in ("4", "0")]
    try:
        assert [each.end() for each in jobs] == [0, 0], [each.out for each in jobs]
    finally:
        for each in jobs:
            each.kill()
    resumed, fresh = ([line for line in each.out.splitlines() if "had no round" in line] for each in jobs)
    assert fresh == []
    names = ["left-out", *(["over", "drivers"] if IS_MONITORED else [])]
    assert {line.partition(": DevkitWarning: ")[0] for line in resumed} == {
        f"{PROGRAMS / PROGRAM}:{mark(PROGRAM, name)}" for name in names
    }
    [line] = [each for each in resumed if "for batch in rows" in each]
    assert "in Trainer.fit had no round the first time it was begun, inside of `for _epoch in range(" in line
