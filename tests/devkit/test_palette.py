"""The colours of what is printed: legible on a light and on a dark terminal, and none that only one of them shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.color import Color

from devkit import palette
from trainer.config import show

ROOT = Path(__file__).parents[2]
LEAST = 4.0  # of contrast; WCAG asks for 3 of large or bold text, and for 4.5 of small
COLOURS = {name: colour for name, colour in vars(palette).items() if name.isupper()}
WEAK = re.compile(r"""[("\[ ](?:bright_)?(?:yellow|cyan|green|white|black)["\]]""")  # as a style, or in Rich's markup


def luminance(red: int, green: int, blue: int) -> float:
    """Of an sRGB colour, as WCAG 2 has it: 0 for black, 1 for white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red / 255, green / 255, blue / 255)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", COLOURS)
def test_a_colour_stands_out_on_white_and_on_black(name: str) -> None:
    own = luminance(*Color.parse(COLOURS[name]).get_truecolor())
    assert (1 + 0.05) / (own + 0.05) >= LEAST
    assert (own + 0.05) / 0.05 >= LEAST


def test_the_trainer_has_the_same() -> None:
    assert {name: getattr(show, name) for name in COLOURS} == COLOURS


def test_nothing_else_is_coloured_by_a_name_that_one_terminal_shows() -> None:
    files = [file for package in ("devkit", "trainer") for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    weak = [(file.name, line) for file in files for line in file.read_text("utf-8").splitlines() if WEAK.search(line)]
    assert weak == []
