"""`devkit dap` as a process, with a hub that a test made: an editor's executable takes no arguments in these tests."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from devkit import console
from devkit.debug import client, dap
from devkit.debug.client import HubClient
from devkit.debug.inworker import wire
from devkit.errors import DevkitError, describe

KEY = wire.derive_key("the token", "hub 1")


def connect(address: str | None, *, deadline: float = 10.0) -> HubClient:
    port = int(os.environ["DEVKIT_TEST_PORT"])
    return HubClient(wire.Connection(("127.0.0.1", port), KEY, "client", timeout=deadline))


def main() -> int:
    client.connect = connect
    options: dict[str, Any] = json.loads(os.environ["DEVKIT_TEST_OPTIONS"])
    try:
        return dap.main(**options)
    except DevkitError as error:
        record = describe(error)
        console.talk().print(f"error: {record.error}\nhint: {record.hint}")
        return record.exit_code


if __name__ == "__main__":
    sys.exit(main())
