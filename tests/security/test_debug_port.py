"""The worker's debug port and another user of the host: none of its sockets is let in, however it ends.

DEVKIT_ATTACKS=10000 tries so often, of each kind, and DEVKIT_ATTACKS_GUARDS="all proof table" with each of its guards;
docs/results/security.md has the figures.
"""

from __future__ import annotations

import os

import pytest

from tests.security.users import MALLORY, ROOT, VICTIM, needs_users, program

TRIES = int(os.environ.get("DEVKIT_ATTACKS", "60"))
GUARDS = os.environ.get("DEVKIT_ATTACKS_GUARDS", "proof").split()
KINDS = ("close", "half", "reset", "stay")

pytestmark = needs_users


@pytest.mark.timeout(120 + TRIES)
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", [ROOT, VICTIM], ids=["root", "user"])
def test_another_user_gets_no_debugger_and_runs_no_code(owner: int, kind: str, guard: str) -> None:
    """`proof`: the first look, which lets none of them through, is left out. The one after the reading will do."""
    with program("stopped.py", owner, "local", guard) as stopped:
        port = stopped.heard()
        with program("intruder.py", MALLORY, port, kind, TRIES) as intruder:
            seen = intruder.heard()
        after = stopped.ask()
    print(f"{owner} {kind} {guard}, {TRIES} tries: {seen} {after}")
    assert (after["clients"], after["ran"], seen["answered"]) == (0, 0, 0)


@pytest.mark.parametrize("owner", [ROOT, VICTIM], ids=["root", "user"])
def test_another_user_is_not_even_listened_to(owner: int) -> None:
    with program("stopped.py", owner) as stopped:
        with program("intruder.py", MALLORY, stopped.heard(), "stay", 5) as intruder:
            assert intruder.heard()["answered"] == 0
        assert stopped.ask()["heard"] == 0


@pytest.mark.parametrize("owner", [ROOT, VICTIM], ids=["root", "user"])
def test_the_owner_gets_one(owner: int) -> None:
    with program("stopped.py", owner) as stopped:
        port = stopped.heard()
        with program("intruder.py", owner, port, "stay", 1) as own:
            assert own.heard()["answered"] == 1
        assert stopped.ask()["clients"] == 1


def test_who_opens_the_port_to_all_has_it_open() -> None:
    with (
        program("stopped.py", VICTIM, "open") as stopped,
        program("intruder.py", MALLORY, stopped.heard(), "stay", 1) as other,
    ):
        assert other.heard()["answered"] == 1


@pytest.mark.parametrize("owner", [ROOT, VICTIM], ids=["root", "user"])
def test_a_program_that_runs_with_the_owners_rights_for_somebody_else_is_not_the_owner(owner: int) -> None:
    with program("stopped.py", owner) as stopped:
        port = stopped.heard()
        with program("intruder.py", MALLORY, port, "stay", 1, owner) as lent:
            assert lent.heard()["answered"] == 0
        after = stopped.ask()
    assert (after["heard"], after["clients"]) == (1, 0)


def test_a_container_on_the_same_network_and_under_the_same_user_id_is_somebody_else() -> None:
    """As two pods of a Kubernetes node's own network, both root: neither sees the other's processes."""
    with program("stopped.py", ROOT) as stopped:
        port = stopped.heard()
        with program("intruder.py", ROOT, port, "stay", 1, apart=True) as inner:
            assert inner.heard()["answered"] == 1, "of one that this process can look into"
    with program("stopped.py", ROOT, apart=True) as stopped:
        with program("intruder.py", ROOT, stopped.heard(), "stay", 1) as other:
            assert other.heard()["answered"] == 0
        after = stopped.ask()
    assert (after["heard"], after["clients"]) == (1, 0)
