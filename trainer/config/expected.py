"""What a run will choose for the keys that are `null`, as far as its command and this machine tell."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.config.chosen import CPU, NO_SIZES, Choice, Device, choose
from trainer.config.fits import GIB
from trainer.config.problems import ConfigErrors
from trainer.config.schema import Config
from trainer.config.shape import Shape, shape_in
from trainer.teams import ranks_of

ASSUMED = 80 * GIB  # of a GPU, where none is at hand
CONTEXTS = 2 * GIB  # what CUDA takes of a GPU in the processes of a rank and its engine
LOOK_S = 10


@dataclass(frozen=True)
class Expected:
    """The choices, and on which devices they hold."""

    choices: tuple[Choice, ...]
    where: str

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Role, plan and reason of each."""
        for choice in self.choices:
            if choice.why == NO_SIZES:
                yield choice.role, "chosen when the model is loaded", f"its sizes are not known here; {self.where}"
                continue
            given = f"given: {', '.join(choice.given)}; " if choice.given else ""
            yield choice.role, str(choice.plan), f"{given}{choice.why}; {self.where}"


def expected(config: Config) -> Expected:
    """Nothing where the batches do not come out even: that is an error of its own."""
    device, where = _device_here(config)
    shapes = {"actor": _shape_here(config.actor_rollout_ref.model.path)}
    if config.uses_critic:
        shapes["critic"] = _shape_here(config.critic.model.path)
    try:
        return Expected(choose(config, shapes, device), where)
    except ConfigErrors:
        return Expected((), where)


def _shape_here(path: str) -> Shape | None:
    return shape_in(Path(path).expanduser()) if path else None


def _device_here(config: Config) -> tuple[Device, str]:
    if config.trainer.device == "cpu":
        return CPU, "trainer.device is cpu"
    found = _smallest_gpu()
    total = found or ASSUMED
    device = Device(cuda=True, compiles=True, free=max(0, total - CONTEXTS - _engine(config, total)), total=total)
    size = f"GPUs of {total / GIB:.0f} GiB"
    if found:
        return device, f"on {size}, as here"
    if config.trainer.device == "auto":
        return device, f"on {size}, none is here; on a CPU nothing is compiled and all recomputed"
    return device, f"on {size}, none is here"


def _engine(config: Config, total: int) -> int:
    """Bytes that an engine keeps while models are trained on its GPUs."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "hf" or set(ranks_of(config, "actor")).isdisjoint(ranks_of(config, "rollout")):
        return 0
    return 0 if rollout.free_cache_engine else int(rollout.gpu_memory_utilization * total)


def _smallest_gpu() -> int | None:
    """Its memory in bytes, by the driver's own tool; None without one."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=LOOK_S, check=True).stdout
        return min(int(line) for line in said.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
