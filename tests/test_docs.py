"""The documentation: what is made from the code is up to date, and what it names exists."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from devkit.lint.read import Wish
from devkit.lint.run import lint
from devkit.lint.source import Source
from scripts import config_reference, generate_docs
from tests.config.conftest import SEED_SCRIPTS
from tests.terminal import seen_on_a_terminal
from trainer.config import tree


def test_generated_parts_are_up_to_date() -> None:
    assert generate_docs.stale(write=False) == [], "make docs writes them anew"


def test_the_tree_has_a_line_for_each_folder_with_code() -> None:
    # given the folders on disk, by another way than the tree takes
    folders = {path.parent.name for room in ("devkit", "trainer") for path in (generate_docs.ROOT / room).rglob("*.py")}
    # when the tree is made
    lines = [line.split(maxsplit=1) for line in generate_docs.tree().splitlines()[1:-1]]
    # then each stands there and says what it is
    assert folders <= {line[0].rstrip("/") for line in lines}
    assert [line[0] for line in lines if len(line) == 1] == []


def test_a_new_file_changes_nothing_in_the_tree(tmp_path: Path) -> None:
    # given a project
    for folder in generate_docs.FOLDERS:
        (tmp_path / folder).mkdir()
    package = tmp_path / "devkit" / "lint"
    package.mkdir()
    (package / "__init__.py").write_text('"""Looks at scripts."""\n')
    before = generate_docs.tree(tmp_path)
    assert "  lint/      Looks at scripts." in before.splitlines()
    # when a file comes, and what Python leaves behind
    (package / "read.py").write_text('"""Reads them."""\n')
    (package / "__pycache__").mkdir()
    (tmp_path / "trainer" / "gone" / "__pycache__").mkdir(parents=True)
    # then the tree is the same
    assert generate_docs.tree(tmp_path) == before
    # and a folder that comes has its line
    (tmp_path / "trainer" / "gone" / "here.py").write_text("")
    assert "  gone/" in generate_docs.tree(tmp_path).splitlines()


def test_each_module_says_in_one_line_what_it_is() -> None:
    modules = [path for room in ("devkit", "trainer") for path in (generate_docs.ROOT / room).rglob("*.py")]
    assert [path.name for path in modules if not generate_docs.first_line(path)] == []


def test_the_readme_is_a_screen_and_a_half() -> None:
    text = (generate_docs.ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 12 * 1024
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_marks_that_are_missing_are_an_error() -> None:
    with pytest.raises(SystemExit, match="0 places for tree"):
        generate_docs.with_generated("no marks", "tree", "body")


def test_a_link_to_a_name_leads_to_its_line(tmp_path: Path) -> None:
    # given a file with a function, a method and a constant
    (tmp_path / "code.py").write_text("LIMIT = 3\n\n\nclass Box:\n    size: int = 1\n\n    def open(self): ...\n")
    # when links name them, with a wrong line or none
    text = "[`LIMIT`](code.py) [`Box.open`](code.py#L99) [`Box.size`](code.py) [`code.py`](code.py)"
    # then each gets its line, and a link to a file is left alone
    assert generate_docs.with_code_links(text, tmp_path) == (
        "[`LIMIT`](code.py#L1) [`Box.open`](code.py#L7) [`Box.size`](code.py#L5) [`code.py`](code.py)"
    )
    # and a name that is not there is an error
    with pytest.raises(SystemExit, match=r"no Box\.shut in code\.py"):
        generate_docs.with_code_links("[`Box.shut`](code.py)", tmp_path)


def test_the_config_page_has_every_key_and_its_comment() -> None:
    keys = config_reference.keys()
    assert [key for key in tree.all_keys() if f"| `{key}` |" not in keys] == []
    assert "| prompts per step, all ranks together, before rollout.n |" in keys
    assert "| `critic.optim.min_lr_ratio` | number, at least 0 and at most 1 | `0.0` | cosine ends at" in keys


def test_one_can_follow_a_step_in_under_1800_lines() -> None:
    together = re.search(r"\*\*([\d,]+)\*\* \|$", generate_docs.reading_list())
    assert together
    assert int(together[1].replace(",", "")) < 1800


def test_every_fault_of_the_tests_is_in_the_gallery_and_no_other() -> None:
    told = [json.loads(line)["title"] for line in generate_docs.FAULTS.read_text(encoding="utf-8").splitlines()]
    assert sorted(told) == sorted(generate_docs.fault_titles()), "make record-faults"
    assert len(told) >= 25


def test_each_test_that_holds_a_promise_is_there() -> None:
    text = (generate_docs.ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`tests/" in line]
    named = [found for row in rows for found in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)]
    sources = {file: (generate_docs.ROOT / file).read_text(encoding="utf-8") for file, _ in named}
    assert len(rows) > 20
    assert [(file, name) for file, name in named if f"def {name or 'test_'}" not in sources[file]] == []


def test_the_readme_says_what_lint_finds_in_each_launch_command() -> None:
    text = (generate_docs.ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.sh)` \|[^|]*\| (\d+) \| (\d+) \| (\d+) \|", text, flags=re.MULTILINE)
    said = {name: tuple(map(int, figures)) for name, *figures in rows}
    records = {path.name: lint([Source(path.name, path.read_bytes())], Wish()) for path in SEED_SCRIPTS}
    found = {name: Counter(finding.severity for finding in record.findings) for name, record in records.items()}
    assert said == {name: (each["error"], each["warning"], each["note"]) for name, each in found.items()}


@pytest.mark.parametrize("path", generate_docs.documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", generate_docs.documents(), ids=lambda path: path.name)
def test_links_to_a_heading_find_it(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*\.md)?#([^)]*)\)", path.read_text(encoding="utf-8"))
    assert [(file, name) for file, name in links if name not in headings(path.parent / file if file else path)] == []


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("verb", ["demo", "smoke"])
def test_the_readme_has_the_first_runs_without_make_too(verb: str) -> None:
    makefile = (generate_docs.ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(rf"^{verb}: .*\n\t@\$\(BIN\)/(.*) \$\(ARGS\)$", makefile, flags=re.MULTILINE)
    assert recipe
    assert f"`{recipe[1]}`" in (generate_docs.ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")


def test_the_list_of_verbs_fits_the_terminal() -> None:
    words = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=generate_docs.ROOT, capture_output=True, text=True, check=True
    ).stdout
    shown = seen_on_a_terminal(["make", "-C", str(generate_docs.ROOT), "--no-print-directory", "help"], columns=80)
    lines = shown.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80 < max(map(len, words.splitlines()))
    assert shown.split() == words.split()
    assert all(line.startswith(("make ", " " * 19)) for line in lines)


def test_make_verbs_that_are_named_exist() -> None:
    makefile = (generate_docs.ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    texts = [(generate_docs.ROOT / file).read_text(encoding="utf-8") for file in ("README.md", "CONTRIBUTING.md")]
    named = {verb for text in texts for verb in re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE)}
    assert named
    assert named <= verbs
