"""Lets a torchvision that was built for CUDA be imported beside a torch that was not.

Its compiled library does not load there, and its Python part then fails on operators that the library would have
declared. This declares them, at the moment in which torchvision is looked for. `torchvision_on_cpu.pth` imports this
module when Python starts.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_DECLARED: list[Any] = []  # a library's declarations end with it


class Watcher(MetaPathFinder):
    """Finds nothing; sees torchvision being asked for."""

    def find_spec(self, name: str, _path: Any = None, _target: ModuleType | None = None) -> None:
        if name == "torchvision" and not _DECLARED:
            import torch

            if torch.version.cuda is None:
                library = torch.library.Library("torchvision", "FRAGMENT")
                for schema in SCHEMAS:
                    library.define(schema)
                _DECLARED.append(library)


sys.meta_path.insert(0, Watcher())
