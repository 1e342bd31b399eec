"""Environment variables that a driver sets when its Ray has started, and its workers read in vain."""

from __future__ import annotations

import os
import runpy
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import noticeboard, unseen_variables, words
from devkit.debug.inworker.core import asking
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark
from tests.debug.noticeboard_fake import Store, connected

PROGRAM = "late_environ.py"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with monkeypatch.context() as patch:
        for name in ("__getitem__", "__setitem__", "__delitem__"):
            patch.setattr(os._Environ, name, getattr(os._Environ, name))
        patch.setattr(unseen_variables, "LAST_SECONDS", 0.0)
        patch.setattr(words, "given", [])
        for name in ("RANK_SCALE", "SCALE_OF_ALL", "ROLE_OF", "MY_API_KEY", "RAY_X"):
            patch.delenv(name, raising=False)
        yield connected(patch)


def job(
    tmp_path: Path,
    driver: str,
    worker: str,
    began: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> list[str]:
    """What is said at the end of a driver's code, when a worker's has run before that: the two as processes of their
    own, which had the environment `began`; the worker has what it was `given`, too.
    """
    words.given.clear()
    patches = [pytest.MonkeyPatch() for _ in range(2)]
    programs = [tmp_path / "job.py", tmp_path / "work.py"]
    for file, text in zip(programs, (driver, worker), strict=True):
        file.write_text(textwrap.dedent(text))
    states = []
    for patch, program, is_driver in zip(patches, programs, (True, False), strict=True):
        for name in ("__getitem__", "__setitem__", "__delitem__"):
            patch.setattr(os._Environ, name, getattr(os._Environ, name))
        states.append(unseen_variables._State())
        patch.setattr(unseen_variables, "_state", states[-1])
        before = dict(os.environ)
        os.environ.update({**(began or {}), **({} if is_driver else given or {})})
        unseen_variables.watch(driver=is_driver)
        runpy.run_path(str(program))
        if not is_driver:
            with asking():  # not beside its own thread
                assert unseen_variables._tell() and states[-1].soon is not None
            states[-1].soon.end()
        after = dict(os.environ)
        patch.undo()
        os.environ.clear()
        os.environ.update(before)
        if is_driver:
            mine = after
    end = pytest.MonkeyPatch()
    end.setattr(unseen_variables, "_state", states[0])
    os.environ.clear()
    os.environ.update(mine)
    unseen_variables.tell()
    end.undo()
    os.environ.clear()
    os.environ.update(before)
    return [each.replace(f"{tmp_path}/", "") for each in words.given]


SETS = """
    import os
    os.environ["RANK_SCALE"] = "0.5"
"""
READS = """
    import os
    class Actor:
        def step(self):
            return {}
    Actor().step()
"""
GETS = READS.format("os.environ.get('RANK_SCALE')")


@pytest.mark.parametrize(
    "read",
    [
        "os.environ.get('RANK_SCALE', '1.0')",
        "os.getenv('RANK_SCALE')",
        "'RANK_SCALE' in os.environ",
    ],
)
def test_a_variable_that_workers_do_not_have(tmp_path: Path, read: str, store: Store) -> None:
    [line] = job(tmp_path, SETS, READS.format(read))
    assert line.startswith("job.py:3: DevkitWarning: RANK_SCALE is set to '0.5' here, after the start of Ray at ")
    assert "Actor.step reads it at work.py:5 and does not find it" in line
    assert not store.kept, "nothing is left of it"


def test_another_value_in_a_subscript(tmp_path: Path) -> None:
    reads = READS.format("[os.environ['RANK_SCALE'] for _ in range(100)]")
    [line] = job(tmp_path, SETS, reads, began={"RANK_SCALE": "1.0"})
    assert "and finds '1.0'" in line


@pytest.mark.parametrize(
    "sets",
    [
        "os.environ.update(RANK_SCALE='0.5')",
        "os.environ.setdefault('RANK_SCALE', '0.5')",
        "os.environ |= {'RANK_SCALE': '0.5'}",
    ],
)
def test_all_ways_to_set_it(tmp_path: Path, sets: str) -> None:
    [line] = job(tmp_path, f"import os\n{sets}\n", GETS)
    assert line.startswith("job.py:2: DevkitWarning: RANK_SCALE is set to '0.5'")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    [line] = job(tmp_path, SETS.replace("RANK_SCALE", "MY_API_KEY"), READS.format("os.getenv('MY_API_KEY')"))
    assert "MY_API_KEY is set to <redacted> here" in line and "0.5" not in line


@pytest.mark.parametrize(
    ("driver", "worker"),
    [
        pytest.param(SETS, READS.format("dict(os.environ), {**os.environ}, os.environ.copy()"), id="copies all"),
        pytest.param(SETS, READS.format("os.environ.setdefault('RANK_SCALE', '1')"), id="its own default"),
        pytest.param(SETS, GETS + "    os.environ['RANK_SCALE'] = '2'\n", id="sets its own later"),
        pytest.param(SETS + "    del os.environ['RANK_SCALE']\n", GETS, id="was for a moment"),
        pytest.param(SETS, READS.format("None"), id="no reader"),
        pytest.param("import os\nos.environ['RAY_X'] = '1'\n", READS.format("os.getenv('RAY_X')"), id="Ray's"),
        pytest.param("import os\nos.environ['ROLE_OF'] = 'a'\n", READS.format("os.getenv('ROLE_OF')"), id="a role"),
        pytest.param(SETS + "    x = dict(env_vars={'RANK_SCALE': '0.5'})\n", GETS, id="by a runtime_env"),
        pytest.param(SETS + "    x = {'env_vars': dict(os.environ)}\n", GETS, id="by a runtime_env, perhaps"),
        pytest.param(
            "import os\nfrom unittest.mock import patch\nwith patch.dict(os.environ, RANK_SCALE='1'): pass\n",
            GETS,
            id="for a block",
        ),
    ],
)
def test_usual_programs_say_nothing(tmp_path: Path, driver: str, worker: str) -> None:
    assert job(tmp_path, driver, worker) == []


def test_what_a_worker_has_says_nothing(tmp_path: Path) -> None:
    assert job(tmp_path, SETS, GETS, given={"RANK_SCALE": "0.5"}) == []
    assert job(tmp_path, SETS, GETS, given={"RANK_SCALE": "7"}) == [], "somebody gave it another"
    assert job(tmp_path, SETS, GETS, began={"RANK_SCALE": "0.5"}) == [], "it is set to what it was"


def test_the_runtime_env_of_all_has_what_was_there_then(tmp_path: Path) -> None:
    init = "    def start(ray, env): ray.init(runtime_env={'env_vars': env})\n"
    assert len(job(tmp_path, SETS + init, GETS)) == 1


def test_a_flag_that_both_ask_for_may_tell_them_apart(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("import os\ndef is_first(): return os.environ.get('FIRST_ONE') == '1'\n")
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from shared import is_first\n"
    sets = f"import os\n{path}os.environ['FIRST_ONE'] = '1'\n"
    assert job(tmp_path, sets + "is_first()\n", path + "is_first()\n") == []
    assert len(job(tmp_path, sets, path + "is_first()\n")) == 1
    assert len(job(tmp_path, sets.replace("'1'", "'0.7'") + "is_first()\n", path + "is_first()\n")) == 1


def test_a_forked_child_tells_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unseen_variables, "_state", unseen_variables._State())
    unseen_variables.watch(driver=True)
    unseen_variables._forked()
    os.environ["RANK_SCALE"] = "0.5"
    assert not store.kept


@pytest.mark.parametrize("is_driver", [True, False])
def test_what_is_compiled_is_compiled_as_before(monkeypatch: pytest.MonkeyPatch, is_driver: bool) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(unseen_variables, "_state", unseen_variables._State())
    unseen_variables.watch(driver=is_driver)
    monkeypatch.setenv("RANK_SCALE", "2")

    def scaled(value: Any) -> Any:
        has_both = "RANK_SCALE" in os.environ and os.environ["RANK_SCALE"] == os.getenv("RANK_SCALE")
        return value * 2 if has_both and os.environ.get("SCALE_OF_ALL") is None else value

    torch._dynamo.reset()
    assert torch.compile(scaled, backend="eager", fullgraph=True)(torch.ones(1)).item() == 2.0
    assert not unseen_variables._state.reads


def test_a_driver_whose_workers_read_what_it_sets_too_late(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    lines = [line for line in job.out.splitlines() if "DevkitWarning" in line]
    assert [line.partition(" here, ")[0] for line in lines] == [
        f"{PROGRAMS / PROGRAM}:{mark(PROGRAM, 'scale')}: DevkitWarning: RANK_SCALE is set to '0.5'",
        f"{PROGRAMS / PROGRAM}:{mark(PROGRAM, 'bonus')}: DevkitWarning: BONUS_OF_ALL is set to '3'",
    ]
    assert f"after the start of Ray at {PROGRAM}:{mark(PROGRAM, 'init')}, which reaches no worker: " in lines[0]
    assert f"Actor.step reads it at {PROGRAM}:{mark(PROGRAM, 'read')} and does not find it" in lines[0]
    assert f"bonus reads it at {PROGRAM}:{mark(PROGRAM, 'task')}" in lines[1]


def test_a_read_before_it_was_set_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = noticeboard.put

    def put_later(kind: str, name: str, document: noticeboard.Document) -> None:
        later = {each: at + 1000.0 for each, at in document.get("names", {}).items()}
        put(kind, name, {**document, "names": later} if kind == unseen_variables.SET else document)

    monkeypatch.setattr(noticeboard, "put", put_later)
    assert job(tmp_path, SETS, GETS) == []
