"""Hooks that a program names as "module.function"."""

import os


def in_each_worker():
    os.environ["OF_HOOK"] = "a name"


def of_environment(runtime_env):
    """What the user's RAY_RUNTIME_ENV_HOOK is."""
    environment = dict(runtime_env or {})
    return {**environment, "env_vars": {**environment.get("env_vars", {}), "OF_ENVIRONMENT_HOOK": "it ran"}}
