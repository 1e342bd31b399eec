"""Long lines on a terminal: no word is torn, and a copy of them is what was said."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len, chop_cells
from rich.text import Text

from devkit.debug.inworker.words import plain
from tests.pace import stretched
from tests.terminal import seen_on_a_terminal
from trainer.wrapping import between_words

WIDTH = 40
HINT = "hint: devkit run --break trainer/roles.py:180 --hits 3 -- bash nan-hunt/train.sh"
words = st.text(st.sampled_from("abc/.:=-é日\U0001f600"), min_size=1, max_size=WIDTH + 5)
lines = st.tuples(st.sampled_from(["", "  ", "hint: ", "   why: "]), st.lists(words, max_size=12))


def on_screen(text: str, width: int) -> list[str]:
    """The lines of a terminal: it goes on in the next one where there is no room."""
    return [part for line in text.split("\n") for part in chop_cells(line, width) or [""]]


def test_a_hint_goes_on_below_its_words() -> None:
    filled = between_words(Text(HINT), WIDTH).plain
    assert [line.rstrip() for line in on_screen(filled, WIDTH)] == [
        "hint: devkit run --break",
        "      trainer/roles.py:180 --hits 3 --",
        "      bash nan-hunt/train.sh",
    ]
    assert "\n" not in filled and filled.split() == HINT.split()


@given(st.lists(lines, min_size=1, max_size=3))
def test_no_word_is_torn_that_fits(said: list[tuple[str, list[str]]]) -> None:
    text = "\n".join(head + " ".join(rest) for head, rest in said)
    filled = between_words(Text(text), WIDTH).plain
    assert [line.split() for line in filled.split("\n")] == [line.split() for line in text.split("\n")]
    seen = " ".join(on_screen(filled, WIDTH)).split()
    assert [word for word in text.split() if cell_len(word) < WIDTH and word not in seen] == []


def test_what_fits_is_left_alone() -> None:
    text = f"{'a' * WIDTH}\n  short\n\nend"
    assert between_words(Text(text), WIDTH).plain == text


def test_colours_stay_with_their_words() -> None:
    text = Text.assemble(("error: ", "bold red"), "words that come before a coloured ", ("one", "green"), style="dim")
    filled = between_words(text, WIDTH)
    looks = {(str(span.style), filled.plain[span.start : span.end].strip()) for span in filled.spans}
    assert {("bold red", "error:"), ("green", "one")} <= looks


def test_a_page_on_a_terminal_has_the_words_that_it_has_in_a_pipe() -> None:
    command = [sys.executable, "-m", "devkit", "lint", "tests/config/seeds/002_check.sh"]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=True).stdout
    seen = plain(seen_on_a_terminal(command, columns=80)).replace("\r", "")
    rows = on_screen(seen, 80)
    assert max(map(len, piped.splitlines())) > 80
    # Of the script's own lines a narrow terminal has a part.
    said = [line.split() for line in piped.splitlines() if " | " not in line]
    assert [line.split() for line in seen.splitlines() if " | " not in line] == said
    shown = {word for row in rows for word in row.split()}
    assert [word for line in said for word in line if word not in shown] == []
