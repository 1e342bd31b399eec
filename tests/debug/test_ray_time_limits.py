"""A stop outlives Ray's own limits, on a real Ray."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from .conftest import PROGRAMS, Cluster, mark, staged
from .look import Look

SPEC = f"{PROGRAMS / 'compiled.py'}:{mark('compiled.py', 'add')}"


@pytest.mark.ray
@pytest.mark.parametrize("yours", ["", "3"])
def test_a_stop_in_a_compiled_graph(cluster: Cluster, yours: str) -> None:
    """Its 10 seconds have been read when `ray.dag` was imported. With a limit of your own the run ends: the control."""
    environ = {**cluster.environ, **({"RAY_CGRAPH_get_timeout": yours} if yours else {})}
    staging = staged(replace(cluster, environ=environ), "compiled.py", "--break", SPEC)
    with staging as stage, cluster.connect() as hub:
        assert stage.do("limits") == [int(yours or 86400), 86400]
        look = Look(hub, stage.job.id, "compiled.py")
        stage.do(
            "import threading; got = [];"
            "one = threading.Thread(target=lambda: got.append(compiled.execute(1).get()), daemon=True); one.start()"
        )
        [stop] = look.stops("add")
        if yours:
            assert stage.do("one.join(40) or not one.is_alive()"), stage.job.out
        else:
            time.sleep(12)
            assert stage.do("one.is_alive()"), stage.job.out
        look.resume(stop)
        if not yours:
            assert stage.do("one.join(30) or got") == [2]
