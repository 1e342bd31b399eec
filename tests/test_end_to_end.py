"""`benchmarks/end_to_end.py`: what it makes of two trainers' records."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import end_to_end
from benchmarks.end_to_end import Record, Trainer
from tests.pace import stretched

# A trainer that writes a record and goes on to the next one, in this trainer's form or in that of verl's FileLogger.
PRETENDER = """
import json, sys, time
for step in range(1, int(sys.argv[3]) + 1):
    metrics = {"timing_s/step": 2.0}
    record = {"step": step, "data": metrics} if sys.argv[1] == "verl" else {"step": step, **metrics}
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps(record) + "\\n")
    print("step", step, flush=True)
time.sleep(0.0 if sys.argv[1] == "ours" else 600.0)
"""


def test_records_of_either_form_are_read_and_a_run_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_to_end, "GRACE_S", 0.2)
    for name in ("ours", "verl"):
        output = tmp_path / name
        output.mkdir()
        file = output / "metrics.jsonl"
        trainer = Trainer(name, (sys.executable, "-c", PRETENDER, name, str(file), "3"), {}, file)
        started = time.monotonic()
        records = end_to_end.run(trainer, 3, 60, tmp_path / "logs")
        assert time.monotonic() - started < 30
        assert [(r.step, dict(r.metrics)) for r in records] == [(step, {"timing_s/step": 2.0}) for step in (1, 2, 3)]
        assert (tmp_path / "logs" / f"{name}.log").read_text().split("\n")[0] == "step 1"


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    def records(gen: float, whole: float) -> list[Record]:
        metrics = {"perf/total_num_tokens": 1000.0, "prompt_length/mean": 3.0, "response_length/mean": 7.0}
        metrics |= {"timing_s/step": gen + 1.0, "timing_s/gen": gen, "timing_s/update_actor": 0.5}
        slow = metrics | {"timing_s/step": 100.0}
        return [Record(step, slow if step < 3 else metrics, step * whole) for step in (1, 2, 3, 4)]

    runs = {"ours": records(1.0, 2.5), "verl": records(4.0, 5.0)}
    end_to_end.show(runs, argparse.Namespace(warmup=2))
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["whole", "2.500", "5.000", "400", "200", "2.00"] in table
    assert ["step", "2.000", "5.000", "500", "200", "2.50"] in table
    assert ["gen", "1.000", "4.000", "1,000", "250", "4.00"] in table
    assert ["others", "0.500", "0.500", "2,000", "2,000", "1.00"] in table


def test_a_verl_that_is_not_there_is_said(tmp_path: Path) -> None:
    file = Path(end_to_end.__file__)
    command = [sys.executable, str(file), "--only", "verl", "--verl-python", sys.executable]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho A GPU\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    ran = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=stretched(60)
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: verl is not installed\nhint: ")
    assert ran.stdout.startswith("1 x A GPU, Python ")
