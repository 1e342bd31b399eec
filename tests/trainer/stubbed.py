"""The stub that stands for SGLang (`stub_engine`), for processes that tests start."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.trainer.runs import ROOT
from trainer.rollout.server import Draw, EngineSpec, PartSpec

STUB = Path(__file__).parent / "stub_engine"
DRAW = Draw(max_new_tokens=4, temperature=0.7, top_p=0.9, top_k=5, stop_ids=(1, 2), seed=0)
PART = PartSpec(engine=3, node_rank=0, nodes=1, gpus="0", address="127.0.0.1:5000")


def stub_in(folder: Path, version: str = "0.5.23") -> dict[str, str]:
    """The environment of processes that find the stub installed in this version; `folder` tells it what to do."""
    metadata = folder / "sglang.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join([str(STUB), str(folder), str(ROOT)]), "STUB_SGLANG": str(folder)}


def spec_of(model: str, **changes: Any) -> EngineSpec:
    """Of SGLang on a CPU, with these changes."""
    spec = EngineSpec(
        name="sglang",
        model=model,
        trust_remote_code=False,
        dtype="float32",
        device="cpu",
        tensor_parallel=1,
        memory_share=0.3,
        max_sequences=8,
        max_tokens=64,
        cuda_graphs=False,
        releases_memory=True,
        seed=7,
    )
    return replace(spec, **changes)


def gpu_spec(name: str) -> EngineSpec:
    """Of this engine on a GPU, with half of its memory."""
    return spec_of("/m", name=name, device="cuda", dtype="bfloat16", memory_share=0.5, cuda_graphs=True, max_tokens=512)
