"""What is known of a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A torch module that an actor keeps."""

    kind: str  # its class
    parameters: Mapping[str, int]  # {"layers.*.weight [16, 16]": how many}, as `named_parameters` gives them
    tied: Mapping[str, str]  # {"lm_head.weight": "embed.weight"}
