"""devkit's exceptions."""

from __future__ import annotations

import pickle

import pytest

from devkit.errors import DeadlineError, DevkitError, UsageError, describe
from trainer.errors import TrainerError


def test_exit_codes() -> None:
    assert (DevkitError.exit_code, UsageError.exit_code, DeadlineError.exit_code) == (1, 2, 4)


def test_message_and_hint_survive_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(DeadlineError("rank 1 is missing", hint="--timeout 60")))
    assert (type(error), error.message, error.hint) == (DeadlineError, "rank 1 is missing", "--timeout 60")


@pytest.mark.parametrize("kind", [DevkitError, UsageError, TrainerError])
def test_no_error_without_a_hint(kind: type[Exception]) -> None:
    with pytest.raises(TypeError, match="hint"):
        kind("the disk is full")


@pytest.mark.parametrize("hint", ["", " \n"])
def test_a_hint_that_another_process_left_out_is_not_printed_empty(hint: str) -> None:
    """A hub of another version, or a rank's error."""
    assert describe(DevkitError("the disk is full", hint=hint)).hint == describe(ValueError("x")).hint
    assert describe(DevkitError(" ", hint="")).error == "DevkitError"
