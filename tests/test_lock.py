"""The locks hold every package that `pyproject.toml` asks for, in a version that it allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LOCKS = {
    "requirements.lock": ("dev", "tracking"),
    "scripts/sglang_cpu/requirements.lock": ("dev",),
    "scripts/vllm_cpu/requirements.lock": ("dev",),
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_fits_the_project(lock: str) -> None:
    locked = dict(re.findall(r"(?m)^([a-z0-9.-]+)==([^\s;]+)", (ROOT / lock).read_text()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + [
        each for extra in LOCKS[lock] for each in project["optional-dependencies"][extra]
    ]
    for requirement in map(Requirement, asked):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in locked, f"{lock} has no {name}: make lock"
        assert Version(locked[name]) in requirement.specifier, f"{lock} has {name} {locked[name]}: make lock"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_machine_and_no_index(lock: str) -> None:
    lines = (ROOT / lock).read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^\s;]+( ; .+)?", line) for line in lines)
