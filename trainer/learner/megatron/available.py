"""Whether megatron-core is here, in a version that this trainer knows."""

from __future__ import annotations

from importlib import metadata

from trainer.errors import ConfigError

SUPPORTED = (0, 16)  # major and minor: Megatron-core changes its interfaces from one minor version to the next


def installed() -> str | None:
    """The version of megatron-core, None if there is none."""
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return None


def require_megatron() -> None:
    """Raises ConfigError if megatron-core is missing or of another version."""
    wanted = ".".join(map(str, SUPPORTED))
    hint = f"pip install 'ray-devkit[megatron]' (megatron-core {wanted}), or set strategy=fsdp"
    found = installed()
    if found is None:
        raise ConfigError("strategy=megatron needs megatron-core, which is not installed", hint=hint)
    if tuple(int(part) for part in found.split(".")[:2]) != SUPPORTED:
        raise ConfigError(f"strategy=megatron needs megatron-core {wanted}, and {found} is installed", hint=hint)
