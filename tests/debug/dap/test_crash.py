"""`devkit dap --crash`: a real snapshot, kept by a real hub after its worker has gone, as an editor sees it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from devkit.debug.dap import Options
from devkit.debug.dap_crash_frames import RecordedSources, exception_info, is_as_recorded, threads_of
from devkit.debug.dap_paths import Paths
from devkit.debug.dap_recorded import children, look_up, type_of
from devkit.debug.inworker import snapshot
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.vanished import vanished
from devkit.errors import UsageError
from tests.debug.dap.support import Client, Worker, running, until
from tests.debug.hubs import RunningHub

HERE = Path(__file__)
WHO = Identity("01", "w" * 8, "n1", "10.0.0.5", "host", 7, role="Worker", rank=1, python="3.11.7")
Document = dict[str, Any]


class Model:
    def __init__(self) -> None:
        self.rates = {"lr": 0.5, "beta": [0.9, 0.999]}
        self.name = "policy"


def update(model: Model, step: int) -> None:
    raise ValueError(f"step {step}: loss is not finite")  # @raised


def train(api_key: str) -> None:
    model = Model()
    nested = SimpleNamespace(batch=[[1, 2]])
    assert nested
    try:
        update(model, 3)  # @called
    except ValueError as error:
        raise RuntimeError("training failed") from error  # @wrapped


def marked(name: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{name}"))


def crash() -> Document:
    try:
        train("sk-1234")
    except RuntimeError as error:
        document: Document = json.loads(json.dumps(snapshot.take(error, WHO, "task", budget=5.0)))
        return document
    raise AssertionError("it did not fail")


def keep(hub: RunningHub, document: Document) -> str:
    """A worker tells the hub of a crash, and dies."""
    worker = Worker(1)
    worker.join(hub)
    worker._send({"type": "crash", "document": document})
    with hub.client() as client:
        until(lambda: client.call("crashes")["crashes"])
    worker.close()
    return str(document["id"])


def opened(client: Client) -> list[Document]:
    """The frames of the thread that failed."""
    client.attach()
    thread = client.event("stopped")["threadId"]
    frames: list[Document] = client.ask("stackTrace", threadId=thread)["stackFrames"]
    return frames


def variables(client: Client, reference: int) -> dict[str, Document]:
    return {each["name"]: each for each in client.ask("variables", variablesReference=reference)["variables"]}


def local_variables(client: Client, frame: Document) -> dict[str, Document]:
    [scope] = client.ask("scopes", frameId=frame["id"])["scopes"]
    assert scope["name"] == "Locals"
    return variables(client, scope["variablesReference"])


def test_a_dead_workers_crash_is_a_stop(hub: RunningHub) -> None:
    name = keep(hub, crash())
    with running(Options(crash=name[:6]), hub.client) as session:
        client = session.client
        frames = opened(client)
        hub.stop()  # the snapshot is all that is needed from now on
        stop = client.event("stopped")
        assert (stop["reason"], stop["text"]) == ("exception", "RuntimeError: training failed")
        threads = client.ask("threads")["threads"]
        assert threads[0] == {"id": stop["threadId"], "name": "Worker[1]: RuntimeError"}
        assert "MainThread" in [each["name"] for each in threads[1:]]
        told = [(each["name"], each["line"]) for each in frames]
        assert told[0] == ("train", marked("wrapped"))
        assert told[told.index(("[caused by: ValueError] update", marked("raised"))) + 1] == (
            "[caused by: ValueError] train",
            marked("called"),
        )
        assert all(each["source"]["path"] == str(HERE) for each in frames if "train" in each["name"])
        other = client.ask("stackTrace", threadId=threads[-1]["id"])
        assert other["totalFrames"] == len(other["stackFrames"]) > 0
        client.leave()
        client.event("terminated")
        assert session.code() == 0


def test_variables_are_a_tree(hub: RunningHub) -> None:
    with running(Options(crash=keep(hub, crash())), hub.client) as session:
        client = session.client
        frame = next(each for each in opened(client) if each["name"].endswith("update"))
        found = local_variables(client, frame)
        assert (found["step"]["value"], found["step"]["type"], found["step"]["variablesReference"]) == ("3", "int", 0)
        assert found["model"]["type"] == "Model"
        model = variables(client, found["model"]["variablesReference"])
        assert model["name"]["value"] == "'policy'"
        rates = variables(client, model["rates"]["variablesReference"])
        assert rates["'lr'"]["evaluateName"] == "model.rates['lr']"
        beta = variables(client, rates["'beta'"]["variablesReference"])
        assert beta["[1]"]["value"] == "0.999"
        for name in [*(each["evaluateName"] for each in (*model.values(), *rates.values(), *beta.values()))]:
            assert client.ask("evaluate", expression=name, frameId=frame["id"])["result"]


def test_evaluate_knows_what_was_recorded_and_nothing_else(hub: RunningHub) -> None:
    with running(Options(crash=keep(hub, crash())), hub.client) as session:
        client = session.client
        frames = opened(client)
        train_frame = frames[0]
        ask = {"frameId": train_frame["id"], "context": "watch"}
        assert client.ask("evaluate", expression="nested.batch[0]", **ask)["result"] == "[1, 2]"
        assert client.ask("evaluate", expression=" model.rates['beta'][-1] ", **ask)["result"] == "0.999"
        reference = client.ask("evaluate", expression="model", **ask)["variablesReference"]
        assert "rates" in variables(client, reference)
        for expression in ("len(nested)", "model.rates['lr'] + 1", "unknown", "model.nothing", "1 +", "x = 1"):
            response = client.request("evaluate", expression=expression, **ask)
            assert not response["success"]
            assert "the process is gone: only recorded variables can be seen" in response["message"]
        assert "sk-1234" not in json.dumps(client.ask("evaluate", expression="api_key", **ask))


def test_nothing_moves(hub: RunningHub) -> None:
    with running(Options(crash=keep(hub, crash())), hub.client) as session:
        client = session.client
        opened(client)
        for command in ("continue", "next", "stepIn", "stepOut", "pause", "setVariable", "restart", "goto"):
            response = client.request(command, threadId=1)
            assert not response["success"]
            assert "the process is gone" in response["message"]
        [point] = client.ask("setBreakpoints", source={"path": str(HERE)}, breakpoints=[{"line": 3}])["breakpoints"]
        assert not point["verified"]


def test_exception_info_has_the_chain(hub: RunningHub) -> None:
    with running(Options(crash=keep(hub, crash())), hub.client) as session:
        opened(session.client)
        info = session.client.ask("exceptionInfo", threadId=1)
        assert (info["exceptionId"], info["description"]) == ("RuntimeError", "training failed")
        assert info["breakMode"] == "unhandled"
        [inner] = info["details"]["innerException"]
        assert (inner["typeName"], inner["innerException"]) == ("ValueError", [])
        text = info["details"]["stackTrace"]
        assert text.index("ValueError: step 3") < text.index("RuntimeError: training failed")
        assert f'File "{HERE}", line {marked("raised")}, in update' in text


def test_impossible_requests_are_answered(hub: RunningHub) -> None:
    with running(Options(crash=keep(hub, crash())), hub.client) as session:
        client = session.client
        opened(client)
        for command, arguments in (
            ("stackTrace", {"threadId": 99}),
            ("scopes", {"frameId": 5}),
            ("variables", {"variablesReference": 10_000}),
            ("variables", {}),
            ("source", {"source": {"path": "/nowhere/x.py"}}),
        ):
            assert not client.request(command, **arguments)["success"], command


def test_a_file_that_is_not_here_is_read_from_the_snapshot(hub: RunningHub) -> None:
    document = json.loads(json.dumps(crash(), ensure_ascii=False).replace(str(HERE), "/elsewhere/job.py"))
    with running(Options(crash=keep(hub, document)), hub.client) as session:
        client = session.client
        frame = opened(client)[0]
        source = frame["source"]
        assert source["sourceReference"] > 0
        content = client.ask("source", source=source, sourceReference=source["sourceReference"])["content"]
        assert content.splitlines()[frame["line"] - 1].endswith("# @wrapped")


def test_a_file_that_changed_since_is_read_from_the_snapshot(tmp_path: Path) -> None:
    same, changed = tmp_path / "same.py", tmp_path / "changed.py"
    same.write_text(HERE.read_text())
    changed.write_text("# a new first line\n" + HERE.read_text())

    def source(path: Path) -> tuple[Document, RecordedSources]:
        threads = threads_of(json.loads(json.dumps(crash(), ensure_ascii=False).replace(str(HERE), str(path))))
        sources = RecordedSources(threads, Paths(str(tmp_path)))
        return sources.source(threads[1].frames[0]), sources

    assert source(same)[0] == {"name": "same.py", "path": str(same)}
    shown, sources = source(changed)
    text = sources.text(shown["sourceReference"], "")
    assert text is not None
    assert text.splitlines()[marked("wrapped") - 1].endswith("# @wrapped")
    assert not is_as_recorded(str(tmp_path / "none.py"), {})


def test_unpacked_code_is_the_workspaces_file(tmp_path: Path, hub: RunningHub) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "job.py").write_text(HERE.read_text())
    unpacked = "/tmp/ray/session_9/runtime_resources/working_dir_files/_ray_pkg_0f3a/pkg/job.py"
    document = json.loads(json.dumps(crash(), ensure_ascii=False).replace(str(HERE), unpacked))
    with running(Options(crash=keep(hub, document), workspace=str(tmp_path)), hub.client) as session:
        assert opened(session.client)[0]["source"]["path"] == str(tmp_path / "pkg" / "job.py")


def test_an_unknown_crash_is_told(hub: RunningHub) -> None:
    name = keep(hub, crash())
    with running(Options(crash="nope"), hub.client) as session:
        message = session.client.request("initialize")["message"]
        assert "no crash has the id 'nope'" in message
        assert name in message
        session.client.close()
        assert isinstance(session.code(), UsageError)


def test_a_crash_without_a_stack_is_still_a_session(hub: RunningHub) -> None:
    document = vanished(WHO, {"signal": "SIGSEGV", "message": "segmentation fault"}, "it died")
    with running(Options(crash=keep(hub, document)), hub.client) as session:
        assert opened(session.client) == []
        assert session.client.ask("exceptionInfo", threadId=1)["exceptionId"] == "SIGSEGV"
        assert not session.client.request("evaluate", expression="x")["success"]


def test_arrays_and_notes() -> None:
    array = {"tensor": {"dtype": "float32", "shape": [2, 3], "nan": 1}}
    assert [child.path for child in children(array, "x")] == ["x.dtype", "x.shape", "x.nan"]
    assert (type_of(array), type_of({"type": "Batch", "cut": "time"})) == ("tensor", "Batch")
    assert look_up("x.shape[1]", {"x": array}) == 3
    assert list(children({"type": "Batch", "cut": "time"}, "x")) == []
    assert look_up("d[7]", {"d": {"7": "seven"}}) == "seven"


def test_exception_info_of_a_light_document() -> None:
    document = {"exception": {"type": "E", "message": "m"}, "frames": [], "chain": []}
    assert exception_info(document)["details"]["innerException"] == []
