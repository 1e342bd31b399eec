"""How long a command waits follows its `--timeout`: what answers late is not taken for something else."""

from __future__ import annotations

import ast
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from devkit import patience
from devkit.debug import address as address_module
from devkit.debug import breaks, gcs, gcs_probe, gcs_tables, gcs_tables_probe, job_ends, state
from devkit.debug.address import resolve
from devkit.debug.gcs import GcsAddress
from devkit.debug.rows import JobRow
from devkit.errors import UnreachableError
from tests.debug.test_dashboard import Server

LATE = 0.6  # seconds until the slow one answers
SHORT, LONG = 0.2, 60.0  # what its user gives it
DEBUG = Path(address_module.__file__).parent


class Slow(Server):
    """A dashboard on a busy machine: it takes connections at once, and answers late."""

    def __init__(self) -> None:
        super().__init__()
        self.json("/api/authentication_mode", {"authentication_mode": "disabled"})
        self.json("/api/version", {"ray_version": "2.53.0", "session_name": "s"})
        handler = self._server.RequestHandlerClass
        answer = handler.answer  # type: ignore[attr-defined]

        def late(request: Any) -> None:
            threading.Event().wait(LATE)
            answer(request)

        handler.do_GET = late  # type: ignore[attr-defined]


@pytest.fixture
def slow() -> Iterator[str]:
    """HOST:PORT of one."""
    with closing(Slow()) as server:
        yield server.url.removeprefix("http://")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "devkit"))
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("STILL_SECONDS", "GUESS_SECONDS"):  # what is usual is less than the slow one needs
        monkeypatch.setattr(address_module, name, SHORT)
    yield
    patience.forget()


def nobody(*_: Any) -> Any:
    raise UnreachableError("it is asked for a GCS", hint="")


def test_a_dashboard_that_answers_late_is_one_for_who_has_the_time(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "ask", nobody)
    patience.give(LONG)
    assert resolve(slow).dashboard_url == f"http://{slow}"
    patience.give(SHORT)
    with pytest.raises(UnreachableError, match="asked for a GCS"):
        resolve(slow)


def test_so_is_one_that_was_there_before(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Server()) as other:
        of_gcs = other.url.removeprefix("http://")
        state.see(of_gcs, state.Seen(f"http://{slow}", "s"))
        monkeypatch.setattr(gcs, "ask", nobody)
        patience.give(LONG)
        assert resolve(of_gcs).dashboard_url == f"http://{slow}"


def test_a_port_is_waited_for_as_long_as_its_user_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def refuse(_: str, __: int, deadline: float) -> None:
        given.append(deadline - time.monotonic())
        raise TimeoutError

    monkeypatch.setattr(gcs, "open_socket", refuse)
    address = GcsAddress("192.0.2.7", 6379)
    for wanted in (None, LONG, SHORT):
        patience.forget()
        patience.give(wanted)
        with pytest.raises(gcs.NobodyError):
            gcs.check(address)
        with pytest.raises(gcs.NobodyError):
            gcs.ask(address, None, LONG)
    assert given == pytest.approx([gcs.CONNECT_SECONDS] * 2 + [LONG] * 2 + [SHORT] * 2, abs=0.15)


class Client:
    """Of a GCS: it notes what it is given for each answer."""

    def __init__(self) -> None:
        self.given: list[float] = []

    def internal_kv_get(self, *_: bytes, timeout: float) -> None:
        self.given.append(timeout)

    def get_all_node_info(self, timeout: float) -> dict[Any, Any]:
        self.given.append(timeout)
        return {}


@pytest.mark.parametrize("wanted", [None, LONG])
def test_so_does_each_answer_of_a_gcs(wanted: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[dict[str, Any]] = []
    monkeypatch.setattr(gcs.Asked, "_start", lambda _: None)

    def ask(_: gcs.Asked, question: dict[str, Any], __: float) -> dict[str, Any]:
        questions.append(json.loads(json.dumps(question)))
        return {"nodes": [], "dashboard": "", "session": "", "hub": "", "rows": []}

    monkeypatch.setattr(gcs.Asked, "ask", ask)
    patience.give(wanted)
    gcs.Watch(GcsAddress("127.0.0.1", 1), None).facts()
    gcs_tables.GcsTables("127.0.0.1:1", None).nodes()
    assert [each["seconds"] for each in questions] == (
        [LONG, LONG] if wanted else [gcs.PROBE_SECONDS, gcs_tables.TABLE_SECONDS]
    )
    # and the programs that ask hand it on
    client = Client()
    gcs_probe.ask(client, questions[0]["seconds"])
    assert client.given == [questions[0]["seconds"]] * 4
    assert set(questions[1]) - {"table"} < set(gcs_tables_probe._rows.__annotations__)


def test_so_does_the_hub_that_knows_how_drivers_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    def connect(_: str, *, deadline: float | None = None) -> Any:
        given.append(deadline)
        return nullcontext(None)

    monkeypatch.setattr("devkit.debug.client.connect", connect)
    for wanted in (None, LONG):
        patience.give(wanted)
        job_ends.of_cluster([JobRow(job_id="01", status="SUCCEEDED")], "http://127.0.0.1:1")
    assert given == [job_ends.HUB_SECONDS, LONG]


def test_so_do_processes_that_are_late_to_arm_a_breakpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[float] = []

    class Late:
        def call(self, op: str, **words: Any) -> Any:
            given.append(words["wait"])
            return {"id": "b1"}

    monkeypatch.setattr("devkit.debug.client.connect", lambda _: nullcontext(Late()))
    for wanted in (None, LONG):
        patience.give(wanted)
        breaks.main(breaks.BreakOptions("raise ValueError", json=True))
    assert given == [breaks.ARM_SECONDS, patience.of_hub(breaks.ARM_SECONDS)] and given[1] > LONG / 2


def test_no_number_of_seconds_is_written_where_somebody_is_asked() -> None:
    """A number in a call is nobody's `--timeout`; each of these has its reason."""
    allowed = {
        ("cluster.py", "is_up"),  # a look at what may not be there
        ("cluster.py", "facts"),  # asked again and again, as long as a cluster comes up
        ("cluster_launch.py", "is_up"),
        ("cluster_look.py", "Dashboard"),  # likewise
        ("cluster_look.py", "facts"),
    }
    found = set()
    for file in DEBUG.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _called(node) in ASKS and any(map(_is_number, _arguments(node))):
                found.add((file.name, _called(node)))
    assert found == allowed


ASKS = ("Dashboard", "dashboard", "check", "is_up", "ask", "facts", "connect", "internal_kv_get", "get_all_node_info")


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(each.value for each in node.keywords)]


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
