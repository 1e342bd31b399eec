"""The README's recordings: their scenes are what the README says to type, and they are light and whole pictures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from scripts import record
from scripts.generate_docs import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
HEAVIEST = 200_000  # bytes: a page with both is read on a telephone
SVG = "{http://www.w3.org/2000/svg}"


def test_what_is_recorded_is_what_the_readme_says_to_type() -> None:
    scenes = {scene.name: [(line.terminal, line.text) for line in scene.lines] for scene in record.scenes()}
    assert set(scenes) == {"debug", "smoke"}
    assert scenes["debug"][0][1].startswith("devkit run --break ") and {number for number, _ in scenes["debug"]} == {
        1,
        2,
    }
    assert scenes["smoke"][0][1].startswith("devkit smoke --tiny")
    for lines in scenes.values():
        assert [line for _, line in lines if f"\n$ {line}\n" not in README] == []


@pytest.mark.parametrize("scene", record.scenes(), ids=lambda scene: scene.name)
def test_a_recording_is_light_and_shows_the_commands_that_the_readme_has_now(scene: record.Scene) -> None:
    path = record.IMAGES / f"terminal-{scene.name}.svg"
    assert f"](docs/images/{path.name})" in README
    assert path.stat().st_size <= HEAVIEST
    drawn = ["".join(text.itertext()) for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")]
    lines = {_without_numbers(line) for line in drawn}
    missing = [line.text for line in scene.lines if _without_numbers(f"$ {line.text}") not in lines]
    assert missing == [], "as root: python scripts/record.py"


def _without_numbers(line: str) -> str:
    """Line numbers move with each change of a file that a command names."""
    return re.sub(r"\d+", "0", line)


def test_a_frame_is_drawn_where_its_characters_stand() -> None:
    scene = record.Scene("x", (2,), 10, ())
    row = (("$ ", record.INK, False), ("a<b", record.PALETTE["red"], True))
    whole = record.svg(scene, [(1.0, ((row, ()),)), (2.0, ((row, row),))])
    root = ElementTree.fromstring(whole)
    texts = [text for text in root.iter(f"{SVG}text") if text.text == "a<b"]
    assert [float(text.attrib["x"]) for text in texts] == [record.PAD + 2 * record.CELL_W]
    assert whole.count("<use ") == 3 and "play 3.00s" in whole


def test_pauses_are_cut_short() -> None:
    frames = [(0.0, ()), (0.5, ()), (60.0, ())]
    assert [stay for stay, _ in record.timed(frames)] == [0.5, record.PAUSE, record.LAST]
