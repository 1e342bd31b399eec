"""What a rank tells of a process group that it is making, with torch itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import collectives

c10d = pytest.importorskip("torch.distributed.distributed_c10d")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of each `new_group`, what its frame tells just before it is named, as if it had been named."""
    found: list[Any] = []
    original = c10d._process_group_name

    def named(*given: Any, **named_too: Any) -> Any:
        name = original(*given, **named_too)
        frame = sys._getframe()
        while frame.f_code.co_name != "new_group":
            if frame.f_back is None:
                return name  # the default group
            frame = frame.f_back
        found.append(collectives.call_of(frame))
        return name

    monkeypatch.setattr(c10d, "_process_group_name", named)
    c10d.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield found
    c10d.destroy_process_group()


def test_how_many_were_made_before_and_of_which_ranks(told: Any) -> None:
    c10d.new_group()
    c10d.new_group([0])
    assert [(each["op"], each["ranks"], each["made"]) for each in told] == [
        ("new_group", [0], 1),
        ("new_group", [0], 2),
    ]


def test_a_group_that_is_named_by_its_ranks_is_not_counted(told: Any) -> None:
    c10d.new_group([0], use_local_synchronization=True)
    assert "made" not in told[0] and "ranks" not in told[0]
