"""Waits for a placement group. asks.py BUNDLES"""

import sys

import ray

ray.init(logging_level="ERROR")
group = ray.util.placement_group(eval(sys.argv[1]))
print("waits", flush=True)
ray.get(group.ready())
