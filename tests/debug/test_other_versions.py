"""A process that fails with another version of a package than that of who has sent it something: both are told."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from devkit.debug.crash_page import clues_of, crash_page
from devkit.debug.inworker import packages
from devkit.debug.inworker.arrivals import Arrival, arrival_of
from devkit.debug.inworker.crashes import taken
from devkit.debug.inworker.identity import identify
from devkit.debug.inworker.operations import OPERATIONS
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

NAME = "dkunit"
OLD = "class Both:\n    def __init__(self):\n        self.a = 1\n\n\ndef plain():\n    return 1\n"
NUMPY, NEWER = ({"package": "numpy", "version": version, "own": version} for version in ("1.26.4", "2.1.0"))

Document = dict[str, Any]


def install(folder: Path, name: str, version: str, source: str, *, called: str = "", tops: bool = True) -> None:
    """A package of one module, as pip leaves it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(source)
    info = folder / f"{(called or name).replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {called or name}\nVersion: {version}\n")
    (info / ("top_level.txt" if tops else "RECORD")).write_text(f"{name}\n" if tops else f"{name}/__init__.py,,\n")


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    install(tmp_path, NAME, "1.26.4", OLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    packages._distribution.cache_clear()
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def raised_by(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return error
    raise AssertionError("nothing was raised")


# ---- what an error is about


class Restored:
    def __reduce__(self) -> Any:
        return _restored, ()


def _restored() -> Any:
    made = ModuleType("dkmade")
    exec("class Made:\n    def __setstate__(self, state):\n        state['gone']\n", vars(made))
    vars(made)["Made"]().__setstate__({})


def test_a_class_that_is_missing_where_an_object_arrives(side: ModuleType) -> None:
    sent = b"cdkunit\nFresh\n."
    assert arrival_of(raised_by(lambda: pickle.loads(sent))) == Arrival((NAME, __name__), True)


def test_whatever_an_object_is_not_restored_for_is_about_its_class() -> None:
    arrival = arrival_of(raised_by(lambda: pickle.loads(pickle.dumps(Restored()))))
    assert arrival.unpickled and "dkmade" in arrival.modules


def test_what_ray_keeps_in_an_error_of_its_own(side: ModuleType) -> None:
    class RaySystemError(Exception):
        def __init__(self, error: BaseException) -> None:
            self.client_exc = error

    kept = raised_by(lambda: pickle.loads(b"cdkunit\nFresh\n."))
    assert arrival_of(RaySystemError(kept)).unpickled
    assert NAME in arrival_of(RaySystemError(kept)).modules


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda side: side.Both().fresh(), id="attribute of an object"),
        pytest.param(lambda side: side.Both.fresh, id="attribute of a class"),
        pytest.param(lambda side: side.fresh, id="attribute of a module"),
        pytest.param(lambda side: side.Both(fresh=1), id="argument of a class"),
        pytest.param(lambda side: side.plain(1), id="argument of a function"),
        pytest.param(lambda side: side.Both()[0], id="no such operation"),
        pytest.param(lambda side: importlib.import_module("dkunit.fresh"), id="module"),
        pytest.param(lambda side: exec("from dkunit import Fresh"), id="name"),
        pytest.param(lambda side: type("Own", (side.Both,), {})().fresh(), id="attribute of a class below"),
    ],
)
def test_what_a_package_has_not(side: ModuleType, act: Callable[[Any], object]) -> None:
    arrival = arrival_of(raised_by(lambda: act(side)))
    assert not arrival.unpickled
    assert packages.of_modules(arrival.modules)[NAME]["version"] == "1.26.4"


def test_a_package_that_fails_to_load(side: ModuleType) -> None:
    def fails() -> None:
        raise ImportError("undefined symbol", name=f"{NAME}._native")

    assert f"{NAME}._native" in arrival_of(raised_by(fails)).modules


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("a"), RuntimeError("No module named 'numpy'")])
def test_other_errors_are_about_no_version(error: Exception) -> None:
    def fails() -> None:
        raise error

    assert arrival_of(raised_by(fails)) == Arrival()


def test_an_error_that_came_from_another_process_is_not_about_this_one() -> None:
    class RayTaskError(Exception):
        pass

    class Both(RayTaskError, TypeError):
        pass

    assert arrival_of(Both("<module 'numpy' from")) == Arrival()


# ---- which version a process has


def test_the_version_is_that_of_the_folder_that_the_module_is_from(side: ModuleType, tmp_path: Path) -> None:
    install(tmp_path / "later", NAME, "9.9", OLD)
    sys.path.append(str(tmp_path / "later"))
    found = packages.of_modules([f"{NAME}.inner", NAME, "json", "__main__", "builtins"])
    sys.path.remove(str(tmp_path / "later"))
    assert found == {NAME: {"package": NAME, "version": "1.26.4", "own": ""}}
    assert OPERATIONS["modules"](None, {"names": [], "packages": [NAME]})["packages"] == found


@pytest.mark.parametrize("tops", [True, False])
def test_a_package_may_be_called_otherwise_than_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tops: bool
) -> None:
    install(tmp_path, f"{NAME}{tops}", "3.0", OLD, called="dk-unit-learn", tops=tops)
    monkeypatch.syspath_prepend(str(tmp_path))  # it is not imported
    assert packages.of_modules([f"{NAME}{tops}"])[f"{NAME}{tops}"] == {
        "package": "dk-unit-learn", "version": "3.0", "own": "",
    }  # fmt: skip


def test_two_versions_in_one_folder_are_none(side: ModuleType, tmp_path: Path) -> None:
    info = tmp_path / f"{NAME}-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {NAME}\nVersion: 2.0\n")
    (info / "top_level.txt").write_text(f"{NAME}\n")
    assert packages.of_modules([NAME]) == {}


def test_packages_in_one_namespace_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dkspace" / "one").mkdir(parents=True)
    info = tmp_path / "dk_one-4.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: dk-one\nVersion: 4.5\n")
    (info / "RECORD").write_text("dkspace/one/a.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert packages.of_modules(["dkspace.one.a", "dkspace.two", "dkspace"]) == {
        "dkspace.one": {"package": "dk-one", "version": "4.5", "own": ""},
        "dkspace.two": {"missing": True},
    }


def test_a_module_without_a_package_has_its_own_version_or_none(tmp_path: Path, side: ModuleType) -> None:
    (tmp_path / "dkbare.py").write_text("")
    assert packages.of_modules(["dkbare"]) == {}
    vars(importlib.import_module("dkbare"))["__version__"] = "7"
    assert packages.of_modules(["dkbare"]) == {"dkbare": {"package": "dkbare", "version": "", "own": "7"}}
    del sys.modules["dkbare"]


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        (NUMPY, NEWER, ("1.26.4", "2.1.0")),
        (NUMPY, NUMPY, None),
        (NUMPY, {**NUMPY, "own": "1.26.4+cu"}, None),  # what is installed is what counts
        ({**NUMPY, "version": ""}, NEWER, ("1.26.4", "2.1.0")),  # both say it themselves
        ({**NUMPY, "version": ""}, {**NEWER, "own": ""}, None),  # said in two ways
        ({"missing": True}, NEWER, (None, "2.1.0")),
        ({"missing": True}, {"missing": True}, None),
        (NUMPY, {"missing": True}, None),
        (NUMPY, None, None),
        (NUMPY, {"version": 2}, None),
    ],
)
def test_a_difference_is_told_where_both_are_known(here: Document, there: Any, told: tuple[Any, str] | None) -> None:
    found = list(packages.differing({"numpy": here}, {"numpy": there}, "driver"))
    assert [(each["here"], each["there"]) for each in found] == ([told] if told else [])


# ---- from the crash to the page


def test_a_crash_has_the_versions_that_it_may_be_about(side: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devkit.debug.inworker.hooks.task_facts", dict)
    document = taken(raised_by(lambda: pickle.loads(b"cdkunit\nFresh\n.")), "task", 0, identify())
    assert document["packages"][NAME]["version"] == "1.26.4" and document["unpickled"] is True
    assert document["modules"][NAME]["file"] == side.__file__  # the tests' own folder is no library's
    other = taken(raised_by(lambda: {}["a"]), "task", 0, identify())
    assert not {"packages", "unpickled"} & other.keys()


def test_a_class_that_fails_at_a_look_costs_no_crash(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Odd(AttributeError):
        @property
        def name(self) -> Any:
            raise LookupError("no name")

    def fails() -> None:
        raise Odd

    monkeypatch.setattr("devkit.debug.inworker.hooks.task_facts", dict)
    document = taken(raised_by(fails), "task", 0, identify())
    assert document["exception"]["type"] == "Odd" and "packages" not in document
    assert "could not be found out: LookupError('no name')" in capfd.readouterr().err


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with running_hub(tmp_path) as running:
        yield running


def told(hub: RunningHub, crash: Document, answers: dict[str, Document], pythons: dict[str, str] | None = None) -> Any:
    """The crash of w1 as it is kept when all that can be asked was asked; `answers` by role."""
    worker = FakeAgent(hub, identity("w1", job_id="02"))
    for role, answer in answers.items():
        who = {**identity(role, job_id="02"), "role": role, "python": (pythons or {}).get(role, "3.11.7")}
        FakeAgent(hub, who, {"modules": {"modules": {}, "packages": answer}})
    document = {**record("c1", 5.0, {"type": "TypeError", "message": "no"}, worker_id="w1").to_json(), "frames": []}
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == len(answers) + 1)
        worker.connection.send({"type": "crash", "document": {**document, **VERSIONS, **crash}})
        eventually(lambda: client.call("ps")["crashes"] and not hub.hub.explaining)
        return client.call("crash", id="c1")


VERSIONS = {"versions": {"python": "3.11.7"}, "kind": "task", "packages": {"numpy": NUMPY}}


@pytest.mark.parametrize(
    ("crash", "answers", "clues"),
    [
        ({}, {"driver": {"numpy": NEWER}}, ["this process has numpy 1.26.4, the driver 2.1.0"]),
        ({}, {"driver": {"numpy": NUMPY}, "Reader": {"numpy": NEWER}}, []),
        ({"packages": {"peft": {"missing": True}}}, {"driver": {"peft": {"package": "peft", "version": "0.11"}}},
         ["the driver has peft 0.11, this process has none"]),
        ({"unpickled": True}, {"driver": {"numpy": NUMPY}, "Reader": {"numpy": NEWER}},
         ["this process has numpy 1.26.4, Reader 2.1.0"]),
        ({"role": "driver"}, {"Reader": {"numpy": NEWER}, "worker": {"numpy": NUMPY}},
         ["this process has numpy 1.26.4, Reader 2.1.0"]),
    ],
)  # fmt: skip
def test_who_sends_is_asked(hub: RunningHub, crash: Document, answers: dict[str, Document], clues: list[str]) -> None:
    kept = told(hub, crash, answers)
    assert list(clues_of(kept)) == clues
    assert ("other_versions" in kept) is bool(clues)


def test_pickles_of_code_are_of_one_python(hub: RunningHub) -> None:
    kept = told(hub, {"unpickled": True, "packages": {}}, {"driver": {}}, {"driver": "3.12.4"})
    assert list(clues_of(kept)) == ["this process has Python 3.11.7, the driver 3.12.4"]


def test_another_python_is_nothing_to_an_error_that_no_pickle_is_behind(hub: RunningHub) -> None:
    assert list(clues_of(told(hub, {}, {"driver": {"numpy": NUMPY}}, {"driver": "3.12.4"}))) == []


def test_the_page_says_it() -> None:
    crash = record("c1", 5.0, {"type": "TypeError", "message": "no"}, worker_id="w1").to_json()
    found = [{"package": "numpy", "here": "1.26.4", "there": "2.1.0", "whose": "driver"}]
    page = crash_page({**crash, "frames": [], "other_versions": found}, [], 6.0)
    assert "\nthis process has numpy 1.26.4, the driver 2.1.0\n" in page.plain
