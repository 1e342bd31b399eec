"""Versions of what is installed, and the tools that building a package needs. Nothing of it is imported."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .facts import Software, Tools
from .machine import read_text

PACKAGES = (
    *("ray", "torch", "transformers", "sglang", "vllm", "verl", "debugpy", "flash-attn", "transformer-engine"),
    *("flashinfer-python", "numpy", "safetensors", "tensordict", "pip", "setuptools", "wheel", "packaging"),
)
_TOOL_S = 5.0


def software() -> Software:
    packages = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            version: str | None = metadata.version(name)
            if version:  # a folder that a package has left behind has none
                packages[name] = version
    built = torch_build()
    return Software(sys.version.split()[0], sys.executable, packages, built.get("cuda", ""), built.get("hip", ""))


def torch_build() -> dict[str, str]:
    """What torch was built for, from its own note of it: importing torch takes seconds."""
    spec = find_spec("torch")
    if spec is None or not spec.origin:
        return {}
    return parse_torch_version(read_text(str(Path(spec.origin).with_name("version.py"))))


def parse_torch_version(text: str) -> dict[str, str]:
    """
    >>> parse_torch_version("cuda: Optional[str] = '12.4'\\nhip: Optional[str] = None\\n")
    {'cuda': '12.4'}
    """
    return dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([\d.]+[^'\"]*)['\"]", text, re.MULTILINE))


def tools(environ: dict[str, str]) -> Tools:
    path = environ.get("PATH")
    home = environ.get("CUDA_HOME") or next((p for p in ("/usr/local/cuda",) if os.path.isdir(p)), "")
    nvcc = os.path.join(home, "bin", "nvcc") if home else ""
    found = nvcc if nvcc and os.path.isfile(nvcc) else shutil.which("nvcc", path=path) or ""
    return Tools(
        gcc=_first(r"^(\d+(?:\.\d+)*)", _output("gcc", "-dumpfullversion", "-dumpversion", path=path)),
        nvcc=_first(r"release (\d+\.\d+)", _output(found, "--version", path=path)),
        cargo=shutil.which("cargo", path=path) or "",
        cuda_home=home,
        cuda_home_nvcc=os.path.isfile(nvcc) if nvcc else False,
        cudnn_header=_cudnn(environ, home),
    )


def _cudnn(environ: dict[str, str], cuda_home: str) -> str:
    """Where Transformer Engine's build would find the header, or the wheel of NVIDIA has it."""
    named = environ.get("CUDNN_PATH")
    roots = [named] if named else [cuda_home, "/usr", "/usr/local"]
    files = [os.path.join(root, "include", "cudnn.h") for root in roots if root]
    spec = find_spec("nvidia")
    if not named and spec is not None:
        files += [os.path.join(place, "cudnn", "include", "cudnn.h") for place in spec.submodule_search_locations or ()]
    return next((file for file in files if os.path.isfile(file)), "")


def _output(program: str, *arguments: str, path: str | None) -> str:
    found = shutil.which(program, path=path) if program else None
    if found is None:
        return ""
    try:
        done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""
