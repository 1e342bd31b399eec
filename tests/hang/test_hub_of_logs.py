"""What `devkit logs` has of the hub: nothing where there is none, and a word where there is one that fails."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from devkit.debug.address import ClusterAddress
from devkit.debug.hub_file import no_hub
from devkit.debug.rows import JobRow
from devkit.errors import DeadlineError, UnreachableError
from devkit.logs.run import Known, _of_hub
from tests.debug.hub_fake import FakeHub
from tests.debug.test_killed import CRASHED, record

JOB = JobRow(job_id="02000000", status="FAILED")
LATE = DeadlineError("the hub did not answer `crash` within 6 s", hint="try again")


def known_of(hub: Any, monkeypatch: pytest.MonkeyPatch) -> Known:
    def connect(*_: Any, **__: Any) -> Any:
        if isinstance(hub, Exception):
            raise hub
        return nullcontext(hub)

    monkeypatch.setattr("devkit.debug.client.connect", connect)
    return _of_hub(ClusterAddress("http://127.0.0.1:8265", None, None, ""), JOB, with_stacks=False)


@pytest.mark.parametrize("none", [no_hub(), UnreachableError("the hub went away", hint="")])
def test_a_cluster_without_devkit_needs_no_word(none: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_of(none, monkeypatch) == Known()


def test_a_hub_that_does_not_answer_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_of(FakeHub(crashes=LATE), monkeypatch)
    assert known.missed == (f"devkit's hub: {LATE.message}",)


@pytest.mark.parametrize(("answer", "said"), [(LATE, "did not answer"), ({"chain": [3]}, "c1 is damaged")])
def test_so_is_a_snapshot_that_cannot_be_had(answer: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = record("c1", 5.0, CRASHED, job_id=JOB.job_id).to_json()
    hub = FakeHub(crashes={"crashes": [listed]}, crash=answer, caught={"workers": []})
    known = known_of(hub, monkeypatch)
    assert known.crashes == () and said in known.missed[0]
