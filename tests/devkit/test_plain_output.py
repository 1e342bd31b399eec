"""What other people have written is shown without what a terminal would obey, whatever prints it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from devkit import console

HOSTILE = "\x1b]0;owned\x07\x1b[2Ja\x1b[31mb\x9bc\x08\x1bP\x1b\\"


def is_obeyed(text: str) -> bool:
    return any(mark in text for mark in "\x1b\x07\x08\x9b")


@pytest.mark.parametrize("make", [console.result, console.talk])
@pytest.mark.parametrize("soft_wrap", [True, False])
def test_texts_and_tables(make: object, soft_wrap: bool, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    for each in (HOSTILE, Text(HOSTILE), Text.assemble(("x", "bold"), HOSTILE), table):
        make().print(each, soft_wrap=soft_wrap)  # type: ignore[operator]
    said = "".join(capsys.readouterr())
    assert said.count("a") >= 5 and not is_obeyed(said)


def test_a_display_that_redraws_itself() -> None:
    out = io.StringIO()
    with Live(console.Plain(Text(HOSTILE)), console=Console(file=out), auto_refresh=False):
        pass
    assert "a" in out.getvalue() and not is_obeyed(out.getvalue())


def test_colours_of_our_own_stay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    console.result().print("x", style="red")
    assert "\x1b[31mx\x1b[0m" in capsys.readouterr().out
