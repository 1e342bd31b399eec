"""The GPUs of this node, their driver, and its InfiniBand ports: from nvidia-smi, libcuda and sysfs."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from .facts import Devices, Gpu, GpuProcess
from .machine import read_bytes, read_text

_SMI_S = 8.0  # seconds; without persistence mode the first call loads the driver
_GPU = "index,name,memory.total,memory.used,uuid,driver_version"
_PROCESS = "pid,gpu_uuid,used_memory"
_MIB = 1024 * 1024


def devices() -> Devices:
    """What there is; nothing is loaded into a GPU."""
    ports = infiniband()
    if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl"):
        return _nvidia(ports)
    return _amd(ports)


def _nvidia(ports: tuple[str, ...]) -> Devices:
    try:
        gpus, driver = parse_gpus(_smi("--query-gpu", _GPU))
        processes = parse_processes(_smi("--query-compute-apps", _PROCESS))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Devices("nvidia", problem=_said(error), driver=_kernel_driver(), cuda=_cuda(), infiniband=ports)
    named = tuple(GpuProcess(each.pid, each.gpu, each.used_mib, command_of(each.pid)) for each in processes)
    return Devices("nvidia", gpus, named, driver, _cuda(), infiniband=ports)


def _smi(query: str, fields: str) -> str:
    command = ["nvidia-smi", f"{query}={fields}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True).stdout


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs and the driver's version.

    >>> parse_gpus("0, NVIDIA H200, 143771, 4, GPU-1, 570.86\\n")
    ((Gpu(index=0, name='NVIDIA H200', memory_mib=143771, used_mib=4, uuid='GPU-1'),), '570.86')
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    gpus = tuple(Gpu(int(row[0]), row[1], _mib(row[2]), _mib(row[3]), row[4]) for row in rows)
    return gpus, rows[0][5] if rows else ""


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """
    >>> parse_processes("4711, GPU-1, 70000\\n")
    (GpuProcess(pid=4711, gpu='GPU-1', used_mib=70000, command=''),)
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
    return tuple(GpuProcess(int(row[0]), row[1], _mib(row[2]), "") for row in rows if row[0].isdigit())


def _mib(cell: str) -> int:
    """A card with unified memory says [N/A]."""
    return int(cell) if cell.isdigit() else 0


def command_of(pid: int) -> str:
    """A process's command line, shortened; empty where it can't be seen."""
    return read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:80]


def _said(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = f"{error.stdout or ''} {error.stderr or ''}".split()
        return " ".join(said)[:300] or f"nvidia-smi gave {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nvidia-smi did not answer within {_SMI_S:g} s"
    if isinstance(error, FileNotFoundError):
        return "nvidia-smi is not on PATH"
    return str(error)[:300]


def _kernel_driver() -> str:
    words = read_text("/proc/driver/nvidia/version").partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def _cuda() -> str:
    """The newest CUDA that the driver takes, by libcuda itself."""
    with suppress(OSError, AttributeError):
        version = ctypes.c_int(0)
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value:
            return f"{version.value // 1000}.{version.value % 1000 // 10}"
    return ""


def _amd(ports: tuple[str, ...]) -> Devices:
    gpus: list[Gpu] = []
    for card in sorted(Path("/sys/class/drm").glob("card[0-9]*/device/mem_info_vram_total")):
        used = read_text(str(card.with_name("mem_info_vram_used")))
        total = read_text(str(card))
        if total.isdigit() and used.isdigit():
            name = read_text(str(card.with_name("product_name"))) or "AMD GPU"
            gpus.append(Gpu(len(gpus), name, int(total) // _MIB, int(used) // _MIB, card.parent.parent.name))
    if not gpus:
        return Devices(infiniband=ports)
    return Devices("amd", tuple(gpus), driver=read_text("/sys/module/amdgpu/version"), infiniband=ports)


def infiniband() -> tuple[str, ...]:
    """Ports of RDMA devices that have a link."""
    found = []
    for state in sorted(Path("/sys/class/infiniband").glob("*/ports/*/state")):
        if "ACTIVE" in read_text(str(state)):
            port = state.parent
            layer, rate = read_text(str(port / "link_layer")), read_text(str(port / "rate"))
            found.append(f"{port.parent.parent.name}/{port.name} {layer} {rate}".strip())
    return tuple(found)
