"""The page of `devkit jobs`: a table like that of `devkit ps`."""

from __future__ import annotations

import sys

import pytest

from devkit.debug.jobs import page
from devkit.debug.rows import JobRow
from devkit.palette import NAME
from tests.terminal import seen_on_a_terminal

NOW = 1000.0
ROWS = [
    JobRow(submission_id="raysubmit_7", status="FAILED", entrypoint="bash run.sh", start_time=880_000),
    JobRow(job_id="01000000", status="RUNNING", entrypoint=f"python job.py\n--seed {'7' * 80}", start_time=990_000),
    JobRow(job_id="02000000", status="SUCCEEDED", entrypoint="python other.py", start_time=1000, is_untold=True),
]


def test_the_newest_jobs_in_columns_under_bold_headings() -> None:
    text = page(ROWS, NOW, width=80)
    assert text.plain.splitlines() == [
        "JOB          STATUS   SINCE   COMMAND",
        "raysubmit_7  FAILED   2 min   bash run.sh",
        f"01000000     RUNNING  10 s    python job.py --seed {'7' * 28}…",
        "02000000     ENDED    16 min  python other.py",
    ]
    looks = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert looks["JOB          STATUS   SINCE   COMMAND"] == "bold"
    assert (looks["raysubmit_7"], looks["01000000"], looks["FAILED"]) == (NAME, NAME, "red")


def test_a_pipe_has_no_width() -> None:
    assert f"python job.py --seed {'7' * 80}" in page(ROWS, NOW, width=None).plain


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_terminal_each_job_is_a_line(columns: int) -> None:
    program = "from devkit.debug.jobs import _tell; from tests.debug.test_jobs import ROWS; _tell(ROWS, False)"
    shown = seen_on_a_terminal([sys.executable, "-c", program], columns=columns)
    assert "\x1b[1mJOB " in shown and "\x1b[31mFAILED" in shown
    assert len(shown.splitlines()) == 1 + len(ROWS)
