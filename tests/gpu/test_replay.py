"""A step that ran on CUDA is replayed on the CPU, and its memory is looked at. Needs a GPU; CI has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.test_cuda import FP32, inputs, run  # noqa: F401 - a fixture
from trainer import replay
from trainer.findings import STAGES, table

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.timeout(500),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_gpu_saw_comes_out_the_same_on_a_cpu(inputs: dict[str, str], tmp_path: Path, precision: str) -> None:  # noqa: F811
    changes = ("trainer.total_training_steps=3", f"trainer.capsule_dir={tmp_path / 'capsules'}", "trainer.save_freq=-1")
    run(inputs, tmp_path / "run", *changes, *(FP32 if precision == "fp32" else ()))
    found = list(replay.replay(tmp_path / "capsules/step_3.capsule"))
    print("\n".join(table(found)))
    assert {each.stage for each in found} == set(STAGES)
    assert not [each for each in found if each.verdict == "OFF"], "\n".join(table(found))
    # another device may draw other tokens; all else is compared
    assert {each.stage for each in found if each.verdict == "skipped"} == {"rollout"}


def test_memory_snapshots_and_traces(inputs: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    short = ("trainer.total_training_steps=2", "trainer.save_freq=-1", "global_profiler.steps=[2]")
    for tool, file in (("torch_memory", "step_2.rank_0.memory.pickle"), ("torch", "step_2.rank_0.trace.json.gz")):
        chosen = (f"global_profiler.tool={tool}", f"global_profiler.save_path={tmp_path / tool}")
        run(inputs, tmp_path / f"run-{tool}", *short, *chosen)
        assert (tmp_path / tool / file).stat().st_size > 1000
