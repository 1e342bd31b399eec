"""vLLM's worker for a CPU, with weights that can be updated and summed up.

After loading, vLLM packs weights for its CPU kernels and throws the originals away: an update would have nothing to
write to. Here layers keep them, and torch multiplies; slower, on machines that nobody trains on.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers import utils
from vllm.v1.worker.cpu_worker import CPUWorker


class PlainWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Named by the engine argument `worker_cls`, so it is alone in its process, or in its actor's."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        utils.dispatch_cpu_unquantized_gemm = keep_plain
        super().load_model(*args, **kwargs)


def keep_plain(layer: Any, remove_weight: bool) -> None:
    """In place of the function that packs `layer.weight`."""
    layer.cpu_linear = torch.nn.functional.linear
