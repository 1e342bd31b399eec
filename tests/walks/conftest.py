"""A machine that nobody has used yet, for each test, and a folder with what a user brings: model, data, programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import hosts
from tests.hosts.hosts import Lan
from tests.pace import stretched
from tests.walks.terminals import HOME, Terminal

collect_ignore_glob = ["programs/*"]
PROGRAMS = Path(__file__).with_name("programs")
REPOSITORY = hosts.REPOSITORY


@pytest.fixture(scope="session", autouse=True)
def _needs_hosts() -> None:
    if why := hosts.problem():
        pytest.skip(why)
    if not (installed := installed_tree()).samefile(REPOSITORY):
        pytest.fail(f"the terminals of these tests run the devkit of {installed}, and not {REPOSITORY}: make setup")


def installed_tree() -> Path:
    """Where `devkit` comes from for who has set nothing: of another working tree, if its environment is used here."""
    path = [sys.executable, "-c", "import devkit; print(devkit.__file__)"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(path, cwd="/", env=clean, check=True, capture_output=True, text=True, timeout=stretched(60))
    return Path(done.stdout.strip()).parents[1]


@pytest.fixture(scope="session")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies in the user's home: tiny model, word problems, and the programs."""
    folder = tmp_path_factory.mktemp("brought")
    script = [sys.executable, str(REPOSITORY / "docs/examples/nan_hunt.py"), str(folder / "ppo")]
    subprocess.run(script, check=True, capture_output=True, timeout=stretched(120))
    shutil.copytree(PROGRAMS, folder / "programs")
    return folder


@pytest.fixture
def lan(brought: Path) -> Iterator[Lan]:
    with hosts.up(2, share=[brought]) as made:
        for host in made:
            host.run("sh", "-c", f"mkdir -p {HOME} && cp -r {brought}/. {HOME}")
        yield made


@pytest.fixture
def terminal(lan: Lan) -> Terminal:
    return Terminal(lan[0])
