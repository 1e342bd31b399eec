"""Breakpoints in code that is no file: in archives, from loaders of the program's own, made by `exec`, in notebooks."""

from __future__ import annotations

import importlib.abc
import importlib.util
import linecache
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from devkit.debug.breaks import make
from devkit.debug.inworker.texts import source_of
from devkit.errors import UsageError
from tests.debug.armory import Armory

TEXT = "def double(x):\n    y = 2 * x\n    return y\n\nclass A:\n    def get(self): return double(3)\n"


@pytest.fixture
def armory(tmp_path: Path, new_objects: None) -> Iterator[Armory]:
    made = Armory(tmp_path)
    yield made
    made.close()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "zipped.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("zmod.py", TEXT)
        file.writestr("zpkg/__init__.py", "")
        file.writestr("zpkg/inner.py", ("# -*- coding: latin-1 -*-\n# \xe9\n" + TEXT).encode("latin-1"))
    monkeypatch.syspath_prepend(path)
    monkeypatch.chdir(tmp_path)
    return path


def load(armory: Armory, name: str) -> Any:
    armory._loaded.append(name)
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.mark.parametrize(
    "spec", ["zipped.zip/zmod.py:2", "zmod.py:2 if x == 3", "zmod:double", "{folder}/zipped.zip/zmod.py:2"]
)
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded before", "loaded after"])
def test_a_module_in_a_zip(armory: Armory, archive: Path, spec: str, loaded: bool) -> None:
    module = load(armory, "zmod") if loaded else None
    point = make(spec.format(folder=archive.parent))
    assert point.source == TEXT
    armory.arming.add(point)
    module = module or load(armory, "zmod")
    assert module.A().get() == 6 and armory.places(point.id) == 1, armory.note(point.id)
    assert [hit[1:] for hit in armory.hits] == [("double", 2)]


def test_a_package_in_a_zip_with_an_encoding(armory: Armory, archive: Path) -> None:
    point = make("zpkg.inner:A.get")
    assert point.source is not None and "\xe9" in point.source
    armory.arming.add(point)
    assert load(armory, "zpkg.inner").A().get() == 6
    assert [hit[1:] for hit in armory.hits] == [("get", 8)]


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("zipped.zip/zmodd.py:2", "did you mean zipped.zip/zmod.py:2?"),
        ("zipped.zip/zmod.py:4", "the nearest lines with code are 3 and 5"),
    ],
)
def test_what_is_wrong_in_a_zip_is_said(archive: Path, spec: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(spec)
    assert hint in caught.value.hint


class Store(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """A loader of the program's own, which keeps its modules in memory."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self, origin="store:/kept.py") if name == "kept" else None

    def get_source(self, fullname: str) -> str:
        return TEXT

    def get_code(self, fullname: str) -> Any:
        return compile(TEXT, "store:/kept.py", "exec", dont_inherit=True)


def test_a_module_of_a_loader_that_has_its_source(armory: Armory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Store(), *sys.meta_path])
    module = load(armory, "kept")
    point = posted("store:/kept.py", 2)
    armory.arming.add(point)
    assert armory.places(point.id) == 1, armory.note(point.id)
    assert module.double(1) == 2 and len(armory.hits) == 1


def posted(name: str, line: int, **more: Any) -> Any:
    """A breakpoint as `devkit break` posts it, which asks the processes of the job for the text."""
    return make(f"{name}:{line}", ask=asked, **more)


def asked(name: str) -> dict[str, Any]:
    return source_of(name)


def execute(text: str, name: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, name, "exec", dont_inherit=True), namespace)
    return namespace


CELLS = [
    "<generated>",
    "<attrs generated init made.A>",
    "/tmp/ipykernel_4711/1234567.py",
    "<ipython-input-3-1f2e3d4c5b6a>",
]


@pytest.fixture
def known() -> Iterator[None]:
    before = dict(linecache.cache)
    yield
    linecache.cache.clear()
    linecache.cache.update(before)


def remember(text: str, name: str) -> None:
    """As IPython, attrs and dataclass libraries do it: for tracebacks."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)


@pytest.mark.parametrize("name", CELLS)
def test_code_that_was_executed(armory: Armory, name: str, known: None) -> None:
    remember(TEXT, name)
    names = execute(TEXT, name)
    point = posted(name, 2)
    assert point.source == TEXT and point.paths[0] == name
    armory.arming.add(point)
    assert names["A"]().get() == 6 and [hit[1:] for hit in armory.hits] == [("double", 2)]


def test_a_cell_that_is_run_again(armory: Armory, known: None) -> None:
    name = "/tmp/ipykernel_4711/99.py"
    remember(TEXT, name)
    execute(TEXT, name)
    point = posted(name, 2)
    armory.arming.add(point)
    remember(TEXT, name)
    names = execute(TEXT, name)  # other functions, of the same text
    assert armory.places(point.id) == 1  # asked at each of the agent's looks
    assert names["double"](1) == 2 and len(armory.hits) == 1


def test_a_function_of_a_cell_in_a_worker(armory: Armory) -> None:
    """It comes by value, and the worker has no text of it but the breakpoint's."""
    pickle = pytest.importorskip("ray.cloudpickle")
    name = "/tmp/ipykernel_4711/77.py"
    function = execute(TEXT, name)["double"]
    armory.arm("there", paths=(name,), line=2, source=TEXT)
    armory.arming.remove("there")
    data = pickle.dumps(function)
    armory.arm("there", paths=(name,), line=2, source=TEXT)
    assert pickle.loads(data)(2) == 4 and len(armory.hits) == 1


def test_executed_code_without_a_text_is_refused_with_the_reason(armory: Armory) -> None:
    execute(TEXT, "<nowhere>")
    with pytest.raises(UsageError, match="no process of the job has the source of <nowhere>") as caught:
        posted("<nowhere>", 2)
    assert "linecache" in caught.value.hint
    with pytest.raises(UsageError, match="no such file: <nowhere>") as caught:
        make("<nowhere>:2")  # by `run --break`: nothing runs yet
    assert "devkit break" in caught.value.hint


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("trian.py:3", "train.py:3"),
        ("pkg/stepp.py:3", "pkg/step.py:3"),
        ("Train.py:3", "train.py:3"),
        ("step.py:3", "pkg/step.py:3"),
        ("pkg.stepp:run", "pkg.step:run"),
        ("trian:run", "train:run"),
        ("trian.py:3 @W[0] if x == 'y'", """'train.py:3 @W[0] if x == '"'"'y'"'"''"""),  # quoted for a shell
        ("my stepp[1].py:3", "'my step[1].py:3'"),
    ],
)
def test_a_misspelt_file_has_a_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, near: str) -> None:
    for name in ("train.py", "pkg/step.py", "my step[1].py", ".venv/lib/trian.py", "node_modules/trian.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        make(spec)
    assert f"did you mean {near}?" in caught.value.hint


def test_a_misspelt_file_is_looked_for_in_the_processes_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("elsewhere")
    module.__file__ = "/srv/elsewhere/rollout_worker.py"
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    with pytest.raises(UsageError) as caught:
        make("rollout_wroker.py:3", ask=asked)
    assert "did you mean /srv/elsewhere/rollout_worker.py:3?" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        make("nothing_like_it_at_all.py:3", ask=asked)
    assert "did you mean" not in caught.value.hint and str(tmp_path) in caught.value.hint


def test_a_script_or_a_notebook_by_the_name_that_it_has_for_itself(tmp_path: Path) -> None:
    (tmp_path / "__main_.py").write_text("")  # like it, and not meant
    with pytest.raises(UsageError) as caught:
        make("__main__:work", folder=tmp_path)
    assert "by its file" in caught.value.hint and "did you mean" not in caught.value.hint
