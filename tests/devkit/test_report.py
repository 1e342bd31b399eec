"""What a smoke run leaves on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.records import CheckResult, SmokeRecord, StepRecord
from devkit.smoke.report import index_html, junit_xml, reward_curve, summary, write_junit, write_report
from trainer.curve import HEIGHT, WIDTH, running_mean, ticks

SVG = "{http://www.w3.org/2000/svg}"

RECORD = SmokeRecord(
    seconds=14.25,
    phases={"start ray": 2.5, "train": 5.0},
    checks=(
        CheckResult("logprobs_agree", "pass", "difference 2e-6, limit 1e-4", 0.5),
        CheckResult("masks_exact", "fail", "row 3: 1 token <too> long & more", 0.25),
        CheckResult("ranks_equal", "skip", "one rank only", 0.0),
    ),
    steps=(StepRecord(1, 0.25, {"actor/entropy": 2.0}), StepRecord(2, 0.75)),
)


def curve_points(svg: str, kind: str) -> list[tuple[float, float]]:
    (line,) = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}polyline") if e.get("class") == kind]
    pairs = [point.split(",") for point in line.get("points", "").split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_junit_has_a_case_for_each_check() -> None:
    suite = ElementTree.fromstring(junit_xml(RECORD)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    found = {case.get("name"): [(child.tag, child.get("message")) for child in case] for case in suite.iter("testcase")}
    assert found == {
        "logprobs_agree": [("system-out", None)],
        "masks_exact": [("failure", "row 3: 1 token <too> long & more")],
        "ranks_equal": [("skipped", "one rank only")],
    }


@given(st.text())
def test_junit_can_be_read_whatever_a_check_found(detail: str) -> None:
    checks = (CheckResult("a", "fail", detail, 0.0),)
    root = ElementTree.fromstring(junit_xml(SmokeRecord(1.0, {}, checks, ())))
    assert root.find("testsuite/testcase/failure") is not None


def test_junit_says_what_it_could_not_write() -> None:
    checks = (CheckResult("a", "fail", "\x1b[31mred\x1b[0m", 0.0),)
    failure = ElementTree.fromstring(junit_xml(SmokeRecord(1.0, {}, checks, ()))).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.text == "\ufffd[31mred\ufffd[0m"


def test_the_report_folder(tmp_path: Path) -> None:
    # given a log of a worker
    log = tmp_path / "worker.out"
    log.write_text("hello\n", encoding="utf-8")
    # when the report is written into a folder that is not there yet
    folder = tmp_path / "a" / "report"
    written = write_report(RECORD, folder, logs={"rank0/worker.out": log})
    # then all its parts are there, and the record names them
    assert {name: Path(path).relative_to(folder).as_posix() for name, path in written.artifacts.items()} == {
        "report": "index.html",
        "reward_curve": "reward.svg",
        "metrics": "metrics.jsonl",
        "record": "smoke.json",
        "logs": "logs",
    }
    assert (folder / "logs" / "rank0" / "worker.out").read_text(encoding="utf-8") == "hello\n"
    assert json.loads((folder / "smoke.json").read_text(encoding="utf-8")) == written.to_json()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "reward_mean": 0.25, "actor/entropy": 2.0},
        {"step": 2, "reward_mean": 0.75},
    ]
    assert 'href="logs/rank0/worker.out"' in (folder / "index.html").read_text(encoding="utf-8")


def test_a_log_is_copied_whatever_the_locale_can_write(tmp_path: Path) -> None:
    log = tmp_path / "worker.out"
    log.write_text("3 µs\n", encoding="utf-8")
    write = (
        "import sys; from pathlib import Path; from devkit.records import SmokeRecord; from devkit.smoke.report import "
        "write_report; write_report(SmokeRecord(1.0, {}, (), ()), Path(sys.argv[1]), logs={'a': Path(sys.argv[2])})"
    )
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", write, str(tmp_path / "report"), str(log)]
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "logs" / "a").read_text(encoding="utf-8") == "3 µs\n"


def test_the_page_escapes_what_it_shows() -> None:
    page = index_html(RECORD, title="smoke <x>")
    assert "1 token &lt;too&gt; long &amp; more" in page
    assert "smoke &lt;x&gt;" in page
    assert "<too>" not in page


def test_summary_names_what_failed() -> None:
    assert summary(RECORD) == "14.2 s: 1 passed, 1 failed (masks_exact), 1 skipped"


@pytest.mark.parametrize("option", ["--report", "--junit"])
def test_a_place_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path, option: str) -> None:
    # given a file where a folder is wanted
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    write = {"--report": write_report, "--junit": write_junit}[option]
    with pytest.raises(DevkitError) as caught:
        write(RECORD, file / "inside")  # type: ignore[operator]
    assert str(file / "inside") in str(caught.value)
    assert option in caught.value.hint


def test_the_junit_file_is_an_artifact(tmp_path: Path) -> None:
    path = tmp_path / "new" / "smoke.xml"
    assert write_junit(RECORD, path).artifacts == {"junit": str(path)}
    assert ElementTree.parse(path).getroot().tag == "testsuites"


def test_a_curve_that_rises_is_drawn_rising() -> None:
    steps = [StepRecord(i, i / 10) for i in range(1, 11)]
    for kind in ("raw", "mean"):
        points = curve_points(reward_curve(steps), kind)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)  # pixels count downwards


@pytest.mark.parametrize("rewards", [[], [0.5], [0.0, 0.0], [float("nan")], [1.0, float("inf"), -3.0], [1e-9, 1e9]])
def test_every_curve_can_be_drawn_inside_its_frame(rewards: list[float]) -> None:
    svg = reward_curve([StepRecord(i, reward) for i, reward in enumerate(rewards, 1)])
    ElementTree.fromstring(svg)
    for x, y in curve_points(svg, "raw") if "polyline" in svg else []:
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_running_mean_worked_out_by_hand() -> None:
    # weights 0.5: (0 * 0.5 + 1) / (0.5 + 1), then (0 * 0.25 + 1 * 0.5 + 1) / (0.25 + 0.5 + 1)
    assert running_mean([0.0, 1.0, 1.0], weight=0.5) == pytest.approx([0.0, 1 / 1.5, 1.5 / 1.75])


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ticks_enclose_the_data(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    marks = ticks(low, high)
    step = marks[1] - marks[0]
    assert marks[0] <= low + step * 1e-6
    assert marks[-1] >= high - step * 1e-6
    assert 2 <= len(marks) <= 8
