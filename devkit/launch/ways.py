"""The ways of `devkit debug-cluster`: on this machine, through ssh, or as one of many machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from devkit.debug.ray_start import ClusterOptions
from devkit.errors import UsageError


def main(
    options: ClusterOptions,
    given: Mapping[str, Any],
    *,
    hosts: str | None = None,
    python: str | None = None,
    from_env: bool = False,
    block: bool = False,
) -> int:
    """Takes the way that was asked for. Options that are None in `given` are as that way has them.

    Raises UsageError for two ways at once.
    """
    if hosts is not None and from_env:
        raise UsageError("--hosts and --from-env cannot be combined", hint="one command here, or one on every machine")
    if python is not None and hosts is None:
        raise UsageError("--python is for --hosts", hint="on this machine it is the Python that devkit is installed in")
    if block and hosts is not None:
        raise UsageError(
            "--block and --hosts cannot be combined",
            hint="remove --block: the nodes run on other machines, and devkit debug-cluster stop stops them",
        )
    chosen = {name: value for name, value in given.items() if value is not None}
    if hosts is not None:
        from devkit.launch import remote

        return remote.up_main(hosts, python, replace(options, **{**remote.DEFAULTS, **chosen}))
    if from_env:
        from devkit.launch import env

        return env.main(replace(options, **{**env.DEFAULTS, **chosen}), block=block)
    from devkit.debug.cluster_view import start_main

    return start_main(replace(options, **chosen), block=block)
