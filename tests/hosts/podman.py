"""A real podman on virtual hosts. The image is the host's own files, `IMAGE` with `OPTIONS`: no registry is needed."""

from __future__ import annotations

from tests.hosts import packages
from tests.hosts.hosts import Host

IMAGE, OPTIONS = "/:O", ("--rootfs",)  # O: what the container writes is its own
PACKAGES = {"podman": "podman", "crun": "crun", "catatonit": "catatonit"}
# A host has no cgroups of its own, and may not raise the limits of its processes.
CONTAINERS = """\
[containers]
cgroups = "disabled"
cgroupns = "host"
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
# On a memory file system: an overlay's upper folder can't lie on another overlay, as a host's disk is.
STORAGE = """\
[storage]
driver = "vfs"
graphroot = "/run/podman/graph"
runroot = "/run/podman/run"
"""


def problem() -> str:
    """Why there can be no podman here; empty: there can."""
    return packages.problem("podman", PACKAGES)


def prepare(host: Host) -> None:
    host.write("/etc/containers/containers.conf", CONTAINERS, "644")
    host.write("/etc/containers/storage.conf", STORAGE, "644")
    host.run("mount", "-t", "tmpfs", "tmpfs", "/sys/fs/cgroup")  # crun looks for a known file system there
