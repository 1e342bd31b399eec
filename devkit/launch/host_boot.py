"""What runs first on a host, under whichever Python is there: says what that is, then does what it is told.

Its source travels through ssh, so it needs nothing on the host but a Python of 3.8 or later. It reads orders, one JSON
document a line, from stdin, and answers with lines that begin with `MARK`: a login script may print what it likes. Its
first line says what the host is (`facts`). The orders are those of `host_work.py`, which is imported only when one
comes: the versions have been compared by then.

When its stdin ends, whoever gave the orders is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import sys
from contextlib import suppress
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

MARK = "devkit-launch: "
GCS_PORT = 6379
# A shell takes these as a sign that it was started by sshd, and then reads ~/.bashrc also for a job's command, where
# another Python may be put on PATH.
OF_SSH = ("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY")


def main() -> None:
    connection = os.environ.get("SSH_CONNECTION", "").split()
    for name in OF_SSH:
        os.environ.pop(name, None)
    # Non-interactive ssh knows no virtual environment; a job's `python` and `ray` are to be those of this one.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    say(facts(connection[2] if len(connection) == 4 else ""))
    for line in sys.stdin:
        import_module("devkit.launch.host_work").obey(json.loads(line), say)


def say(document: dict[str, Any]) -> None:
    with suppress(OSError):  # nobody listens any more; what is to be ended is ended all the same
        sys.stdout.write(MARK + json.dumps(document) + "\n")
        sys.stdout.flush()


def facts(reached_at: str) -> dict[str, Any]:
    """`reached_at` is the address of this host by which ssh came in; empty if that is not known."""
    return {
        "python": platform.python_version(),
        "ray": version("ray"),
        "devkit": version("ray-devkit"),
        "debugpy": version("debugpy"),
        "code": code(),
        "executable": sys.executable,
        "ip": address(reached_at),
        "boot": boot_id(),
        "gcs_port": free_port(),
    }


def version(distribution: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution) or ""  # a folder that a package has left behind has none
    return ""


def code() -> str:
    """A digest of devkit's sources: a version number does not tell two checkouts apart. Empty without devkit."""
    spec = util.find_spec("devkit")
    if spec is None or not spec.origin:
        return ""
    folder = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:8]


def address(reached_at: str) -> str:
    """The IPv4 address that other hosts see: the one that ssh came in by, else that of the default route."""
    ip = reached_at.replace("::ffff:", "")
    if ip and ":" not in ip and not ip.startswith("127."):
        return ip
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation; no packet is sent
        return str(probe.getsockname()[0])
    return ""


def boot_id() -> str:
    """The same in all containers of a machine, and in no two machines."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def free_port() -> int:
    """For a GCS: Ray's own port, else any that is free."""
    for port in (GCS_PORT, 0):
        with suppress(OSError), socket.create_server(("0.0.0.0", port)) as server:
            return int(server.getsockname()[1])
    return 0


if __name__ == "__main__":
    main()
