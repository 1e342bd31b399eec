"""What vLLM's workers get from us, by `worker_extension_cls`: a call that takes weights out of a bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainer.rollout.inside import receive, write_report
from trainer.rollout.server import REPORT_FOLDER


class TakesWeights:
    """Mixed into vLLM's worker class, in the process of each tensor-parallel rank."""

    def take_weights(self: Any, text: str) -> None:
        """Does what the message `text` of `wire` says; the report is in the folder when it returns."""
        from vllm.config import set_current_vllm_config
        from vllm.distributed.parallel_state import get_tp_group

        model = self.get_model()
        with set_current_vllm_config(self.vllm_config):  # weight loaders of some layers ask for it
            report = receive(text, get_tp_group().rank_in_group, model, model.load_weights)
        write_report(Path(os.environ[REPORT_FOLDER]), report)
