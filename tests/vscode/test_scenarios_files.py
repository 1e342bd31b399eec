"""What belongs to the scenarios in a real VS Code and is looked at without one; `make test-vscode` runs them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
E2E = ROOT / "vscode" / "e2e"
PICTURE_BYTES = 150_000


def test_what_is_installed_is_pinned_without_a_registry() -> None:
    lock = json.loads((E2E / "package-lock.json").read_text())
    assert not any("resolved" in package for package in lock["packages"].values())
    wanted = json.loads((E2E / "package.json").read_text())
    pinned = {**wanted["dependencies"], **wanted["optionalDependencies"]}
    assert {name: lock["packages"][f"node_modules/{name}"]["version"] for name in pinned} == pinned


def test_pictures_in_the_docs_are_small_and_made_by_a_scenario() -> None:
    scenarios = "".join(path.read_text() for path in sorted((E2E / "scenarios").glob("*.ts")))
    made = set(re.findall(r"\.shot\('([\w-]+)'[,)]", scenarios))
    pictures = sorted((ROOT / "docs" / "images").glob("vscode-*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < PICTURE_BYTES, picture.name
        assert picture.stem.removeprefix("vscode-") in made, picture.name


def test_each_scenario_leaves_a_picture() -> None:
    for path in sorted((E2E / "scenarios").glob("*.ts")):
        for body in path.read_text().split("\nscenario(")[1:]:
            name = re.search(r"'([^']+)'", body)
            assert name is not None and ".shot('" in body, f"{path.name}: {body[:60]}"


def test_the_text_of_each_mutant_stands_once_in_its_file() -> None:
    text = (E2E / "lib" / "mutants.ts").read_text()
    files = dict(re.findall(r"^const (\w+) = ('[^']+');$", text, flags=re.MULTILINE))
    mutants = re.findall(
        r"^    name: '([\w-]+)',\n    file: ([^,]+),.*?\n    old:(.*?),\n    fresh:", text, flags=re.M | re.S
    )
    assert len(mutants) == text.count("    caughtBy: ")
    for name, file, old in mutants:
        literals = re.findall(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|`[^`]*`", old)
        wanted = "".join(ast.literal_eval(each.replace("`", '"""')) for each in literals)
        source = (ROOT / ast.literal_eval(files.get(file, file))).read_text()
        assert wanted and source.count(wanted) == 1, name
