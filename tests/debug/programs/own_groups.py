"""A placement group holds all CPUs while another one is waited for."""

from __future__ import annotations

import ray
from ray.util.placement_group import placement_group

ray.init(num_cpus=2)
first = placement_group([{"CPU": 1}] * 2, name="first")
ray.get(first.ready())
second = placement_group([{"CPU": 1}], name="second")
ray.get(second.ready())  # @waits
