"""`devkit smoke --agent` as its users call it."""

from __future__ import annotations

import pytest

from devkit.smoke.options import AGENTS
from devkit.smoke.results import OF_AGENTS
from tests import documents
from tests.smoke.calls import DEADLINE_S, smoke

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2 * DEADLINE_S)]


@pytest.mark.parametrize("agent", AGENTS)
def test_each_passes_every_check(agent: str) -> None:
    """The proofs, learning, a killed rank, resuming to the bit; nothing is left."""
    done = smoke("--json", "--agent", agent)
    record = done.record
    assert (done.code, record["verdict"]) == (0, "pass"), done.err
    documents.check_output(["smoke"], record)
    assert done.checks("pass").keys() == set(OF_AGENTS), done.checks("skip")
    assert "0 would be other tokens" in done.checks("pass")["glue"]


def test_an_environment_that_is_none_and_what_does_not_go_with_it() -> None:
    for words in (("--agent", "sea"), ("--agent", "lake", "--rollout", "sglang"), ("--agent", "lake", "--", "bash")):
        done = smoke(*words)
        assert done.code == 2 and "error: " in done.err and "hint: devkit smoke --agent lake" in done.err
