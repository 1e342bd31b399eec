"""Every limit of `timeouts.TABLE` is read in Ray's own sources, with their modules loaded before and after the hook."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import timeouts
from tests.pace import stretched

pytest.importorskip("ray")
pytest.importorskip("torch")
# The first loads all of Ray's libraries in four processes, whose limits the others look at.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]

ROOT = Path(__file__).resolve().parents[2]
DAY, HOUR = timeouts.DAY, timeouts.MEETING

# Numbers without devkit, with it, and where you have set the variable (to 77 seconds): what the program gave is 5.
NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    "process groups (rendezvous: an hour)": (False, True, True),
    "NCCL's heartbeat": (None, "86400", "77"),
    "vLLM's iterations": (None, "86400", "77"),
    "vLLM's workers": (None, "86400", "77"),
    "vLLM's calls": (None, "86400000", "77000"),
    "sglang's watchdog": (5, DAY, DAY),
    "compiled graphs: a result": ([10, 10, 5], [DAY, DAY, DAY], [77, 77, 5]),
    "compiled graphs: an input": ([10, 10, 5], [DAY, DAY, DAY], [77, 77, 5]),
    "compiled graphs: teardown(kill_actors=True)": ([30, 30], [DAY, DAY], [77, 77]),
    "compiled graphs: the error of an actor": (10, DAY, DAY),
    "device objects": ([60], [DAY], [77]),
    "collective groups: rendezvous, gloo": ([None, 5, 30000], [HOUR * 1000] * 3, [None, 5, 30000]),
    "collective groups: rendezvous, NCCL": ([180, 1], [HOUR, HOUR], [HOUR, HOUR]),
    "Train: a worker's health": (600, DAY, 77),
    "Train: the others at a report": (None, "86400", "77"),
    "Train: a validation": ([5, None], [DAY, None], [DAY, None]),
    "Train: resources, version 1": (100, HOUR, 77),
    "Tune: a trial that ends": (600, DAY, 77),
    "Tune: a trial that ends, before another one has its actor": (2, DAY, 77),
    "RLlib: samples": ([60, 120, 120], [DAY] * 3, [DAY] * 3),
    "Data: no progress": ([1800, 5, -1], [DAY, DAY, -1], [77, 5, -1]),
    "Data: a shuffle's shards": ([1800, 5], [DAY, DAY], [77, 5]),
    "Data: setting up a shuffle on GPUs": (120, HOUR, HOUR),
    "Serve: a replica's health": (5, DAY, DAY),
    "Serve: the loop of a replica's code": ([300], [DAY], [77]),
    "Serve: the health of a deployment's actor": ([30], [DAY], [77]),
    "Serve: a proxy's health": ([10], [DAY], [77]),
    "Serve: a proxy's start": ([5], [HOUR], [77]),
    "Serve: waiting for the proxies": ([60, 60], [HOUR, HOUR], [HOUR, HOUR]),
    "Serve: waiting for applications of a file": (60, DAY, DAY),
    "Serve with HAProxy: a request": ([3600, 5], [DAY, DAY], [77, 5]),
    "Serve with HAProxy: the program's router": ([5], [DAY], [77]),
    "Serve for LLMs: a request": ([600], [DAY], [77]),
    "Serve for LLMs: rendezvous": (120, HOUR, HOUR),
}
SGLANG = "import dataclasses\n@dataclasses.dataclass\nclass ServerArgs:\n    watchdog_timeout: float = 300\n"


@functools.cache
def limits(when: str, seconds: int | None = None) -> dict[str, Any]:
    """In a process of its own, in which nothing can start a Ray."""
    variables = {limit.variable: limit for limit in timeouts.TABLE if limit.variable}
    environ = {name: value for name, value in os.environ.items() if name not in variables}
    if seconds is not None:
        environ |= {name: str(seconds * limit.variable_unit) for name, limit in variables.items()}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "sglang" / "srt"
        made.mkdir(parents=True)
        (made / "server_args.py").write_text(SGLANG)
        environ |= {"RAY_ENABLE_AUTO_CONNECT": "0", "PYTHONPATH": folder, "HOME": folder}
        program = ROOT / "tests" / "debug" / "programs" / "limits.py"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(program), when],
            env=environ,
            capture_output=True,
            text=True,
            timeout=stretched(200),
        )
    assert done.stdout and "could not be prepared" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


VARIABLE = re.compile(r"""["']([A-Z][A-Z0-9]*_\w*TIMEOUT\w*|TIMEOUT_\w+|RAY_\w*timeout\w*)["']""")
NOT_THE_PROGRAMS = re.compile(
    r"/(tests?|thirdparty_files|dashboard|autoscaler|examples|tuned_examples|benchmarks?|core/generated)/|test_|_pb2"
)
NO_VARIABLES = {"VALIDATION_TIMEOUT", "AUTOSCALING_REQUESTS_GET_TIMEOUT_S"}


def test_each_variable_of_ray_with_a_limit_is_on_the_page() -> None:
    """A newer Ray brings others: each is lifted, or it is said why it stays."""
    import ray

    sources = Path(str(ray.__file__)).parent
    files = [path for path in sources.rglob("*.py") if not NOT_THE_PROGRAMS.search(f"/{path.relative_to(sources)}")]
    found = {name for path in files for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    page = (ROOT / "docs" / "time-limits.md").read_text(encoding="utf-8")

    assert len(found) > 40, "Ray names its variables in another way"
    assert sorted(name for name in found - NO_VARIABLES if f"`{name}`" not in page) == []


def test_each_limit_of_the_table_is_tried() -> None:
    assert [limit.name for limit in timeouts.TABLE] == list(NUMBERS) == list(limits("never"))


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_ends_a_run_beside_a_stop(name: str) -> None:
    plain, lifted, yours = NUMBERS[name]

    assert limits("never")[name] == plain, "the control: what it is without devkit"
    assert limits("before")[name] == lifted, "its module was there before the hook"
    assert limits("after")[name] == lifted, "its module came after the hook"
    assert limits("before", 77)[name] == limits("after", 77)[name] == yours, "a variable that you set stays"
