"""A driver that ends with an exit code of its own, when it is allowed to."""

import sys
import time
from pathlib import Path

import ray

ray.init()
print("WAITS", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.1)
sys.exit(3)
