"""What offload and compiled layers cost an actor update, and what memory offload frees, beside the update without them.

    python benchmarks/offload.py [--layers 14] [--sequences 8] [--tokens 1024] [--rounds 5] [--tiny]

One rank, a Qwen2-shaped model with random weights (1.5B-shaped with `--layers 28`), bf16 computation with fp32 master
weights and gradient checkpointing. Each kind in turn: seconds of an update of two mini-batches of two passes, the
device's memory between phases and at its peak, and for offload the share of the bandwidth of pinned memory, measured
in the same run by one plain copy. `--tiny` runs the same lines on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen2Config

from trainer import ppo
from trainer.config.schema import ActorConfig, OptimConfig, TrainedFsdpConfig
from trainer.interfaces import Told
from trainer.learner.fsdp import Trained
from trainer.learner.models import Source, sharded
from trainer.memory import GIB, measured
from trainer.records import Experience, MiniBatch, Prompts, Rollout, Row, Totals, TrainBatch

KINDS = {
    "plain": TrainedFsdpConfig(),
    "param_offload": TrainedFsdpConfig(param_offload=True),
    "optimizer_offload": TrainedFsdpConfig(optimizer_offload=True),
    "grad_offload": TrainedFsdpConfig(grad_offload=True),
    "all offloaded": TrainedFsdpConfig(param_offload=True, optimizer_offload=True, grad_offload=True),
    "compiled layers": TrainedFsdpConfig(use_torch_compile=True),
}


def write_model(folder: str, layers: int, tiny: bool) -> None:
    """Random weights in the shape of Qwen2.5-1.5B, with `layers` of its 28 layers."""
    width, inner, heads, groups, vocabulary = (64, 128, 4, 2, 512) if tiny else (1536, 8960, 12, 2, 151936)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def batch_of(sequences: int, tokens: int) -> TrainBatch:
    """Half of the tokens prompt, half response."""
    shape = (sequences, tokens // 2)
    ids, ones, zeros = torch.randint(3, 500, shape), torch.ones(shape).long(), torch.zeros(shape)
    rows = tuple(Row(i, "made up", "none", "") for i in range(sequences))
    prompts = Prompts(ids, ones, torch.arange(sequences), torch.zeros(sequences).long(), rows)
    old = torch.full(shape, -10.0)
    rollout = Rollout(prompts, ids, ones, old)
    return TrainBatch(Experience(rollout, zeros, old, None, None), zeros, torch.randn(shape), zeros)


def update_of(model: Trained, batch: TrainBatch) -> Callable[[], object]:
    passes = torch.arange(len(batch)).split(max(1, len(batch) // 2))
    share = MiniBatch(batch, ppo.totals_of(batch.experience.rollout.mask_BT), passes)

    def loss(rows: TrainBatch, totals: Totals) -> tuple[torch.Tensor, Told]:
        return ppo.actor_loss(model, rows, totals, ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2))

    def update() -> None:
        with model.training():
            ppo.update(model, (share, share), loss)

    return update


def synchronised(device: torch.device, call: Callable[[], object]) -> float:
    """Seconds until the device is done."""
    finish(device)
    began = time.perf_counter()
    call()
    finish(device)
    return time.perf_counter() - began


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device) -> float:
    """GiB/s of plain copies to the device from pinned memory and back, the slower of both."""
    size = GIB if device.type == "cuda" else GIB // 16
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(size, dtype=torch.uint8, device=device)
    ways = (lambda: there.copy_(host, non_blocking=True), lambda: host.copy_(there, non_blocking=True))
    return min(size / GIB / min(synchronised(device, way) for _ in range(4)) for way in ways)


def run(kind: str, folder: str, options: argparse.Namespace, mesh: Any, device: torch.device) -> dict[str, float]:
    """Median seconds of an update after two that warm up, GiB between phases and at the peak, seconds of moving."""
    config = KINDS[kind]
    module = sharded("causal_lm", Source(folder, False, 0), config, mesh, checkpointing=True)
    model = Trained(module, device, OptimConfig(), grad_clip=1.0, total_steps=100, memory=config)
    update = update_of(model, batch_of(options.sequences, options.tokens))
    for _ in range(2):
        update()
    with measured(device) as gauge:
        seconds = statistics.median(synchronised(device, update) for _ in range(options.rounds))
    found = {"seconds": seconds, "peak": gauge.reading.allocated / GIB}
    if device.type == "cuda":
        found["between"] = torch.cuda.memory_allocated(device) / GIB
    moved = (model.weights.host_bytes + model.moments.host_bytes) / GIB
    if moved:

        def there_and_back() -> None:
            with model.all_at_hand(changes=True):
                pass

        found["moved"] = moved
        found["moving"] = min(synchronised(device, there_and_back) for _ in range(options.rounds))
    return found


def describe(kind: str, found: dict[str, float], plain: float, speed: float) -> str:
    seconds = found["seconds"]
    line = f"{kind:<20}{seconds:8.3f} s, {seconds / plain:5.2f} x plain, peak {found['peak']:6.2f} GiB"
    if "between" in found:
        line += f", between phases {found['between']:6.2f} GiB"
    if "moving" in found:
        share = 2 * found["moved"] / found["moving"] / speed
        line += f"; {found['moved']:.2f} GiB there and back in {found['moving']:.3f} s, {share:.0%} of plain copies"
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a tiny model; without CUDA, on the CPU")
    options = parser.parse_args()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    mesh, speed = init_device_mesh(device.type, (1,)), bandwidth(device)
    print(
        f"{options.layers} layers, {options.sequences} x {options.tokens} tokens; plain pinned copies {speed:.1f} GiB/s"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, options.layers, options.tiny)
        plain = 0.0
        for kind in KINDS:
            found = run(kind, folder, options, mesh, device)
            plain = plain or found["seconds"]
            line = describe(kind, found, plain, speed)
            print(line, flush=True)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
