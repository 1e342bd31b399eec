"""A worker that fails with another copy of a module than its driver has: which, and where both are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.crash_page import clues_of
from devkit.debug.inworker import editions
from devkit.debug.inworker.operations import OPERATIONS
from tests.debug.hubs import FakeAgent, RunningHub, identity, running_hub
from tests.debug.test_hub import eventually
from tests.debug.test_killed import record

NAME = "devkit_tests_protocol"
OLD = "class Sample:\n    def mask(self):\n        return 1\n"
HERE = {"file": "/session/py_modules/protocol.py", "digest": "1"}
THERE = {"file": "/job/protocol.py", "digest": "2"}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / f"{NAME}.py").write_text(OLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


@pytest.mark.parametrize("held", ["itself", "list", "dict"])
def test_the_modules_of_what_a_failing_frame_holds(module: Any, held: str) -> None:
    def fails() -> None:
        sample = module.Sample()
        values = {"itself": sample, "list": [sample], "dict": {"a": sample}}[held]
        raise TypeError(f"{len(str(values))}")

    with pytest.raises(TypeError) as caught:
        fails()
    frames = [entry.frame.raw for entry in caught.traceback]
    found = editions.of_error(reversed(frames))
    assert found[NAME]["file"] == module.__file__ and "builtins" not in found and "__main__" not in found
    answer = OPERATIONS["modules"](None, {"names": [NAME, "json", "not there"]})
    assert answer == {"modules": {NAME: found[NAME]}}
    Path(module.__file__).write_text(OLD + "# newer\n")
    assert editions.differing(found, editions.of_modules([NAME])) == [
        {"module": NAME, "here": module.__file__, "there": module.__file__}
    ]


def test_the_driver_is_asked_for_its_own_and_a_difference_is_told(tmp_path: Path) -> None:
    answers = {"modules": {"modules": {"protocol": THERE, "same": HERE}}}
    with running_hub(tmp_path) as hub:
        assert_told(hub, answers, {"protocol": HERE, "same": HERE}, [{"module": "protocol", **files()}])


def files() -> dict[str, str]:
    return {"here": HERE["file"], "there": THERE["file"]}


def assert_told(hub: RunningHub, answers: dict[str, Any], modules: dict[str, Any], differs: list[Any]) -> None:
    worker = FakeAgent(hub, identity("w1", job_id="02"))
    FakeAgent(hub, {**identity("w2", job_id="02"), "role": "driver"}, answers)
    crash = record("c1", 5.0, {"type": "TypeError", "message": "no"}, worker_id="w1").to_json()
    with hub.client() as client:
        eventually(lambda: len(client.call("ps")["workers"]) == 2)
        worker.connection.send({"type": "crash", "document": {**crash, "frames": [], "modules": modules}})
        eventually(lambda: client.call("crashes")["crashes"])
        eventually(lambda: "differs" in client.call("crash", id="c1"))
        kept = client.call("crash", id="c1")
    assert kept["differs"] == differs
    assert list(clues_of(kept)) == [
        f"another copy of protocol than the driver's: here {HERE['file']}, there {THERE['file']}"
    ]
