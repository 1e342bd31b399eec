"""A Ray program whose worker has the debugger from its job alone, as on a Ray that devkit did not start."""

import sys

import ray


@ray.remote
def whose():
    where = sys.modules["devkit_inworker"].__file__
    return where  # @here


ray.init(logging_level="ERROR", log_to_driver=False, runtime_env={"env_vars": {"DEVKIT_IN_CLUSTER": ""}})
print("loaded from", ray.get(whose.remote()), flush=True)
