"""A driver that calls `breakpoint()`."""

import ray

ray.init(logging_level="ERROR", log_to_driver=False)
breakpoint()  # @here
print("went on", flush=True)
