"""Each page's sessions, typed into real shells from the first line to the last: what it shows is what is printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.config.conftest import SEED_SCRIPTS
from tests.hosts.hosts import REPOSITORY
from tests.walks import pages
from tests.walks.terminals import Terminal
from tests.walks.typist import FOLDER, walk

pytestmark = pytest.mark.timeout(900)
PAGES = {  # and how many lines of it are typed at least
    "README.md": 9,
    "docs/index.md": 3,
    "docs/debugging.md": 25,
    "docs/smoke.md": 3,
    "docs/vscode.md": 5,
    "docs/hang.md": 5,
    "docs/ray-extension.md": 5,
    "docs/replay.md": 4,
    "docs/demo.md": 3,
    "docs/doctor.md": 1,
    "docs/agents.md": 3,
    "docs/retriever.md": 5,
    "docs/tools.md": 1,
    "docs/trainer.md": 1,
    "docs/clusters.md": 4,
    "docs/walkthrough.md": 1,
}
# They start no Ray.
CHEAP = ("docs/index.md", "docs/doctor.md", "docs/agents.md", "docs/retriever.md", "docs/tools.md", "docs/trainer.md")
SMALL = 'devkit smoke --tiny "data.train_files=[]" "data.val_files=[]" -- bash'  # as the README has it


@pytest.fixture
def reader(terminal: Terminal) -> Terminal:
    """In the project's folder, as far as the pages name what is in it."""
    for folder in ("docs", "tests", "scripts"):
        terminal.run(f"mkdir -p {FOLDER} && ln -s {shlex.quote(str(REPOSITORY / folder))} {FOLDER}/{folder}")
    return terminal


@pytest.mark.parametrize(
    "page", [each if each in CHEAP else pytest.param(each, marks=pytest.mark.walks) for each in PAGES]
)
def test_a_page_can_be_typed_as_it_stands(page: str, reader: Terminal) -> None:
    steps = pages.steps((REPOSITORY / page).read_text(encoding="utf-8"))
    assert walk(reader, steps).typed >= PAGES[page]


@pytest.mark.walks
@pytest.mark.parametrize("script", SEED_SCRIPTS, ids=lambda script: script.stem)
def test_a_launch_command_of_the_readme_runs_small(script: Path, reader: Terminal) -> None:
    assert f"{SMALL} tests/config/seeds/" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert "smoke: pass in" in reader.run(f"cd {FOLDER} && {SMALL} tests/config/seeds/{script.name}")
