"""Results of which some were taken and others never."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import calls_made, cut_off, driver_notes, kills, noticeboard, untaken
from tests.debug.conftest import PROGRAMS, Cluster, Job, mark
from tests.debug.noticeboard_fake import Store, connected

PROGRAM = "untaken.py"
SAMPLE = {"tokens": [1, 2]}


class Reference:
    alive: set[str]

    def __init__(self, number: int) -> None:
        self.id = number.to_bytes(calls_made.TASK_BYTES, "big")

    def binary(self) -> bytes:
        return self.id + b"\1\0\0\0"


class Context:
    """As Ray's, which makes values of what it gets."""

    def deserialize_objects(self, serialized: list[Any], references: list[Any], rdt_objects: Any = None) -> list[Any]:
        return serialized

    def add_contained_object_ref(self, reference: Any, *, allow_out_of_band_serialization: bool) -> None: ...


class Play:
    """A driver that calls, and takes."""

    def __init__(self) -> None:
        self.count = 0
        self.alive: set[str] = set()
        self.context = Context()
        self.code = compile("pass", str(Path(__file__).parent / "job.py"), "exec")

    def ask(self, count: int, name: str = "Runner.sample", line: int = 3, given: Any = None) -> list[Reference]:
        found = []
        for at in range(count):
            self.count += 1
            found.append(Reference(self.count))
            call = calls_made.Called(name, 0.0, self.code, line, b"", 0, None)
            arguments = [] if given is None else [given[at]]
            calls_made._tell(found[-1], call, (arguments, {}), {})
        return found

    def get(self, references: list[Reference], value: Any = SAMPLE) -> None:
        self.context.deserialize_objects([value] * len(references), references)

    def said(self) -> list[str]:
        sites = [each for each in untaken._sites.values() if each is not None]
        notes = [untaken._note(each, lost) for each in sites if (lost := each.lost(self.alive, at_end=True))]
        return [text.partition(" that")[0] for _, _, text in untaken.said(notes)]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    connected(monkeypatch)
    for name in ("deserialize_objects", "add_contained_object_ref"):
        monkeypatch.setattr(Context, name, getattr(Context, name))
    state = untaken._State()
    state.kind = Reference
    monkeypatch.setattr(untaken, "_state", state)
    monkeypatch.setattr(untaken, "_open", {})
    monkeypatch.setattr(untaken, "_sites", {})
    monkeypatch.setattr(calls_made, "_listeners", [])
    monkeypatch.setattr(cut_off, "_cancelled", {})
    calls_made.listen(untaken.asked, untaken.passed)
    untaken._watch(Context)
    play = Play()
    monkeypatch.setattr(untaken, "_alive", lambda: play.alive)
    return play


def test_what_was_not_ready_in_time(play: Play) -> None:
    refs = play.ask(8)
    play.get(refs[:3] + refs[4:7])
    assert play.said() == ["2 of the 8 results of Runner.sample"]


def test_in_each_step(play: Play) -> None:
    for _ in range(3):
        play.get(play.ask(8)[:6])
    assert play.said() == ["6 of the 24 results of Runner.sample"]


def test_in_very_many_steps(play: Play) -> None:
    for _ in range(500):
        play.get(play.ask(8)[:6])
    assert play.said() == ["1000 of the 4000 results of Runner.sample"]
    [site] = [each for each in untaken._sites.values() if each is not None]
    assert len(site.waves) <= untaken.MOST_WAVES and len(untaken._open) <= 2 * untaken.MOST_WAVES


@pytest.mark.parametrize("name", ["Learner.update_actor", "Worker.get_stats", "log", "Env.step"])
def test_of_calls_that_do_something_nobody_wants_all_results(play: Play, name: str) -> None:
    play.get(play.ask(8, name)[:5])
    assert play.said() == []


@pytest.mark.parametrize("value", [None, True, 3, "saved", {}, ValueError("no")])
def test_of_results_that_are_nothing(play: Play, value: Any) -> None:
    play.get(play.ask(8)[:5], value)
    assert play.said() == []


def all_later(play: Play) -> None:
    pending: list[Reference] = []
    for _ in range(4):
        pending += play.ask(8)
        play.get(pending[:5])
        pending = pending[5:]
    play.get(pending)


def the_first_one(play: Play) -> None:
    for _ in range(4):
        play.get(play.ask(8)[3:4])


def the_last_ones_of_many(play: Play) -> None:
    for _ in range(4):
        play.get(play.ask(8)[-2:])


def the_first_of_each_group(play: Play) -> None:
    for _ in range(3):
        play.get(play.ask(8)[::4])


def none_of_them(play: Play) -> None:
    play.ask(8)


def pipelined(play: Play) -> None:
    """What is in flight when the program ends is lost by intention; one came late."""
    late, *pending = play.ask(8)
    for _ in range(40):
        play.get(pending[:2])
        pending = [*pending[2:], *play.ask(2)]
        play.alive = {each.id.hex() for each in (late, *pending)}
    play.alive = set()


def one_step_ahead(play: Play) -> None:
    ahead = play.ask(8)
    for _ in range(4):
        now, ahead = ahead, play.ask(8)
        play.get(now)


def one_by_one(play: Play) -> None:
    for _ in range(9):
        play.get(play.ask(1))
    play.ask(1)


def with_retries(play: Play) -> None:
    """What has not come in time is asked for again, with the same prompt."""
    prompts = [f"prompt {at}" for at in range(8)]
    for _ in range(3):
        play.get(play.ask(8, given=prompts)[:6])
        play.get(play.ask(2, given=prompts[6:]))


def passed_on(play: Play) -> None:
    first, second, *refs = play.ask(8)
    play.get(refs)
    calls_made.tell_passed([first], {})
    play.context.add_contained_object_ref(second, allow_out_of_band_serialization=True)


def cancelled(play: Play) -> None:
    refs = play.ask(8)
    play.get(refs[:6])
    for each in refs[6:]:
        cut_off._cancelled[each.id] = None


def of_actors_that_were_killed(play: Play) -> None:
    refs = play.ask(8)
    play.get(refs[:6])
    kills._noted.extend({"actor": each.id[cut_off.ACTOR :].hex()} for each in refs[6:])


@pytest.mark.parametrize(
    "act",
    [
        *(
            all_later,
            the_first_one,
            the_last_ones_of_many,
            the_first_of_each_group,
            none_of_them,
            pipelined,
            one_step_ahead,
            one_by_one,
        ),
        *(with_retries, passed_on, cancelled, of_actors_that_were_killed),
    ],
)
def test_healthy_programs(play: Play, act: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "_noted", type(kills._noted)(maxlen=20))
    act(play)
    assert play.said() == []


def test_the_same_prompts_in_each_step_are_no_retries(play: Play) -> None:
    prompts = [f"prompt {at}" for at in range(8)]
    for _ in range(3):
        play.get(play.ask(8, given=prompts)[:6])
    assert play.said() == ["6 of the 24 results of Runner.sample"]


def test_what_is_kept_for_later_is_not_lost(play: Play) -> None:
    refs = play.ask(8)
    play.get(refs[:6])
    play.get(play.ask(8))
    play.alive = {each.id.hex() for each in refs[6:]}
    assert play.said() == []


def test_no_text_of_the_programs_is_kept(play: Play) -> None:
    """A prompt may be long, and what is asked for in vain stays here until the end."""
    prompt = "".join(["tell me ", "a story"])
    kept = sys.getrefcount(prompt)
    play.get(play.ask(8, given=[prompt] * 8)[:6])
    assert play.said() and sys.getrefcount(prompt) == kept


def test_too_many_are_not_followed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untaken, "MOST_OF_SITE", 10)
    play.get(play.ask(8)[:4])
    play.ask(20)
    play.get(play.ask(8, line=9)[:4])
    assert play.said() == ["4 of the 8 results of Runner.sample"]
    assert len(untaken._open) == 4


def test_a_worker_tells_what_is_gone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    store = connected(monkeypatch)
    refs = play.ask(8)
    play.get(refs[:6])
    play.alive = {each.id.hex() for each in refs[6:]}
    assert untaken._state.look() and not store.kept, "it has them still"
    play.alive.clear()
    untaken._state.look()
    [note] = noticeboard.every(untaken.KIND)
    assert (note["lost"], note["asked"], note["name"]) == (2, 8, "Runner.sample")
    play.get(refs[6:])
    assert not untaken._state.look(), "there is nothing left"


def test_a_driver_that_failed_has_lost_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store: Store = connected(monkeypatch)
    play.get(play.ask(8)[:6])
    try:
        raise ValueError
    except ValueError:
        driver_notes.tell_changed()
    assert capfd.readouterr().err == ""
    note = {"file": "a.py", "line": 3, "name": "score", "lost": 1, "asked": 4, "driver": False}
    noticeboard.put(untaken.KIND, "other", note)
    untaken.tell()
    assert capfd.readouterr().err.splitlines() == [
        "a.py:3: DevkitWarning: at least 1 of the first 4 results of score that are asked for here was never taken: no "
        "ray.get, await or other call has got it",
        f"{play.code.co_filename}:3: DevkitWarning: 2 of the 8 results of Runner.sample that are asked for here were "
        "never taken: no ray.get, await or other call has got them",
    ]
    assert not store.kept


def test_what_a_call_costs(play: Play) -> None:
    began = time.process_time()
    for _ in range(100):
        play.get(play.ask(100))
    assert (time.process_time() - began) / 10_000 < 100e-6  # seconds; it is about 4e-6


def test_on_rays_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pytest.importorskip("ray._private.serialization").SerializationContext
    for name in ("deserialize_objects", "add_contained_object_ref"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    untaken._watch(kind)
    assert hasattr(kind.deserialize_objects, untaken._MARK)
    assert kind.add_contained_object_ref.__name__ == "add_contained_object_ref"


@pytest.mark.ray
def test_samples_that_came_too_late(cluster: Cluster) -> None:
    job = Job(cluster, "--", sys.executable, str(PROGRAMS / PROGRAM))
    try:
        assert job.end() == 0, job.out
    finally:
        job.kill()
    lines = [line for line in job.out.splitlines() if "DevkitWarning" in line]
    at = f"{PROGRAMS / PROGRAM}:{{}}: DevkitWarning: "
    assert sorted(line.partition(" that")[0] for line in lines) == sorted(
        [
            at.format(mark(PROGRAM, "asked")) + "3 of the 12 results of Runner.sample",
            at.format(mark(PROGRAM, "cut")) + "2 of the 6 results of score",
            at.format(mark(PROGRAM, "inside")) + "at least 4 of the first 12 results of score",
        ]
    ), job.out
