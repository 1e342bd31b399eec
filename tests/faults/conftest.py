"""The clinic of each fault, and the virtual hosts that faults happen on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.gallery import Clinic
from tests.hosts.conftest import _needs_hosts  # noqa: F401 - the hosts' own condition holds here, too

collect_ignore_glob = ["programs/*"]


@pytest.fixture
def clinic(request: pytest.FixtureRequest) -> Iterator[Clinic]:
    """Of a test that wears `@fault`; what was said is kept if the test passes."""
    mark = request.node.get_closest_marker("fault")
    part = (request.module.__doc__ or "").partition("\n")[0].rstrip(".")
    found = Clinic(part, *mark.args)
    failed = request.session.testsfailed
    yield found
    if request.session.testsfailed == failed:
        found.keep()
