"""Arguments that a worker changes in place and does not return."""

from __future__ import annotations

import copy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from devkit.debug.inworker import calls_made, lost_arguments, noticeboard
from devkit.debug.inworker.core import asking
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark
from tests.debug.noticeboard_fake import Store, connected

PROGRAM = "lost_arguments.py"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with monkeypatch.context() as patch:
        patch.setattr(calls_made, "_made", {})
        yield connected(patch)


class Remote:
    """A task, or an actor's class, of a program that is also loaded as it is in a worker."""

    def __init__(self, state: lost_arguments._State, worker: ModuleType, name: str) -> None:
        self.state, self.worker, self.name = state, worker, name

    def remote(self, *arguments: Any, **named: Any) -> Any:
        target = vars(self.worker)[self.name]
        if isinstance(target, type):
            return Handle(self.state, target)
        _called(self.name)
        function = lost_arguments.covered(target, f"job.{self.name}", self.state)
        return copy.deepcopy(function(*copy.deepcopy(arguments), **copy.deepcopy(named)))

    def options(self, **_options: Any) -> Remote:
        return self


class Handle:
    def __init__(self, state: lost_arguments._State, kind: type) -> None:
        self._state, self._actor = state, kind()

    def __getattr__(self, name: str) -> Any:
        kind = type(self._actor)
        method = getattr(kind, name)

        def executor(actor: Any, *arguments: Any, **named: Any) -> Any:
            return method(actor, *arguments, **named)

        executor.name, executor.method = name, method  # type: ignore[attr-defined]
        covered = lost_arguments.covered(executor, name, self._state)

        class Method:
            @staticmethod
            def remote(*arguments: Any, **named: Any) -> Any:
                _called(f"{kind.__name__}.{name}")
                return copy.deepcopy(covered(self._actor, *copy.deepcopy(arguments), **copy.deepcopy(named)))

        return Method


def _called(name: str) -> None:
    frame = sys._getframe(2)
    made = calls_made.Called(name, 0.0, frame.f_code, frame.f_lineno, b"", 0, None)
    calls_made._made[len(calls_made._made).to_bytes(8, "big")] = made


def said(folder: Path, text: str) -> list[str]:
    """What is said of a program whose `main` has run in a driver, and its tasks in a worker."""
    state, file = lost_arguments._State(), folder / "job.py"
    file.write_text(textwrap.dedent(text))
    worker, driver = ModuleType("job"), ModuleType("job")
    code = compile(file.read_text(), file, "exec")
    vars(worker).update(remote=lambda target: target)
    exec(code, vars(worker))
    vars(driver).update(remote=lambda target: Remote(state, worker, target.__name__))
    exec(code, vars(driver))
    driver.main()
    with asking():  # not beside its own thread
        assert state.tell()
    state.soon.end()
    notes = noticeboard.every(lost_arguments.KIND)
    return [f"{Path(at).name}:{line}: {text}" for at, line, text in lost_arguments.lost(notes)]


FILL = """
    @remote
    def fill(buffer, count):
        {change}
    def main():
        rows = {made}
        fill.remote(rows, 64)
        {read}
"""


def filling(made: str = "[]", change: str = "buffer.extend(range(count))", read: str = "print(len(rows))") -> str:
    return FILL.format(made=made, change=change, read=read)


def test_a_list_that_a_task_fills(tmp_path: Path) -> None:
    assert said(tmp_path, filling()) == [
        "job.py:8: rows is still empty here: fill of job.py:2, to which it was passed at job.py:7, changes "
        "(to 64 entries) its argument 'buffer' in a worker, which has a copy, and returns None"
    ]


@pytest.mark.parametrize(
    ("made", "change", "read"),
    [
        ("{}", "buffer['a'] = 1", "[key for key in rows]"),
        ("set()", "buffer.add(1)", "for row in rows: pass"),
        ("list()", "[buffer.append(1) for _ in range(count)]", "return rows"),
    ],
)
def test_all_ways_to_fill_one(tmp_path: Path, made: str, change: str, read: str) -> None:
    [line] = said(tmp_path, filling(made, change, read))
    assert line.startswith("job.py:8: rows is still empty here")


@pytest.mark.parametrize(
    ("made", "change", "read", "many"),
    [
        ("[0] * 8", "buffer[0] = 2", "sum(rows)", "1 of 8"),
        ("[None] * 8", "buffer[1:3] = 2, 2", "rows[0]", "2 of 8"),
        ("{'a': 0}", "buffer['a'] += count", "print(f'{rows}')", "1 of 1"),
    ],
)
def test_one_with_places_to_fill(tmp_path: Path, made: str, change: str, read: str, many: str) -> None:
    [line] = said(tmp_path, filling(made, change, read))
    assert line.startswith("job.py:8: rows is as it was here") and f"changes {many} entries of its argument" in line


def test_by_name_to_an_actors_method(tmp_path: Path) -> None:
    text = """
    @remote
    class Store:
        def fill(self, *, into):
            into.append(1)
    def main():
        store = Store.remote()
        rows = []
        store.fill.remote(into=rows)
        print(rows)
    """
    [line] = said(tmp_path, text)
    assert line.startswith(
        "job.py:10: rows is still empty here: Store.fill of job.py:4, to which it was passed at job.py:9"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(filling(change="buffer.append(1); return buffer"), id="returned"),
        pytest.param(filling(change="buffer.append(1); return 1"), id="something is returned"),
        pytest.param(filling(made="[1]"), id="was not empty"),
        pytest.param(filling(read="pass"), id="not read"),
        pytest.param(filling(read="rows.append(1); print(rows)"), id="the driver fills it"),
        pytest.param(filling(read="rows += [1]; print(rows)"), id="the driver adds to it"),
        pytest.param(filling(read="rows = [1]; print(rows)"), id="the driver makes another"),
        pytest.param(filling(read="main.__call__ or fill_it(rows); print(rows)"), id="another function gets it"),
        pytest.param(filling(read="other = rows; print(rows)"), id="another name"),
        pytest.param(filling(read="(lambda: rows.append(1))(); print(rows)"), id="a lambda has it"),
        pytest.param(filling(read="fill.remote(rows, 1)"), id="sent again"),
        pytest.param(filling(change="buffer = [1]"), id="a variable of its own"),
        pytest.param(filling(change="rows = list(buffer); rows.append(1)"), id="a copy of its own"),
        pytest.param(filling(read="if rows: pass"), id="tested"),
    ],
)
def test_usual_programs_say_nothing(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == []


TRAIN = """
    import torch
    @remote
    class Learner:
        def train(self, model, rows):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(rows):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 3)).sum()
                loss.backward()
                optimizer.step()
            {returned}
    def evaluate(model):
        model.eval()
        with torch.no_grad():
            return model(torch.ones(1, 3)).sum()
    def improve(model):
        for each in model.parameters():
            each.data.add_(1)
    def main():
        model = torch.nn.Linear(3, 3)
        learner = Learner.remote()
        loss = learner.train.remote(model, 3)
        {read}
"""


def training(read: str, returned: str = "return {'loss': loss.item(), 'rows': rows}") -> str:
    return TRAIN.format(read=read, returned=returned)


@pytest.mark.parametrize(
    "read",
    [
        "evaluate(model)",
        "model(torch.ones(1, 3))",
        "import io; torch.save(model.state_dict(), io.BytesIO())",
        "model.eval(); model.forward(torch.ones(1, 3))",
    ],
)
def test_a_model_that_is_trained_elsewhere(tmp_path: Path, read: str) -> None:
    pytest.importorskip("torch")
    assert said(tmp_path, training(read)) == [
        "job.py:24: model is as it was here: Learner.train of job.py:5, to which it was passed at job.py:23, changes "
        "2 of 2 parameters of its argument 'model' in a worker, which has a copy, and returns nothing of it"
    ]


@pytest.mark.parametrize(
    ("read", "returned"),
    [
        pytest.param("evaluate(model)", "return model.state_dict()", id="its weights are returned"),
        pytest.param("evaluate(model)", "return loss.detach()", id="a tensor is returned"),
        pytest.param("evaluate(model)", "return '/tmp/checkpoint.pt'", id="a path is returned"),
        pytest.param("model.load_state_dict(model.state_dict()); evaluate(model)", "return 1.0", id="loaded"),
        pytest.param("model = torch.nn.Linear(3, 3); evaluate(model)", "return 1.0", id="another model"),
        pytest.param("improve(model); evaluate(model)", "return 1.0", id="an evolution strategy"),
        pytest.param("print(loss)", "return 1.0", id="one fold of many"),
        pytest.param("learner.train.remote(model, 1)", "return 1.0", id="sent again"),
        pytest.param(
            "optimizer = torch.optim.SGD(model.parameters(), lr=1.0); evaluate(model)",
            "return 1.0",
            id="trained here, too",
        ),
        pytest.param("evaluate(copy_of := model)", "return 1.0", id="another name"),
    ],
)
def test_usual_trainings_say_nothing(tmp_path: Path, read: str, returned: str) -> None:
    pytest.importorskip("torch")
    assert said(tmp_path, training(read, returned)) == []


def test_a_model_that_only_runs_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
    import torch
    @remote
    def rollout(model):
        model.train()
        model(torch.ones(1, 3)).sum().backward()
        model.half().float()
        return 1.0
    def main():
        model = torch.nn.BatchNorm1d(3) if False else torch.nn.Linear(3, 3)
        model = model.eval()
        policy = torch.nn.Linear(3, 3)
        rollout.remote(policy)
        policy(torch.ones(1, 3))
    """
    assert said(tmp_path, text) == []


FILLS = """
    import torch
    @remote
    def fill(out, at):
        out[at] = 1.0
    def main():
        out = {made}
        for at in range(3):
            fill.remote(out, at)
        print(out.sum())
"""


def test_a_tensor_that_a_task_fills(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    [line] = said(tmp_path, FILLS.format(made="torch.zeros(3)"))
    assert line.startswith("job.py:10: out is as it was here: fill of job.py:3, to which it was passed at job.py:9,")


def test_a_tensor_that_may_be_a_scratch_copy_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert said(tmp_path, FILLS.format(made="torch.ones(3)")) == []


def test_another_function_of_the_same_name_is_another_one() -> None:
    note = {"call": "fill", "at": ("/app/rewards/pool.py", 3)}
    for module, is_it in (("rewards.pool", True), ("pool", True), ("rewards.queue", False), (None, True)):
        descriptor = SimpleNamespace(module_name=module) if module else None
        call = calls_made.Called(
            "fill", 0.0, test_another_function_of_the_same_name_is_another_one.__code__, 1, b"", 0, descriptor
        )
        assert lost_arguments._is_of(call, note) is is_it, module


@pytest.mark.verdicts
def test_a_driver_whose_objects_stay_what_they_were(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    lines = [line for line in job.out.splitlines() if "DevkitWarning" in line]
    at = f"{PROGRAMS / PROGRAM}:{{}}: DevkitWarning: "
    assert sorted(line.partition(" here")[0] for line in lines) == [
        at.format(mark(PROGRAM, "read")) + "rows is still empty",
        at.format(mark(PROGRAM, "totals")) + "totals is as it was",
    ]
