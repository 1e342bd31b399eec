"""Limits, disks, variables and the token of this node."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from .facts import Disk, Limits, TokenFacts

# Names whose values may be shown. None of them is a secret.
VARIABLES = (
    *("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM", "PYTHONBREAKPOINT", "RAY_AUTH_MODE"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_DEBUG", "NCCL_IB_GID_INDEX", "NCCL_ALGO", "NCCL_PROTO"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_HOME", "CUDNN_PATH", "LD_LIBRARY_PATH"),
    *("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "TORCH_CUDA_ARCH_LIST"),
)
RAY_FLAGS = ("--ray-debugger-external=1",)


def machine_id() -> str:
    """The same for all processes that share a kernel and a view of its network."""
    boot = read_text("/proc/sys/kernel/random/boot_id") or socket.gethostname()
    with suppress(OSError):
        boot += "/" + os.readlink("/proc/self/ns/net")
    return boot


def raylet() -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment and the command line of the raylet that this worker belongs to; empty outside of one.

    Ray gives a worker without GPUs an empty CUDA_VISIBLE_DEVICES, so its own environment is not that of training.
    """
    parent = os.getppid()
    words = read_bytes(f"/proc/{parent}/cmdline").split(b"\0")
    if not words[0].rpartition(b"/")[2].startswith(b"raylet"):
        return {}, ()
    entries = read_bytes(f"/proc/{parent}/environ").split(b"\0")
    environ = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries if entry)
    return environ, tuple(word.decode(errors="replace") for word in words)


def shown(environ: dict[str, str]) -> dict[str, str]:
    """The variables that matter and may be shown."""
    return {name: environ[name] for name in VARIABLES if environ.get(name)}


def ray_arguments(words: tuple[str, ...]) -> tuple[str, ...]:
    together = " ".join(words)
    return tuple(flag for flag in RAY_FLAGS if flag in together)


def ray_folder(words: tuple[str, ...], environ: dict[str, str]) -> str:
    """Where Ray keeps its sessions, or would."""
    told = next((word.partition("=")[2] for word in words if word.startswith("--temp_dir=")), "")
    return told or environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or tempfile.gettempdir()


def limits() -> Limits:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    memory, available = _memory()
    return Limits(
        open_files=-1 if soft == resource.RLIM_INFINITY else soft,
        open_files_hard=-1 if hard == resource.RLIM_INFINITY else hard,
        shm_total=shm.f_frsize * shm.f_blocks if shm else 0,
        shm_free=shm.f_frsize * shm.f_bavail if shm else 0,
        memory_total=memory,
        memory_available=available,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def _memory() -> tuple[int, int]:
    lines = read_text("/proc/meminfo").splitlines()
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value.split()}
    total, available = kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        allowed, taken = read_text(limit), read_text(used)
        if allowed.isdigit() and taken.isdigit() and int(allowed) < total:
            return int(allowed), min(available, max(0, int(allowed) - int(taken)))
    return total, available


def disks(environ: dict[str, str], sessions: str) -> tuple[Disk, ...]:
    """The folders that a run writes to."""
    home = environ.get("HOME") or str(Path.home())
    hugging_face = environ.get("HF_HOME") or os.path.join(home, ".cache", "huggingface")
    places = [("Ray's files", sessions), ("home", home), ("HF_HOME", hugging_face)]
    mounts = _mounts()
    return tuple(_disk(role, path, mounts) for role, path in places if path)


def _disk(role: str, path: str, mounts: list[tuple[str, str]]) -> Disk:
    there = Path(path)
    while not there.exists() and there != there.parent:
        there = there.parent
    kind = next((kind for point, kind in mounts if there.is_relative_to(point)), "")
    try:
        size = os.statvfs(there)
    except OSError as error:
        return Disk(role, path, 0, 0, kind, error.strerror or str(error))
    refused = "" if os.access(there, os.W_OK) else "no permission to write there"
    identity = _identity(there) if there == Path(path) and kind != "overlay" else _private_identity(there)
    return Disk(role, path, size.f_frsize * size.f_blocks, size.f_frsize * size.f_bavail, kind, refused, identity)


def _identity(path: Path) -> str:
    """What tells a folder from any other one, on whichever node it is looked at."""
    with suppress(OSError):
        seen = path.stat()
        return f"{seen.st_ino}-{seen.st_ctime_ns}"
    return ""


def _private_identity(path: Path) -> str:
    """Of a folder that no other mount namespace has."""
    with suppress(OSError):
        return f"{os.readlink('/proc/self/ns/mnt')}-{read_text('/proc/sys/kernel/random/boot_id')}-{path}"
    return ""


def _mounts() -> list[tuple[str, str]]:
    """Mount points and kinds, the innermost first."""
    rows = [line.split() for line in read_text("/proc/self/mounts").splitlines()]
    found = [(row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2]
    return sorted(found, key=lambda mount: len(mount[0]), reverse=True)


def token(environ: dict[str, str], key: str) -> TokenFacts:
    """As Ray looks for it: the variable, the file that a variable names, the user's file."""
    file = Path(environ.get("HOME") or Path.home()) / ".ray" / "auth_token"
    there = file.is_file()
    mode = stat.S_IMODE(file.stat().st_mode) if there else 0
    named = environ.get("RAY_AUTH_TOKEN_PATH", "")
    value, source = environ.get("RAY_AUTH_TOKEN", "").strip(), "RAY_AUTH_TOKEN"
    if not value and named:
        value, source = read_text(named), named
    elif not value:
        value, source = read_text(str(file)), str(file)
    digest = hmac.new(key.encode(), value.encode(), hashlib.sha256).hexdigest()[:16] if value else ""
    return TokenFacts(
        mode=environ.get("RAY_AUTH_MODE", ""),
        source=source if value else "",
        digest=digest,
        file=str(file) if there else "",
        open_to=oct(mode)[2:] if mode & 0o077 else "",
    )


def read_text(path: str) -> str:
    return read_bytes(path).decode(errors="replace").strip()


def read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
