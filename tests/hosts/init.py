"""Process 1 of a virtual host, a program of its own: makes the host's files, says so, and lives as long as its stdin.

It runs in namespaces of its own already. Nothing that it mounts can be seen outside, and when it ends the kernel kills
every process of the host and takes the mounts and the network with them: nothing is left to be removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any

STAGE = "/mnt"  # any folder that is there: what is mounted on it here is seen here alone


def main(plan: dict[str, Any]) -> None:
    root = make_root(plan["share"])
    for path in plan["hide"]:
        forget(root + path)
    for path, content in plan["files"].items():
        replace(root + path, content)
    socket.sethostname(plan["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.chdir(root)
    os.mkdir(".old")
    subprocess.run(["pivot_root", ".", ".old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/.old"], check=True)
    os.rmdir("/.old")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what daemons leave behind is reaped
    os.write(1, b"ready\n")
    while os.read(0, 1):  # its other end is with the test, and closes with it, however that ends
        pass


def make_root(share: list[str]) -> str:
    """This machine's files, where what the host writes is its own, but for the folders that it shares."""
    mount("-t", "tmpfs", "tmpfs", STAGE)
    upper, work, root = (f"{STAGE}/{name}" for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        os.mkdir(folder)
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("--rbind", "/dev", f"{root}/dev")
    mount("-t", "sysfs", "sysfs", f"{root}/sys")
    for folder, mode in (("dev/shm", "1777"), ("tmp", "1777"), ("run", "755")):
        mount("-t", "tmpfs", "-o", f"mode={mode}", "tmpfs", f"{root}/{folder}")
    for folder in share:
        os.makedirs(root + folder, exist_ok=True)
        mount("--rbind", folder, root + folder)  # with what is mounted in it, as packages may be
    return root


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def forget(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def replace(path: str, content: str) -> None:
    forget(path)  # resolv.conf is a link on some machines
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(content)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
