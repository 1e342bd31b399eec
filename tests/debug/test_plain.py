"""Colours and control characters of other people's texts reach no page, no pipe and no document."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from devkit.debug.crash_page import crash_page
from devkit.debug.crash_table import crash_table
from devkit.debug.crashes import all_crashes, complete
from devkit.debug.inworker import dap_frames
from devkit.debug.inworker.dap_frames import Node, References
from devkit.debug.inworker.records import CrashRecord, Identity
from devkit.debug.inworker.snapshot import take
from devkit.debug.inworker.values import error_line
from devkit.debug.inworker.words import plain
from devkit.logs import parse
from tests.debug.hub_fake import FakeHub, printed

NESTED = (
    "\x1b[36mray::outer()\x1b[39m (pid=7, ip=10.0.0.1)\n"
    "\x1b[36mray::pick()\x1b[39m (pid=8, ip=10.0.0.2)\n"
    '  File "boom.py", line 7, in pick\n    x[9]\n\x1b[1;31mValueError\x1b[0m: no such'
)
WHO = Identity("01", "w", "n", "10.0.0.5", "h", 7, "driver")
ESCAPES = [
    "\x1b[36mcolour\x1b[39m",
    "\x1b]0;a title\x07text",
    "\x1b]8;;http://x\x1b\\link",
    "bell\x07 back\x08 null\x00",
    "over\rwritten",
    "\x1bcreset",
    "\x9b31mc1",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_what_a_terminal_would_obey_goes(text: str) -> None:
    found = plain(text)
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in found), found
    assert plain("two\nlines\twith äß 漢") == "two\nlines\twith äß 漢"


def crash() -> dict[str, Any]:
    class RayTaskError(Exception):
        pass

    with pytest.raises(RayTaskError) as caught:
        raise RayTaskError(NESTED)
    assert "\x1b" not in error_line(caught.value)
    return take(caught.value, WHO, "driver", budget=5.0)


def test_a_snapshot_has_none() -> None:
    document = crash()
    assert "\x1b" not in str(document) and "ray::pick() (pid=8" in document["exception"]["message"]


def test_the_pages_of_an_older_snapshot_have_none() -> None:
    document = crash()
    coloured = {**document, "exception": {**document["exception"], "message": NESTED}}
    coloured["chain"] = [{**each, "message": NESTED} for each in document["chain"]]
    record = replace(CrashRecord.from_json(document), exception={"type": "RayTaskError", "message": NESTED})
    hub = FakeHub(crashes={"crashes": [record.to_json()]}, crash=coloured)
    [listed] = all_crashes(hub)
    shown = complete(hub.call("crash", id=listed.id), listed)
    assert "\x1b" not in str(shown)
    assert "\x1b" not in printed(crash_page(shown, [listed], 1.0)) + printed(crash_table([listed], 1.0, width=None))


def test_what_p_shows_has_none() -> None:
    class Fancy:
        def __repr__(self) -> str:
            return "\x1b[1mfancy\x1b[0m"

    fancy = Fancy()
    node: Any = Node(None, sys._getframe(), "frame")  # type: ignore[arg-type]
    answer, _ = dap_frames.evaluated(node, {"expression": "fancy", "context": "clipboard"}, References())
    assert answer["result"] == "fancy" and fancy is not None


def test_rays_own_colours_hide_no_section() -> None:
    found = parse.innermost(NESTED)
    assert (found.type, found.message, found.who, found.pid) == ("ValueError", "no such", "pick", 8)
