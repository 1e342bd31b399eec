"""Rules about what is installed where, and about variables that differ between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.doctor.records import Finding, Severity
from devkit.doctor.scene import Scene, names, told

ESSENTIAL = ("ray", "torch", "transformers")
ENGINES = ("sglang", "vllm")
COMPARED = (
    *ESSENTIAL,
    *ENGINES,
    "verl",
    "debugpy",
    "flash-attn",
    "flashinfer-python",
    "numpy",
    "safetensors",
    "tensordict",
)
# What has to be the same everywhere; those of devices and folders may differ.
SAME = (
    *("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM", "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
    *("NCCL_ALGO", "NCCL_PROTO", "HF_HUB_OFFLINE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "MASTER_ADDR", "MASTER_PORT"),
)


def check(scene: Scene) -> Iterator[Finding]:
    yield from _python(scene)
    for package in COMPARED:
        yield from _compared(scene, package)
    yield from _absent(scene)
    yield from _variables(scene)


def _python(scene: Scene) -> Iterator[Finding]:
    found = scene.by_value(lambda facts: facts.software.python)
    if len(found) > 1:
        minors = {version.rpartition(".")[0] for version in found}
        severity: Severity | None = None if len(minors) > 1 else "warning"
        why = (
            "functions and classes sent between nodes are pickled bytecode"
            if severity is None
            else ("small differences in the standard library show up on some ranks only")
        )
        what = f"Python differs between nodes: {told(found)}"
        yield Finding(
            "python-differs", _odd(found), what, why, "install the same Python on each node", (told(found),), severity
        )


def _compared(scene: Scene, package: str) -> Iterator[Finding]:
    found = scene.by_value(lambda facts: facts.software.packages.get(package, ""))
    missing = found.pop("", ())
    if found and missing:
        have = names(name for where in found.values() for name in where)
        version = next(iter(found))
        yield Finding(
            "package-missing",
            missing,
            f"{package} is missing on {names(missing)}",
            _why_missing(package),
            f"on that node: {_python_of(scene, missing[0])} -m pip install {package}=={version.partition('+')[0]}",
            (f"{told(found)}; {have} can import it, {names(missing)} cannot",),
            "error" if package in ESSENTIAL or _is_wanted(scene, package) else None,
        )
    if len(found) > 1:
        yield Finding(
            "version-differs",
            _odd(found),
            f"{package} differs between nodes: {told(found)}",
            "ranks compute different things, or cannot talk to each other",
            f"on each node: python -m pip install {package}=={next(iter(found)).partition('+')[0]}",
            (told(found),),
            "error" if package in ("ray", "torch") else None,
        )


def _why_missing(package: str) -> str:
    if package == "debugpy":
        return "Ray's own VS Code extension can't attach to a worker there; devkit does without it"
    return "a rank placed there fails at its first import"


def _absent(scene: Scene) -> Iterator[Finding]:
    everywhere = tuple(name for name, _ in scene.seen)
    if not everywhere:
        return
    wanted = [*ESSENTIAL, "debugpy", *(engine for engine in ENGINES if _is_wanted(scene, engine))]
    for package in wanted:
        if not any(facts.software.packages.get(package) for _, facts in scene.seen):
            by = f"{package} is not installed on {names(everywhere)}"
            why = _why_missing(package) if package not in ENGINES else "the command's rollout needs it"
            fix = f"{_python_of(scene, everywhere[0])} -m pip install {package}"
            evidence = f"no metadata of {package} below {_python_of(scene, everywhere[0])}"
            severity: Severity | None = "note" if package == "debugpy" else None
            yield Finding("package-absent", everywhere, by, why, fix, (evidence,), severity)


def _is_wanted(scene: Scene, package: str) -> bool:
    return any(demand.engine == package for demand in scene.demands)


def _python_of(scene: Scene, name: str) -> str:
    return next((facts.software.executable for node, facts in scene.seen if node == name), "") or "python"


def _variables(scene: Scene) -> Iterator[Finding]:
    for variable in SAME:
        found = scene.by_value(lambda facts, variable=variable: facts.environment.get(variable, ""))  # type: ignore[misc]
        if len(found) > 1:
            yield Finding(
                "environment-differs",
                _odd(found),
                f"{variable} differs between nodes: {told(found, 'not set')}",
                "ranks on different nodes behave differently, or wait for each other forever",
                f"set {variable} to the same value before `ray start` on each node, or in the job's runtime_env",
                (told(found, "not set"),),
            )


def _odd(found: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The nodes that are not like most of them."""
    most = max(found, key=lambda value: len(found[value]))
    return tuple(name for value, where in found.items() if value != most for name in where)
