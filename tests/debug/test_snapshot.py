"""Crash snapshots: what is in them, what is left out, which crash caused which, and the files."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.debug.crash_page import crash_page
from devkit.debug.crashes import complete
from devkit.debug.inworker import affordable, crash_files, expressions, snapshot, stacks
from devkit.debug.inworker.records import CrashRecord, Identity
from devkit.debug.inworker.texts import texts_here
from devkit.debug.inworker.vanished import vanished
from devkit.debug.inworker.words import NO_WORD
from tests.debug.hub_fake import printed

WHO = Identity("01", "w" * 8, "n1", "10.0.0.5", "host", 7, role="Worker", rank=1, python="3.11.7")


def failing(depth: int, tags: object = None, api_key: str = "") -> None:
    size = depth * 2
    if depth:
        failing(depth - 1, tags, api_key)
    raise ValueError(f"no size {size}")  # @fails


def wrapped() -> None:
    step = 3
    try:
        failing(1)
    except ValueError as error:
        raise RuntimeError(f"step {step} failed") from error


def crash_of(function: Any, *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - any failure is the test's material
        return error
    raise AssertionError("it did not fail")


def take(error: BaseException, **options: Any) -> dict[str, Any]:
    return snapshot.take(error, WHO, options.pop("kind", "task"), **{"budget": 60.0, **options})


def marked(name: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{name}"))


# ---- what is in them


def test_variables_of_an_inlined_comprehension_are_not_those_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 gives them back what they were before it, which never failed."""

    def reduce(merged: dict[str, list[object]]) -> None:
        key, values = "before", [1]  # what Python gives back
        size = len(values)
        {key: 1 / len(values) for key, values in merged.items()}
        assert size, key

    monkeypatch.setattr(expressions, "INLINES", True)
    frames = take(crash_of(reduce, {"loss": [2], "kl": []}))["frames"]
    [frame] = [each for each in frames if each["function"].endswith("reduce")]
    assert set(frame["locals"]) == {"merged", "size"}


REGISTRY = {"format": len, "length": None}
API_KEY = "correct-horse-battery"


def test_data_of_its_module_that_the_failing_line_names_is_shown() -> None:
    def builds(names: list[str]) -> list[Any]:
        return [REGISTRY[name] for name in names if API_KEY and json]

    document = take(crash_of(builds, ["math"]))
    found = [frame.get("globals") for frame in document["frames"][:2]]
    assert found[0] is not None and list(found[0]) == ["REGISTRY", "API_KEY"]
    page = printed(crash_page(document, [], document["time"]))
    assert "REGISTRY = {'format': <builtin_function_or_method len>, 'length': None}" in page, page
    assert "correct-horse" not in json.dumps(document) and "json = " not in page


class Refused(Exception):
    def __init__(self, status: int, api_key: str, reply: str | None) -> None:
        super().__init__(f"refused by {reply or 'nobody'}")
        self.status, self.api_key, self.reply, self._private, self.said = status, api_key, reply, 1, str(self)


def test_what_an_exception_keeps_in_itself_is_shown_with_it() -> None:
    def job() -> None:
        try:
            raise Refused(503, "correct-horse", None)
        except Refused as error:
            raise RuntimeError("no reward") from error

    document = take(crash_of(job))
    assert "attributes" not in document["chain"][0]
    assert document["chain"][1]["attributes"] == {"status": 503, "api_key": "<redacted>"}
    page = printed(crash_page(document, [], document["time"]))
    assert "Refused.status = 503" in page and "correct-horse" not in json.dumps(document)
    assert "attributes" not in take(crash_of(job), size=100)["chain"][1]


class Head:
    kept = 1

    @property
    def scale(self) -> float:
        return self.hidden_size  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


@pytest.mark.parametrize(("name", "is_told"), [("scale", True), ("hidden_size", False)])
def test_a_property_whose_own_error_was_lost_is_told_apart_from_a_missing_attribute(name: str, is_told: bool) -> None:
    def asks() -> None:
        getattr(Head(), name)

    document = take(crash_of(asks))
    assert document["exception"]["message"] == f"'Head' object has no attribute '{name}'"
    page = printed(crash_page(document, [], document["time"]))
    place = Head.scale.fget.__code__.co_firstlineno  # type: ignore[attr-defined]
    said = (
        f"scale is there: a property of Head, at tests/debug/test_snapshot.py:{place}; an AttributeError that it raised"
    )
    assert (said in page) is is_told, page
    assert "masked" not in take(crash_of(lambda: ().scale))  # type: ignore[attr-defined]


def test_names_the_line_that_failed_and_shows_its_variables_and_source() -> None:
    document = take(crash_of(failing, 0))

    assert (document["file"], document["line"], document["function"]) == (__file__, marked("fails"), "failing")
    assert document["exception"] == {"type": "ValueError", "message": "no size 0"}
    innermost, outermost = document["frames"][0], document["frames"][-1]
    assert innermost["locals"]["size"] == 0 and outermost["function"] == "crash_of"
    first, lines = innermost["source"]["first"], innermost["source"]["lines"]
    assert lines[marked("fails") - first] == '    raise ValueError(f"no size {size}")  # @fails'


def test_the_source_of_a_program_from_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """As of `python /dev/stdin`, whose code names a file that gives nothing more."""
    pipe = tmp_path / "stdin"
    os.mkfifo(pipe)
    scope: dict[str, Any] = {}
    exec(compile("def fails():\n    raise ValueError('no')\n", str(pipe), "exec"), scope)
    frame = take(crash_of(scope["fails"]))["frames"][0]
    assert (frame["file"], frame["line"], frame["source"]) == (str(pipe), 2, None)
    assert list(texts_here(str(pipe))) == []


def test_the_identity_and_the_facts_of_the_process_are_there() -> None:
    document = take(crash_of(failing, 0), task_id="t1", attempt=0)

    record = snapshot.record_of(document)
    assert (record.role, record.rank, record.node_ip, record.task_id) == ("Worker", 1, "10.0.0.5", "t1")
    assert document["host"] == "host" and "python" in document["versions"] and document["attempt"] == 0
    main = next(thread for thread in document["threads"] if thread["name"] == "MainThread")
    assert main["frames"][0]["function"] == "take" and main["frames"][0]["file"] == __file__


def test_secrets_are_not_shown() -> None:
    def calling() -> None:
        url = "https://me:open-sesame@host/"
        failing(0, None, "-".join(("sesame", "open")))
        raise AssertionError(url)

    document = take(crash_of(calling))

    assert document["frames"][0]["locals"]["api_key"] == "<redacted>"
    text = json.dumps([{**frame, "source": None} for frame in document["frames"][:1]])
    assert "sesame-open" not in text and "open-sesame" not in json.dumps(document)


def test_the_chain_has_the_cause_with_its_own_frames() -> None:
    document = take(crash_of(wrapped))

    raised, cause = document["chain"]
    assert (raised["type"], raised["relation"]) == ("RuntimeError", "raised")
    assert (cause["type"], cause["relation"], cause["message"]) == ("ValueError", "cause", "no size 0")
    assert [frame["function"] for frame in cause["frames"]] == ["failing", "failing", "wrapped"]
    assert [frame["locals"].get("size") for frame in cause["frames"]] == [0, 2, None]
    assert document["function"] == "wrapped", "the crash is named after what was raised"
    assert cause["frames"][2]["locals"] == {} and document["frames"][0]["locals"]["step"] == 3, (
        "a frame's variables stand once"
    )


def test_what_was_being_handled_counts_unless_the_program_says_otherwise() -> None:
    def during() -> None:
        try:
            failing(0)
        except ValueError:
            {}["missing"]

    def instead() -> None:
        try:
            failing(0)
        except ValueError:
            raise KeyError("other") from None

    assert [each["relation"] for each in take(crash_of(during))["chain"]] == ["raised", "context"]
    assert [each["relation"] for each in take(crash_of(instead))["chain"]] == ["raised"]


def test_members_of_a_group_are_in_the_chain() -> None:
    def both() -> None:
        raise ExceptionGroup("two", [crash_of(failing, 0), KeyError("b")])  # type: ignore[list-item]

    chain = take(crash_of(both))["chain"]

    assert [(each["relation"], each["type"]) for each in chain[1:]] == [
        ("member", "ValueError"),
        ("member", "KeyError"),
    ]
    assert chain[1]["frames"][0]["locals"]["size"] == 0


def test_the_users_frame_is_preferred_to_the_librarys_below_it() -> None:
    document = take(crash_of(lambda: json.loads("{")))

    assert document["file"] == __file__
    assert document["frames"][0]["function"].endswith("raw_decode") or "decode" in document["frames"][0]["function"]
    assert document["frames"][document["at"]]["function"] == document["function"]
    assert snapshot.deepest_user_frame(crash_of(lambda: json.loads("{"))).f_code.co_filename == __file__  # type: ignore[union-attr]


def test_a_crash_in_code_of_libraries_alone_is_named_after_the_users_cause() -> None:
    inner = crash_of(failing, 0)
    outer = RuntimeError("made by a library, never raised in the program")
    outer.__cause__ = inner

    document = take(outer)

    assert document["function"] == "failing" and document["exception"]["type"] == "RuntimeError"
    assert document["frames"][0]["locals"]["size"] == 0


def test_an_exception_without_frames_or_with_a_broken_text_is_a_snapshot_too() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise OSError("no text")

    assert take(KeyError("a"))["frames"] == []
    assert take(Broken())["exception"]["message"] == "(no message: OSError)"


def test_a_secret_in_the_exceptions_text_is_not_shown() -> None:
    error = ValueError("no access to https://me:open-sesame@host/")

    assert "open-sesame" not in json.dumps(take(error))


def test_tensors_are_summarised() -> None:
    torch = pytest.importorskip("torch")

    def step() -> None:
        loss = torch.tensor([1.0, float("nan")])
        raise ValueError(loss.shape)

    shown = take(crash_of(step))["frames"][0]["locals"]["loss"]["tensor"]

    assert shown["shape"] == [2] and shown["nan"] == 1


# ---- what is left out


def test_the_largest_variables_go_first_and_the_document_says_so() -> None:
    def large() -> None:
        small = 1
        texts = [[str(number) * 200 for number in range(20)] for _ in range(20)]
        lines = [str(number) * 400 for number in range(20)]
        raise ValueError(small, len(texts), len(lines))

    size = 8000 + len(json.dumps(stacks.all_threads()))  # the process of these tests may have many
    document = take(crash_of(large), size=size)

    assert len(crash_files.encode(document)) <= size
    assert document["frames"][0]["locals"]["small"] == 1
    assert set(document["frames"][0]["locals"]["texts"]) == {"type", "cut"}
    cut = [note.split()[0] for note in document["cut"]]
    assert [name for name in cut if name in ("texts", "lines")] == ["texts", "lines"], "the largest goes first"
    assert document["frames"][0]["source"] and document["threads"]


@pytest.mark.parametrize("size", [64 * 1024, 6000])
def test_an_endless_recursion_fits_too(size: int) -> None:
    def endless(number: int) -> None:
        text = "x" * 500
        endless(number + len(text))

    document = take(crash_of(endless, 0), size=size)

    assert len(crash_files.encode(document)) <= size
    assert any("frames in the middle" in note for note in document["cut"]) or size < 10_000
    assert document["exception"]["type"] == "RecursionError" and document["frames"]


def test_without_time_the_kinds_of_the_values_are_left() -> None:
    document = take(crash_of(failing, 0, ["a"]), budget=0.0)

    shown = document["frames"][0]["locals"]
    assert shown["depth"] == 0 and shown["tags"] == {"type": "list", "cut": "time"}
    assert any("no time" in note for note in document["cut"])


# ---- which crash caused which


class Outer(Exception):
    """As Ray's: it keeps what a task raised as `cause`."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


def test_a_tag_survives_pickling_and_is_found_through_rays_link() -> None:
    inner = crash_of(failing, 0)
    snapshot.tag(inner, "a1")

    arrived = pickle.loads(pickle.dumps(Outer(inner)))

    assert snapshot.root_of(arrived) == "a1"
    assert snapshot.root_of(ValueError()) is None


def test_what_the_program_hides_from_the_chain_is_no_root() -> None:
    inner = crash_of(failing, 0)
    snapshot.tag(inner, "a1")

    def hiding(from_none: bool) -> None:
        try:
            raise inner
        except ValueError:
            if from_none:
                raise KeyError from None
            raise KeyError  # noqa: B904 - the case

    assert snapshot.root_of(crash_of(hiding, True)) is None
    assert snapshot.root_of(crash_of(hiding, False)) == "a1"


def test_an_outer_level_is_light_and_names_its_root() -> None:
    inner = crash_of(failing, 0)
    snapshot.tag(inner, "a1")

    def outer() -> None:
        secret_plan = "not repeated"
        raise Outer(inner) from ValueError(secret_plan)

    document = take(crash_of(outer))

    assert document["root"] == "a1" and document["light"] is True
    assert document["function"].endswith("outer") and document["threads"] == []
    assert all(frame["locals"] == {} for frame in document["frames"])
    assert all(each["frames"] == [] for each in document["chain"][1:])


def test_a_bug_in_the_handling_of_a_known_crash_is_a_crash_of_its_own() -> None:
    inner = crash_of(failing, 0)
    snapshot.tag(inner, "a1")

    def handling() -> None:
        tries = 3
        try:
            raise Outer(inner)
        except Outer:
            raise KeyError(tries)  # noqa: B904 - the case

    document = take(crash_of(handling))

    assert document["root"] == "a1" and document["light"] is False
    assert document["frames"][0]["locals"]["tries"] == 3


def test_a_retry_keeps_the_values_of_the_failing_frame_alone() -> None:
    document = take(crash_of(failing, 1), attempt=1)

    assert document["light"] is True and document["threads"] == []
    assert [bool(frame["locals"]) for frame in document["frames"]] == [True, False, False]


def record(name: str, time: float, **facts: Any) -> CrashRecord:
    base = CrashRecord(name, "01", "Worker", 0, "10.0.0.5", 7, time, {"type": "E", "message": ""}, "f", 1, "g", None)
    return replace(base, **facts)


def test_link_gives_attempts_their_first_one_and_followers_the_last_root() -> None:
    records = [
        record("outer", 4.0, root="second"),
        record("second", 2.0, task_id="t1"),
        record("first", 1.0, task_id="t1"),
        record("other job", 3.0, task_id="t1", job_id="02"),
        record("thread", 3.0, task_id="t1", kind="thread"),
        record("itself", 5.0, root="itself"),
    ]

    roots = {each.id: each.root for each in snapshot.link(records)}

    assert roots == {
        "outer": "first", "second": "first", "first": None, "other job": None, "thread": None, "itself": None,
    }  # fmt: skip
    assert [each.id for each in snapshot.link(records)] == [each.id for each in records]


# ---- files


def test_a_stored_document_is_private_whole_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "crashes"
    document = take(crash_of(wrapped), task_id="t1")

    path = snapshot.store(document, folder)

    assert path is not None and path.name == f"{document['id']}.json"
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    assert snapshot.load(path) == json.loads(json.dumps(document))
    assert snapshot.list_folder(folder) == [snapshot.record_of(document)]
    assert [each.name for each in folder.iterdir()] == [path.name], "no half-written file is left"


def test_a_folder_keeps_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_files, "KEPT", 2)
    document = take(crash_of(failing, 0))
    for number in range(4):
        path = snapshot.store({**document, "id": f"c{number}", "time": float(number)}, tmp_path)
        assert path is not None
        os.utime(path, ns=(number, number))

    kept = [each.id for each in snapshot.list_folder(tmp_path)]

    assert kept[-1] == "c3" and len(kept) == 2


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    document = take(crash_of(failing, 0))

    assert snapshot.store(document, blocked / "crashes") is None
    assert snapshot.store(document, blocked / "crashes") is None

    assert capsys.readouterr().err.count("can't be stored") == 1


def test_numbers_that_json_has_not_are_texts(tmp_path: Path) -> None:
    path = snapshot.store({**take(crash_of(failing, 0)), "extra": [float("nan")]}, tmp_path)

    assert path is not None
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["extra"] == ["nan"]


def test_what_is_no_snapshot_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("a.json", "not json"), ("b.json", "[]"), ("c.json", '{"id": 1}'), ("d.txt", "")):
        (tmp_path / name).write_text(text)

    assert snapshot.list_folder(tmp_path) == []
    with pytest.raises(ValueError, match=r"not a crash snapshot"):
        snapshot.load(tmp_path / "b.json")


# ---- processes that vanished

DUMP = """:task_name:seg
*** SIGSEGV received at time=1795185301 on cpu 0 ***
PC: @     0x7fd377785ad8  (unknown)  (unknown)
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/job.py", line 37 in deep
  File "/home/me/job.py", line 38 in seg

Extension modules: msgpack._cmsgpack (total: 1)
"""


AT = 1795185301  # when that was


def test_a_dump_at_the_end_of_a_log_tells_the_signal_and_the_stack(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text("noise\n" * 100_000 + DUMP)

    words = snapshot.last_words(log)

    assert words is not None and words["signal"] == "SIGSEGV" and words["kind"] == "signal"
    assert words["frames"][1] == {"file": "/home/me/job.py", "line": 37, "function": "deep"}
    assert len(words["frames"]) == 3


def test_of_a_dump_of_all_threads_the_current_one_is_taken(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text(
        'Fatal Python error: Aborted\n\nThread 0x01 (most recent call first):\n  File "a.py", line 1 in a\n\n'
        'Current thread 0x02 [main] (most recent call first):\n  File "b.py", line ??? in b\n'
    )

    words = snapshot.last_words(log)

    assert words is not None and words["signal"] == "SIGABRT"
    assert words["frames"] == [{"file": "b.py", "line": 0, "function": "b"}]


def test_where_a_thread_without_python_aborts_the_main_thread_is_shown_and_what_was_said(tmp_path: Path) -> None:
    log, job = tmp_path / "worker.err", tmp_path / "job.py"
    job.write_text("def train():\n    gather()\n")
    log.write_text(
        "E 1 2] logging.cc:118: Unhandled exception: St13runtime_error. what(): 16 vs 14 /v/r.so(+0x1) [0x7f] f()\n"
        "*** SIGABRT received at time=1 on cpu 1 ***\nFatal Python error: Aborted\n\n"
        'Thread 0x01 (most recent call first):\n  File "agent.py", line 1 in wait\n\n'
        f'Thread 0x02 (most recent call first):\n  File "{job}", line 2 in train\n'
    )
    document = vanished(WHO, snapshot.last_words(log), "the process died")
    assert document["exception"] == {"type": "SIGABRT", "message": "std::runtime_error: 16 vs 14"}
    assert (document["file"], document["line"], document["function"]) == (str(job), 2, "train")
    assert document["frames"][0]["source"] == {"first": 1, "lines": ["def train():", "    gather()"]}
    page = printed(crash_page(complete(document, CrashRecord.from_json(document)), [], 100.0))
    assert "runs no Python; its main thread was then here" in page and "->    2      gather()" in page


@pytest.mark.parametrize(
    ("text", "detail", "signal"),
    [
        ("terminate called after throwing an instance of 'X'\n*** SIGABRT received at time=1\n", "", "SIGABRT"),
        ("terminate called after throwing 'std::bad_alloc'\n", "", ""),
        ("loading BLOOMZ-7b\n", "", None),
        ("CUDA out of memory: again with a batch of 4\n" + "step\n" * 1000, "", None),
        ("", "Task was killed due to the node running low on memory: OOM", "SIGKILL"),
        ("*** SIGBUS received at time=1\n", "", "SIGBUS"),
        (
            "all is well\n",
            "End of file. Some common causes include: (1) the process was killed by the OOM killer",
            None,
        ),
    ],
)
def test_what_else_a_log_may_tell(tmp_path: Path, text: str, detail: str, signal: str | None) -> None:
    log = tmp_path / "worker.err"
    log.write_text(text)

    words = snapshot.last_words(log, detail)

    assert (words and words["signal"]) == signal


HANDLED = "CUDA out of memory: again with a batch of 4\n"


@pytest.mark.parametrize(
    ("text", "reason", "died", "told"),
    [
        # What a program says of memory, it may have got over.
        (HANDLED, NO_WORD, 9.0, f"ProcessDied: {NO_WORD}; the end of its log says: {HANDLED.strip()}"),
        (HANDLED, "Worker exits with an exit code 3.", 9.0, "ProcessDied: Worker exits with an exit code 3.; the end"),
        (f"{HANDLED}Fatal Python error: Aborted\n", NO_WORD, 9.0, "SIGABRT: Aborted; the end of its log says: CUDA"),
        # A child writes to the log of its parent, which lives on.
        (DUMP, NO_WORD, AT + 1.0, "SIGSEGV: Segmentation fault"),
        (DUMP, NO_WORD, AT + 61.0, f"ProcessDied: {NO_WORD}; its log also has a SIGSEGV from 61 s before, which may"),
        (f"{DUMP}a worker of the loader died\n", NO_WORD, AT + 1.0, f"ProcessDied: {NO_WORD}; its log also has a SIG"),
        (
            DUMP,
            "Worker exits with an exit code 3.",
            AT + 1.0,
            "ProcessDied: Worker exits with an exit code 3.; its log",
        ),
        (DUMP, "killed due to the node running low on memory", AT + 1.0, "ProcessDied: killed due to the node running"),
    ],
)
def test_a_log_tells_of_an_end_what_fits_it(tmp_path: Path, text: str, reason: str, died: float, told: str) -> None:
    log = tmp_path / "worker.err"
    log.write_text(text)
    document = vanished(WHO, snapshot.last_words(log), reason, died=died)
    assert "{type}: {message}".format(**document["exception"]).startswith(told), document["exception"]
    assert bool(document["frames"]) is told.startswith("SIGSEGV")


@pytest.mark.parametrize(
    "reason", ["the process died", "there was an exception in the initialization method (e.g., __init__)"]
)
def test_an_actor_that_could_not_be_made_was_at_no_call(reason: str) -> None:
    """Ray's table has the first call that waited for it."""
    document = vanished(WHO, None, reason, task={"task_id": "t1", "name": "Worker.generate"}, died=1.0)
    assert ("generate" in json.dumps(document)) is (reason == "the process died"), document


def test_no_log_is_no_news(tmp_path: Path) -> None:
    assert snapshot.last_words(tmp_path / "missing") is None


def test_a_vanished_process_has_a_document_like_the_others(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text(DUMP)

    document = vanished(WHO, snapshot.last_words(log), "the process died: SIGSEGV", died=1795185302.0)

    assert (document["file"], document["line"], document["function"]) == ("/home/me/job.py", 37, "deep")
    assert document["exception"]["type"] == "SIGSEGV" and document["kind"] == "exit"
    assert set(document) - {"reason"} == set(take(crash_of(failing, 0)))
    assert vanished(WHO, None, "gone")["exception"] == {"type": "ProcessDied", "message": "gone"}


# ---- values within a time


def test_of_a_large_array_the_first_elements_are_looked_at() -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def step() -> None:
        array = numpy.zeros((1000, 1000), dtype="float32")
        batch = {"ids": torch.ones(2000, 500), "slice": torch.ones(2000, 1000)[:, :500], "step": 3}
        raise ValueError(array.shape, len(batch))

    shown = take(crash_of(step))["frames"][0]["locals"]

    assert shown["array"]["array"]["shape"] == [1000, 1000] and shown["array"]["array"]["max"] == 0.0
    assert shown["array"]["array"]["note"] == "of the first 200000 of 1000000 elements"
    assert shown["batch"]["ids"]["tensor"]["min"] == 1.0 and "hash" not in shown["batch"]["ids"]["tensor"]
    assert shown["batch"]["slice"]["tensor"] == {
        "dtype": "float32", "shape": [2000, 500], "device": "cpu", "note": "not looked into",
    }  # fmt: skip
    assert shown["batch"]["step"] == 3


def test_what_is_large_is_shown_by_its_parts_and_secrets_stay_hidden() -> None:
    class State:
        def __init__(self) -> None:
            self.password = "-".join(("open", "sesame"))
            self.rows = [[(number, str(number)) for number in range(20)] for _ in range(20)]
            self.name = "state"

    def step() -> None:
        state = State()
        raise ValueError(state.name)

    document = take(crash_of(step))

    shown = document["frames"][0]["locals"]["state"]
    assert shown["type"].endswith("State") and shown["attributes"]["name"] == "state"
    assert shown["attributes"]["password"] == "<redacted>" and len(shown["attributes"]["rows"]) == 20
    assert document["cut"] == []


def test_small_values_do_not_wait_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: float(next(ticks)), perf_counter=lambda: 0.0)  # each look: a second
    monkeypatch.setattr(affordable, "time", clock)

    def step() -> None:
        many, more, most = ([[[number] for number in range(20)] for _ in range(20)] for _ in range(3))
        small = (7,)
        raise ValueError(small, len(many), len(more), len(most))

    shown = take(crash_of(step), budget=12.0)["frames"][0]["locals"]

    assert shown["small"] == {"type": "tuple", "items": [7]} and shown["most"] == {"type": "list", "cut": "time"}
    assert list(shown) == ["many", "more", "most", "small"], "in the program's order all the same"


def test_without_time_an_array_has_its_shape() -> None:
    numpy = pytest.importorskip("numpy")

    def step() -> None:
        array = numpy.zeros((3, 4))
        raise ValueError(array.shape)

    shown = take(crash_of(step), budget=0.0)["frames"][0]["locals"]["array"]

    assert shown == {"array": {"dtype": "float64", "shape": [3, 4], "note": "not looked into"}}


class Unhashable:
    """As an array: equal to nothing in one word, and no key of a dict."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


@pytest.mark.parametrize("made", [Unhashable, lambda: [1], lambda: {"a": 1}], ids=["array", "list", "dict"])
def test_pairs_of_what_is_no_name_are_values_like_any_other(made: Any) -> None:
    batches = [(made(), made()) for _ in range(2)]
    try:
        raise KeyError(len(batches))
    except KeyError as error:
        document = snapshot.take(error, WHO, "driver")
    assert "batches" in document["frames"][0]["locals"]


def test_a_module_in_an_object_is_its_name_and_takes_no_time_from_others() -> None:
    holder = SimpleNamespace(library=json, row=7)
    try:
        raise KeyError(holder.row)
    except KeyError as error:
        document = take(error)
    assert "<module json>" in str(document["frames"][0]["locals"]["holder"]) and not document["cut"]
