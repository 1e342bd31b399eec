"""A hang and nobody to look at are two answers, and two exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from devkit.debug.hub_file import no_hub
from devkit.errors import DevkitError
from devkit.hang.gather import choose_job
from devkit.logs.run import choose
from tests.debug.hub_fake import FakeHub, ps_document


class NoJobs:
    """A dashboard of a Ray that has run nothing."""

    url = "http://127.0.0.1:8265"

    def jobs(self) -> list[Any]:
        return []


@pytest.mark.parametrize("wanted", [None, "07000000"])
def test_hang_without_a_job(wanted: str | None) -> None:
    with pytest.raises(DevkitError, match="runs under devkit") as caught:
        choose_job(FakeHub(ps=ps_document()), None, wanted)
    assert caught.value.exit_code == 3


def test_the_first_error_of_no_job() -> None:
    with pytest.raises(DevkitError, match="no job has run") as caught:
        choose(NoJobs(), None)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3


def test_a_cluster_on_which_no_job_was_started_under_devkit() -> None:
    assert no_hub().exit_code == 3
