"""Snapshots that are damaged, or that somebody else has written: passed over in the list, one error when shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit.debug import crashes
from devkit.debug.crash_adapter import CrashSession, fetch
from devkit.debug.crash_table import crash_table
from devkit.debug.inworker import crash_files
from devkit.debug.inworker.stacks import PySpyError, threads_of
from devkit.errors import DevkitError
from tests.debug.conftest import eventually
from tests.debug.hub_fake import FakeHub, printed
from tests.debug.hubs import FakeAgent, identity, running_hub
from tests.debug.test_crashes_view import take

SOUND = take()
NAMES = tuple(SOUND)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all that a document holds."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, one in inner for each in places(one, (*path, key)))]


PLACES = [place for place in places(json.loads(json.dumps(SOUND))) if place]


def changed(place: tuple[Any, ...], to: Any) -> dict[str, Any]:
    document: Any = json.loads(json.dumps(SOUND))
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return document  # type: ignore[no-any-return]


@given(st.sampled_from(PLACES), JSON)
@example(("time",), "x")
@example(("id",), "../../x")
@example(("exception",), [])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_leaves_the_others_to_be_listed(tmp_path: Path, place: tuple[Any, ...], to: Any) -> None:
    folder = tmp_path / "crashes"
    crash_files.store({**SOUND, "id": "sound"}, folder)
    (folder / "damaged.json").write_text(json.dumps(changed(place, to)))
    found = crash_files.list_folder(folder)
    assert "sound" in [each.id for each in found]
    printed(crash_table(found, 1.0, width=80))


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_among_them(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "crashes"
    crash_files.store({**SOUND, "id": "sound"}, folder)
    (folder / "any.json").write_bytes(content)
    assert [each.id for each in crash_files.list_folder(folder)] == ["sound"]


@given(st.sampled_from(PLACES), JSON, st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_shown_or_is_one_error(
    capsys: pytest.CaptureFixture[str], place: tuple[Any, ...], to: Any, everything: bool
) -> None:
    document = changed(place, to)
    record = crash_files.record_of(SOUND).to_json()
    hub = FakeHub(crashes={"crashes": [record]}, crash=document)
    with suppress(DevkitError):
        assert crashes.run_show(hub, record["id"], everything=everything) == 0
    capsys.readouterr()


@given(st.sampled_from(PLACES), JSON)
@settings(max_examples=100, deadline=None)
def test_an_editor_reads_any_document_or_is_told(place: tuple[Any, ...], to: Any) -> None:
    """`devkit dap --crash`: everything that an editor unfolds; one error in place of the session, else."""
    record = crash_files.record_of(SOUND).to_json()
    hub = FakeHub(crashes={"crashes": [record]}, crash=changed(place, to))
    editor = ReadingEditor()
    with suppress(DevkitError):
        document = fetch(lambda: hub, record["id"])
        CrashSession(SimpleNamespace(stop=lambda code: None), editor, document, "/work").start()  # type: ignore[arg-type]
        editor.unfold()


class ReadingEditor:
    """Asks a session for all that it shows, as an editor's panels do; what it is told goes over the wire as JSON."""

    on_request: Callable[[dict[str, Any]], None]
    on_end: Callable[[], None]

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.body: dict[str, Any] = {}

    def start(self) -> None: ...

    def answer(self, request: dict[str, Any], body: dict[str, Any]) -> None:
        self.told.append(body)
        self.body = body

    def refuse(self, request: dict[str, Any], *said: str) -> None:
        self.told.append(said)
        self.body = {}

    def event(self, name: str, body: dict[str, Any] | None = None) -> None:
        self.told.append(body)

    def output(self, text: str) -> None:
        self.told.append(text)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.on_request({"command": command, "arguments": arguments})
        return self.body

    def list(self, name: str, *arguments: Any, **named: Any) -> list[Any]:
        """Nothing, where the request is refused."""
        return list(self.ask(*arguments, **named).get(name, ()))

    def unfold(self) -> None:
        for command in ("initialize", "attach", "configurationDone"):
            self.ask(command)
        for thread in self.list("threads", "threads"):
            self.ask("exceptionInfo", threadId=thread["id"])
            for frame in self.list("stackFrames", "stackTrace", threadId=thread["id"]):
                source = frame.get("source") or {}
                self.ask("source", source=source, sourceReference=source.get("sourceReference", 0))
                self.ask("evaluate", expression="self.x[0]", frameId=frame["id"])
                for scope in self.list("scopes", "scopes", frameId=frame["id"]):
                    for each in self.list("variables", "variables", variablesReference=scope["variablesReference"]):
                        self.ask("variables", variablesReference=each["variablesReference"])
        json.dumps(self.told)


def test_the_hub_keeps_no_crash_under_a_name_that_leads_elsewhere(tmp_path: Path) -> None:
    with running_hub(tmp_path / "crashes") as hub, hub.client() as client:
        agent = FakeAgent(hub, identity("w1"))
        for crash_id in ("../escaped", "/tmp/escaped", "", ".hidden"):
            agent.connection.send({"type": "crash", "document": {**SOUND, "id": crash_id}})
        agent.connection.send({"type": "crash", "document": {**SOUND, "id": "sound"}})
        found = eventually(lambda: client.call("crashes")["crashes"], "a crash in the list", 10.0)
    assert [each["id"] for each in found] == ["sound"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["sound.json"]


@given(
    JSON
    | st.lists(
        st.fixed_dictionaries(
            {
                "thread_name": JSON,
                "frames": st.lists(st.dictionaries(st.sampled_from(["filename", "line", "name"]), JSON), max_size=2)
                | JSON,
            }
        ),
        max_size=2,
    )
)
@settings(max_examples=100, deadline=None)
def test_whatever_py_spy_prints_is_stacks_or_is_told(document: Any) -> None:
    try:
        threads_of(json.dumps(document).encode())
    except PySpyError:
        return
