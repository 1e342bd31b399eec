"""How long a command waits: what one command line says is nothing to the next of the process."""

from __future__ import annotations

import pytest

from devkit import cli, patience
from devkit.errors import UnreachableError

USUAL = 30.0


def test_what_is_said_last_counts_and_silence_changes_nothing() -> None:
    patience.forget()
    assert patience.seconds(USUAL) == USUAL
    for said, expected in ((2.0, 2.0), (None, 2.0), (3.0, 3.0)):
        patience.give(said)
        assert patience.seconds(USUAL) == expected
    patience.forget()


def test_the_hub_has_less_time_than_who_waits_for_it() -> None:
    patience.forget()
    assert patience.of_hub(15.0) == 15.0, "who says nothing waits for longer than that anyway"
    patience.give(300.0)
    assert patience.of_hub(15.0) < patience.seconds(USUAL) == 300.0
    patience.forget()


def test_the_next_command_line_of_a_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []

    def reach(*_: object, **__: object) -> None:
        found.append(patience.seconds(USUAL))
        raise UnreachableError("nobody", hint="-")

    monkeypatch.setattr("devkit.debug.client.connect", reach)
    for line in (["ps", "--timeout", "2"], ["ps"]):
        assert cli.main(line) == 3
    assert found == [2.0, USUAL]
