"""devkit's exceptions."""

from __future__ import annotations

import pickle

from devkit.errors import DeadlineError, DevkitError, UsageError


def test_exit_codes() -> None:
    assert (DevkitError.exit_code, UsageError.exit_code, DeadlineError.exit_code) == (1, 2, 4)


def test_message_and_hint_survive_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(DeadlineError("rank 1 is missing", hint="--timeout 60")))
    assert (type(error), error.message, error.hint) == (DeadlineError, "rank 1 is missing", "--timeout 60")
