"""Looking for functions in a process whose other threads go on."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FunctionType

import pytest

from devkit.debug.inworker import finding, held_back, torch_modules
from tests.pace import stretched

LOOKS = 5  # at each of them a tuple or two would break


def _modules() -> None:
    pytest.importorskip("torch")
    torch_modules.look()


@pytest.mark.parametrize(
    "look", [finding.Functions, finding.suspended, lambda: held_back.frame_of("rollout", None), _modules]
)
def test_a_look_harms_no_tuple_that_another_thread_is_building(look: Callable[[], object]) -> None:
    """CPython raises SystemError in `tuple(generator)` when somebody else refers to the unfinished tuple."""
    look()  # with what it imports
    over, broken = threading.Event(), []

    def build() -> None:
        while not over.is_set():
            try:
                tuple(number for number in (lone for lone in range(50)))
            except SystemError as error:
                broken.append(error)

    builders = [threading.Thread(target=build) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # more of such moments in less time
    try:
        for builder in builders:
            builder.start()
        for _ in range(LOOKS):
            look()
    finally:
        over.set()
        sys.setswitchinterval(interval)
    for builder in builders:
        builder.join(stretched(30))
    assert not broken


def test_modules_are_looked_through_only_where_the_program_froze_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes many times as long. Python 3.12 has frozen some objects of its own before anything else runs."""
    walks = []
    monkeypatch.setattr(finding, "_in_modules", lambda: walks.append(1) or iter(()))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    finding.Functions()
    assert not walks
    gc.freeze()
    try:
        finding.Functions()
    finally:
        gc.unfreeze()
    assert walks


def test_a_look_calls_no_audit_hook_of_the_program_for_each_object() -> None:
    """Hooks are for good, so it is another process that has one. Within one, other threads run."""
    program = (
        "import sys, threading\n"
        "from types import FunctionType\n"
        "from devkit.debug.inworker import finding\n"
        "heard = []\n"
        "sys.addaudithook(lambda event, _: heard.append(event))\n"
        "found = finding.instances(FunctionType)\n"
        "print(len(found) > 1000, len(heard))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    many, events = said.split()
    assert many == "True" and int(events) < 10


def test_a_look_finds_functions_and_leaves_the_collector_as_it_was() -> None:
    def local() -> None: ...

    for was_enabled in (True, False):
        gc.enable() if was_enabled else gc.disable()
        try:
            found = finding.Functions()
            assert gc.isenabled() == was_enabled
        finally:
            gc.enable()
        assert local in found.of(__file__)
        assert all(type(each) is FunctionType for each in found.all)
