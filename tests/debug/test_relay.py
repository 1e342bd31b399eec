"""The relay beside a hub: what comes in packages is answered in a file, and nothing that comes ends it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import relay, wire
from devkit.debug.inworker.hub import Hub
from tests.debug.hubs import KEY, Surroundings

HUB_ID = "0123456789abcdef"
HELLO = wire.encode({"id": 1, "op": "hello", "arguments": {}})
BROKEN = {
    "s1-²": HELLO,
    "s1-": HELLO,
    "s1-" + "9" * 5000: HELLO,
    "../../x-0": HELLO,
    "s" * 5000 + "-0": HELLO,
    "b1-0": b"xxxxx",
    "b2-0": b"[]\n",
    "b3-0": b"[" * 50_000 + b"\n",
    "b4-0": b"\xff\xfe\n",
    "b5-0": b'{"type":"channel"}\n',
    "b6-0": b'{"type":"channel","channel":{}}\n',
    "b7-0": b'{"op":"ps"}\n',
    "b8-0": b'{"op":"eval","arguments":[]}\n',
}


class KeyValues:
    """What the relay asks of a GCS."""

    def __init__(self, packages: dict[str, bytes]) -> None:
        self.left = {f"gcs://{relay.prefix(HUB_ID)}{name}.zip".encode(): data for name, data in packages.items()}

    def internal_kv_keys(self, prefix: bytes, *_: Any, timeout: float) -> list[bytes]:
        return [key for key in self.left if key.startswith(prefix)]

    def internal_kv_get(self, key: bytes, *_: Any, timeout: float) -> bytes | None:
        return self.left.get(key)

    def internal_kv_del(self, key: bytes, *_: Any, timeout: float) -> None:
        self.left.pop(key, None)


async def relayed(folder: Path, packages: dict[str, bytes], session: str) -> list[Any]:
    """What a session is told, once its request is answered."""
    hub = Hub(KEY, folder / "crashes", Surroundings())
    there = relay.Relay(hub, HUB_ID, folder, KeyValues(packages))
    running = asyncio.create_task(there.run())
    try:
        async with asyncio.timeout(20):
            file = folder / relay.file_name(session)
            while not file.exists() or file.read_text().count("\n") < 2:
                assert not running.done(), running.exception()
                await asyncio.sleep(0.01)
        return [json.loads(line) for line in file.read_text().splitlines()]
    finally:
        running.cancel()
        for each in there._sessions.values():
            each.end()
        await asyncio.gather(running, return_exceptions=True)
        await hub.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "devkit"
    made.mkdir(mode=0o700)
    return made


def test_packages_that_nobody_can_read_are_passed_over(folder: Path) -> None:
    said = asyncio.run(relayed(folder, {**BROKEN, "good-0": HELLO}, "good"))
    assert said[0] == {"relay": "ready"} and said[1]["id"] == 1 and "ok" in said[1]
    assert sorted(folder.parent.iterdir()) == [folder]


def test_what_an_earlier_hub_left_is_swept_and_the_rest_is_not(folder: Path) -> None:
    for name in ("relay-old.out", "hub.json", "other.out"):
        (folder / name).write_text("x")
    said = asyncio.run(relayed(folder, {"good-0": HELLO}, "good"))
    assert len(said) == 2
    assert sorted(os.listdir(folder)) == ["hub.json", "other.out"]
