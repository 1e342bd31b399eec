"""Rules about what gets in the way of installing an engine, flash-attn or Transformer Engine."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.doctor.onnode.facts import NodeFacts
from devkit.doctor.records import Finding, Severity
from devkit.doctor.rules.check_versions import ENGINES
from devkit.doctor.scene import Scene, names

PIP_LEAST = (23, 1)
GCC_LEAST = (8, 1)
_QUOTES = "\u201c\u201d\u2018\u2019"


def check(scene: Scene) -> Iterator[Finding]:
    for name, facts in scene.seen:
        wanting = [demand.engine for demand in scene.demands if demand.engine in ENGINES]
        lacking = [engine for engine in dict.fromkeys(wanting) if engine not in facts.software.packages]
        if facts.devices.gpus or wanting:
            yield from _pip(name, facts, lacking)
            yield from _cargo(name, facts, lacking)
        if facts.devices.gpus:
            yield from _flash_attn(name, facts)
            yield from _nvcc(name, facts)
            yield from _gcc(name, facts)
        yield from _cuda_home(name, facts)
        yield from _cudnn(name, facts)
    yield from _broken(scene)


def _version(text: str) -> tuple[int, ...]:
    """
    >>> _version("22.0.2"), _version("")
    ((22, 0, 2), ())
    """
    found = []
    for part in text.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def _pip(name: str, facts: NodeFacts, lacking: list[str]) -> Iterator[Finding]:
    version = facts.software.packages.get("pip", "")
    if _version(version) and _version(version) < PIP_LEAST:
        severity: Severity | None = "warning" if lacking else None
        yield Finding(
            "old-pip",
            (name,),
            f"pip on {name} is {version}",
            "it tries to resolve the dependencies of sglang and verl for hours and then fails",
            f"on that node: {facts.software.executable or 'python'} -m pip install --upgrade pip",
            (f"pip {version} of {facts.software.executable or 'python'}",),
            severity,
        )


def _cargo(name: str, facts: NodeFacts, lacking: list[str]) -> Iterator[Finding]:
    if lacking and not facts.tools.cargo:
        yield Finding(
            "no-cargo",
            (name,),
            f"cargo is missing on {name}, and {names(lacking)} is not installed yet",
            "a dependency without a wheel for this Python is built with Rust: 'Cargo ... is not installed'",
            "on that node: upgrade pip first (it finds more wheels); otherwise apt-get install cargo, or rustup",
            (f"cargo is not on PATH; {names(lacking)} is not installed",),
        )


def _flash_attn(name: str, facts: NodeFacts) -> Iterator[Finding]:
    packages = facts.software.packages
    if facts.devices.kind == "nvidia" and "torch" in packages and "flash-attn" not in packages:
        yield Finding(
            "no-flash-attn",
            (name,),
            f"flash-attn is not installed on {name}",
            "verl's use_remove_padding and its attention need it; this project's trainer does not",
            "on that node: pip install wheel packaging; pip install flash-attn --no-build-isolation --no-deps",
            (f"no metadata of flash-attn beside torch {packages['torch']}",),
        )


def _broken(scene: Scene) -> Iterator[Finding]:
    for collective in scene.collectives:
        for key, error in collective.import_errors.items():
            package, _, node = key.partition(" on ")
            name = scene.name(node)
            yield Finding(
                "flash-attn-broken",
                (name,),
                f"{package} can't be imported on {name}",
                "it was compiled for another torch; models that use it fail there",
                f"on that node: pip uninstall -y {package}; pip install {package} --no-build-isolation --no-cache-dir",
                (error,),
            )


def _cuda_home(name: str, facts: NodeFacts) -> Iterator[Finding]:
    value = facts.environment.get("CUDA_HOME", "")
    why = "flash-attn and Transformer Engine are compiled with it"
    if any(quote in value for quote in _QUOTES):
        what = f"CUDA_HOME on {name} has typographic quotes in it"
        fix = f"export CUDA_HOME={value.strip(_QUOTES)}"
        yield Finding("cuda-home", (name,), what, why, fix, (f"CUDA_HOME={value}",))
    elif value and not facts.tools.cuda_home_nvcc:
        what = f"CUDA_HOME on {name} has no nvcc: {value}"
        fix = "on that node: ls -d /usr/local/cuda*; export CUDA_HOME and LD_LIBRARY_PATH for torch's CUDA"
        yield Finding("cuda-home", (name,), what, why, fix, (f"no file {value}/bin/nvcc",))


def _nvcc(name: str, facts: NodeFacts) -> Iterator[Finding]:
    nvcc, built = facts.tools.nvcc, facts.software.torch_cuda
    if nvcc and built and _version(nvcc)[:1] != _version(built)[:1]:
        what = f"nvcc on {name} is from CUDA {nvcc}, but torch is built for {built}"
        why = "flash-attn refuses to build: 'The detected CUDA version mismatches the version'"
        fix = f"on that node: export CUDA_HOME=/usr/local/cuda-{built} LD_LIBRARY_PATH=/usr/local/cuda-{built}/lib64"
        evidence = (f"nvcc --version: {nvcc}", f"torch {facts.software.packages.get('torch', '')}: CUDA {built}")
        yield Finding("nvcc-differs", (name,), what, why, fix, evidence)


def _cudnn(name: str, facts: NodeFacts) -> Iterator[Finding]:
    value = facts.environment.get("CUDNN_PATH", "")
    if value and not facts.tools.cudnn_header:
        what = f"CUDNN_PATH on {name} has no include/cudnn.h: {value}"
        why = "Transformer Engine can't be built: 'Could not find CUDNN_INCLUDE_DIR'"
        fix = "on that node: find / -name cudnn.h; CUDNN_PATH is the parent of its include folder"
        yield Finding("cudnn-path", (name,), what, why, fix, (f"no file {value}/include/cudnn.h",))


def _gcc(name: str, facts: NodeFacts) -> Iterator[Finding]:
    version = facts.tools.gcc
    if _version(version) and _version(version) < GCC_LEAST and "transformer-engine" not in facts.software.packages:
        what = f"gcc on {name} is {version}"
        why = "Transformer Engine needs C++17's <filesystem>, which GCC has since 8.1"
        yield Finding(
            "old-gcc",
            (name,),
            what,
            why,
            "on that node: apt-get install gcc-13 g++-13",
            (f"gcc -dumpfullversion: {version}",),
        )
