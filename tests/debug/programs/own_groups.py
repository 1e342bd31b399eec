"""A placement group holds all CPUs while another one is waited for."""

from __future__ import annotations

import sys

import ray
from ray.util.placement_group import placement_group

ray.init(num_cpus=2, include_dashboard=False if sys.argv[1:] == ["alone"] else None)
first = placement_group([{"CPU": 1}] * 2, name="first")
ray.get(first.ready())
second = placement_group([{"CPU": 1}], name="second")
ray.get(second.ready())  # @waits
