"""How much memory a GPU has, by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

# In GB as their makers count them; the first that is found in a script is taken.
_MEMORY = {
    "b200": 180,
    "h200": 141,
    "h100": 80,
    "h800": 80,
    "h20": 96,
    "a100": 80,
    "a800": 80,
    "mi250": 64,
    "mi300": 192,
    "mi300x": 192,
    "mi325x": 256,
    "l40s": 48,
    "l40": 48,
    "a6000": 48,
    "v100": 32,
    "a10g": 24,
    "l4": 24,
    "t4": 16,
}
_NAME = re.compile(rf"(?<![a-z0-9])({'|'.join(sorted(_MEMORY, key=len, reverse=True))})(?![a-z0-9])")
_USUAL = 80


@dataclass(frozen=True)
class Gpu:
    """Memory in GB, and how that is known."""

    memory: float
    origin: str


def usual_gpu() -> Gpu:
    return Gpu(_USUAL, f"{_USUAL} GB assumed; set it with --gpu")


def gpu_named(name: str) -> Gpu | None:
    """`h100`, `80` or `80GB`.

    >>> gpu_named("H200").memory, gpu_named("24GB").memory, gpu_named("abacus")
    (141, 24.0, None)
    """
    plain = name.strip().lower().removesuffix("gb").strip()
    if plain in _MEMORY:
        return Gpu(_MEMORY[plain], f"{plain.upper()}")
    if re.fullmatch(r"\d{1,4}(\.\d+)?", plain) and float(plain):
        return Gpu(float(plain), "as asked")
    return None


def gpu_named_in(text: str) -> Gpu | None:
    """The GPU that a script names, if it names one kind only."""
    names = set(_NAME.findall(text.lower()))
    memory = {_MEMORY[name] for name in names}
    if len(memory) != 1:
        return None
    return Gpu(memory.pop(), f"{sorted(names)[0].upper()}, named in the script")
