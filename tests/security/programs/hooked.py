"""A worker that Ray starts: runs the hook that a job brings along, as UID, and prints where the agent came from."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import zipfile
from importlib import import_module

from devkit.debug import bundle
from devkit.debug.inworker import ship
from devkit.debug.inworker.boot import settings_to_json
from devkit.debug.inworker.settings import Settings
from tests.security.users import become

USED = ("agent", "boot", "crashes", "hooks", "imports", "postmortem", "records", "ray_table", "timeouts", "wire")


def main() -> None:
    uid = int(sys.argv[1])
    content = bundle.files()
    packed, digest = bundle.pack(content), bundle.digest(content)
    for name in USED:  # with what they need of the standard library, while it can be read
        import_module(f"devkit.debug.inworker.{name}")
    zipfile.ZipFile(io.BytesIO(packed)).testzip()
    tempfile.tempdir = sys.argv[2]
    hook = ship.make_hook(packed, digest, settings_to_json(Settings(ray_extension="off")), None)
    become(uid)
    hook()
    module = sys.modules.get("devkit_inworker")
    print(json.dumps({"digest": digest, "file": getattr(module, "__file__", None)}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
