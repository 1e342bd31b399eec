"""What a worker leaves to the children that it spawns, and that it leaves nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.debug.inworker import boot, card, settings
from devkit.debug.inworker.records import Breakpoint

WORKER = """
import json, sys, tempfile
tempfile.tempdir = sys.argv[1]
from devkit.debug.inworker.card import Card
mine = Card()
print(mine.path, flush=True)
for line in sys.stdin:
    mine.write(json.loads(line))
    print("written", flush=True)
"""


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def test_it_is_read_while_the_worker_lives_and_gone_when_it_was_killed(empty: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(empty)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        path = worker.stdout.readline().strip()
        assert card.read(path) == {}
        for document in ({"role": "Worker", "rank": None}, {"role": "W", "rank": 3}, {}):
            worker.stdin.write(json.dumps(document) + "\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "written\n"
            assert card.read(path) == document
        worker.send_signal(signal.SIGKILL)
    assert card.read(path) == {} and list(empty.iterdir()) == []


def test_a_file_of_the_programs_own_under_its_number_is_left_alone(tmp_path: Path) -> None:
    mine = card.Card()
    os.close(mine._file)
    with (tmp_path / "data").open("w+b", buffering=0) as file:  # the lowest number that is free
        assert file.fileno() == mine._file
        file.write(b"the program's")
        mine.write({"role": "Worker"})
    mine.write({"role": "Worker"})  # now there is none at all
    assert (tmp_path / "data").read_bytes() == b"the program's"


def test_what_is_no_card_names_nobody(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "null", "[" * 100_000):
        (tmp_path / "card").write_text(text)
        assert card.read(str(tmp_path / "card")) == {}
    assert card.read("") == card.read(str(tmp_path / "none")) == {}


def test_settings_travel_in_the_environment_as_far_as_it_holds_them() -> None:
    points = tuple(Breakpoint(f"b{number}", "job.py:7", ("/p/job.py",), 7) for number in range(2000))
    for some, kept in ((points[:2], points[:2]), (points, ())):
        wanted = settings.Settings(breakpoints=some, post_mortem="pause")
        text = settings.in_environment(boot.settings_to_json(wanted))
        assert len(text) <= settings.MOST_IN_ENVIRONMENT
        subprocess.run([sys.executable, "-S", "-c", ""], env={settings.VARIABLE: text}, check=True)
        read = boot.settings_from_json(settings.given({settings.VARIABLE: text}))
        assert (read.post_mortem, read.breakpoints) == ("pause", kept)
