"""The entry point of a project that Ray uploads: its modules are imported by the workers, from the copy."""

import sys

import ray
from steps.scale import Scaler

if __name__ == "__main__":
    ray.init(runtime_env={"working_dir": sys.argv[1]} if sys.argv[1:] else None)
    scaler = ray.remote(Scaler).remote(factor=3)
    print("scaled", ray.get([scaler.scale.remote(number) for number in (1, 2)]), flush=True)
