"""The wait for a cluster that other machines bring up as well: what it says at its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.debug import cluster, cluster_launch, processes
from devkit.debug.address import ADDRESS_FILE
from devkit.debug.cluster_launch import RANK_LABEL, Launch
from devkit.debug.ray_start import ClusterOptions, Plan
from devkit.debug.rows import NodeRow
from devkit.debug.state import ClusterState
from devkit.errors import DeadlineError, DevkitError, UnreachableError
from tests.pace import stretched

HEAD = NodeRow(node_id="a", node_ip="10.0.0.1", state="ALIVE", is_head_node=True, labels={RANK_LABEL: "0"})
OWN = NodeRow(node_id="b", node_ip="10.0.0.2", state="ALIVE", labels={RANK_LABEL: "1"})
DEAD = NodeRow(node_id="c", node_ip="10.0.0.3", state="DEAD", labels={RANK_LABEL: "2"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path))
    (tmp_path / ADDRESS_FILE).write_text("10.0.0.1:6379")
    yield
    cluster.stop()


def launch(looks: Iterator[tuple[NodeRow, ...] | UnreachableError]) -> Launch:
    """Of a node that joins a cluster of three; its process is there, and does nothing. The last look lasts."""
    last: tuple[NodeRow, ...] | UnreachableError = ()

    def look() -> tuple[NodeRow, ...]:
        nonlocal last
        last = next(looks, last)
        if isinstance(last, UnreachableError):
            raise last
        return last

    options = ClusterOptions(join="10.0.0.1:6379", wait_for=3, timeout=1)
    folder = f"--temp-dir={os.environ['DEVKIT_HOME']}"
    plan = Plan(0, 0, ((sys.executable, "-c", "import time; time.sleep(600)", folder),), ({},), ())
    state = ClusterState("joined", "10.0.0.1:6379", "", "distributed", "disabled", (), 0.0, machine=processes.machine())
    return Launch(options, plan, {}, state, look, lambda node: node.node_id == "b", lambda: None)


def waited(*looks: tuple[NodeRow, ...] | UnreachableError, seconds: float = 1.0) -> tuple[NodeRow, ...]:
    made = launch(iter(looks))
    deadline = time.monotonic() + seconds
    made.start_all(deadline)
    try:
        return made.wait_until_up(deadline)
    finally:
        made.let_go()


@pytest.mark.usefixtures("home")
def test_it_waits_for_its_own_node_and_for_all() -> None:
    third = NodeRow(node_id="c", node_ip="10.0.0.3", state="ALIVE")
    assert waited((HEAD,), (HEAD, OWN), (HEAD, OWN, third), seconds=stretched(20.0)) == (HEAD, OWN, third)


@pytest.mark.usefixtures("home")
def test_it_waits_until_a_program_finds_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` notes the address when its node is alive: who starts a program at once finds no Ray before."""
    third = NodeRow(node_id="c", node_ip="10.0.0.3", state="ALIVE")
    note = tmp_path / ADDRESS_FILE
    note.unlink()
    looks = 0

    def there() -> Iterator[tuple[NodeRow, ...]]:
        nonlocal looks
        yield HEAD, OWN, third
        note.write_text("10.0.0.1:6379")
        looks += 1
        yield HEAD, OWN, third

    monkeypatch.setattr(cluster_launch, "NOTE_S", 600.0)
    made = launch(there())
    deadline = time.monotonic() + stretched(20.0)
    made.start_all(deadline)
    try:
        made.wait_until_up(deadline)
    finally:
        made.let_go()
    assert looks == 1


@pytest.mark.usefixtures("home")
def test_a_ray_that_notes_no_address_is_up_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third = NodeRow(node_id="c", node_ip="10.0.0.3", state="ALIVE")
    (tmp_path / ADDRESS_FILE).unlink()
    monkeypatch.setattr(cluster_launch, "NOTE_S", 0.1)
    assert waited((HEAD, OWN, third), seconds=stretched(20.0)) == (HEAD, OWN, third)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("looks", "told"),
    [
        (((HEAD,),), "missing: 1 of 1 nodes"),
        (((HEAD, OWN, DEAD),), "missing: 1 of 3 nodes: rank 2; alive: 10.0.0.1 (rank 0), 10.0.0.2 (rank 1)"),
        (
            ((HEAD, OWN), (replace(HEAD, state="DEAD"), OWN)),
            "missing: 1 of 3 nodes: rank 2; alive: 10.0.0.1 (rank 0), 10.0.0.2 (rank 1)",
        ),
        (
            ((HEAD, OWN), (HEAD,)),
            "missing: 1 of 3 nodes: rank 2; alive: 10.0.0.1 (rank 0), 10.0.0.2 (rank 1)",
        ),
        (
            ((HEAD, OWN), UnreachableError("gone", hint="-")),
            "missing: an answer of the cluster (gone); before that: 1 of 3 nodes: rank 2; alive: 10.0.0.1 (rank 0)",
        ),
    ],
)
def test_at_the_deadline_it_says_who_is_missing(looks: tuple[tuple[NodeRow, ...], ...], told: str) -> None:
    with pytest.raises(DeadlineError) as caught:
        waited(*looks)
    assert told in caught.value.message


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("time.sleep(0.3); raise ValueError('the object store is too large')", "`ray start` failed: ValueError: the "),
        ("time.sleep(600)", "gcs_server exited during startup: it logged no error"),
    ],
    ids=["it ends", "it goes on"],
)
def test_a_start_that_fails_says_more_than_what_it_has_ended(
    end: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends its processes, which log nothing of it, and then itself."""
    monkeypatch.setattr(cluster_launch, "ENDING_S", stretched(5.0) if "raise" in end else 0.1)
    made = launch(iter(()))
    made._plan = replace(made._plan, commands=((sys.executable, "-c", f"import time; {end}"),))
    made.start_all(time.monotonic() + 1)
    monkeypatch.setattr(made._parts[0], "lost", lambda: SimpleNamespace(name="gcs_server", log=None))
    try:
        with pytest.raises(DevkitError) as caught:
            made._check()
    finally:
        made.let_go()
    assert caught.value.message.startswith(said)
