"""Weights from the trainer's shards into SGLang: proved, unproved, and a plain copy of the same bytes, in one run.

    python benchmarks/weight_sync.py [--tiny] [--runs 5] [--memory 0.4]

A 7B-shaped Qwen2 with random weights in bf16, trainer (FSDP2) and engine on the same GPU; `--tiny` takes a model of a
few layers, also on a CPU. The copy is `Tensor.copy_` of the same bytes on the same device, through a buffer of a
bucket's size: the least that any way through shared memory could take. Turn and turn about; medians, and the range.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from trainer import rendezvous
from trainer.config.schema import FsdpConfig
from trainer.learner import models
from trainer.learner.fsdp import Model
from trainer.learner.models import Source, empty_causal_lm, read_config
from trainer.learner.offload import local
from trainer.rollout import memory
from trainer.rollout.push import Push
from trainer.rollout.remote import Limits, RemoteEngine
from trainer.rollout.server import EngineSpec

SEVEN_B = {
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
TINY = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1024,
}
REACH_S = 2.0


def learner(folder: str, sizes: dict[str, Any], device: torch.device) -> Model:
    """A model in FSDP2 shards, random and never on disk: only its configuration is."""
    from transformers import Qwen2Config

    Qwen2Config(
        **sizes, tie_word_embeddings=False, max_position_embeddings=4096, architectures=["Qwen2ForCausalLM"]
    ).save_pretrained(folder)
    source = Source(folder, False, 0)
    with torch.device("meta"):
        module = empty_causal_lm(source, read_config(source), torch.bfloat16)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    models._shard(module, FsdpConfig(model_dtype="bf16"), mesh)
    module.to_empty(device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            local(parameter).normal_(0, 0.02)
    return Model(module, device)


def engine_of(folder: str, model: Model, options: argparse.Namespace, device: torch.device) -> RemoteEngine:
    cuda = device.type == "cuda"
    chosen = {"attention_backend": "triton", "sampling_backend": "pytorch"} if cuda else {}
    spec = EngineSpec("sglang", folder, False, "bfloat16", device.type, 1, 0.3, 16, 512, False, False, 1, chosen)
    parameters = sum(parameter.numel() for parameter in model.module.parameters())
    wants = memory.needed(parameters, model.module.config, tokens=512, itemsize=2, tensor_parallel=1)
    allowed = int(options.memory * torch.cuda.mem_get_info(device)[1]) if cuda else 0
    limits = Limits(240.0, 240.0, options.bucket * 2**20, allowed, wants)
    return RemoteEngine(spec, limits, device=device, eos_ids=[1], pad_id=0)


def copy(model: Model, buffer_N: torch.Tensor) -> None:
    """The same bytes through a buffer of a bucket's size, and nothing else."""
    end = 0
    for _, tensor in model.full_tensors():
        raw = tensor.reshape(-1).view(torch.uint8)
        for part in raw.split(len(buffer_N)):
            end = 0 if end + len(part) > len(buffer_N) else end
            buffer_N[end : end + len(part)].copy_(part)
            end += len(part)


def seconds(act: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bucket", type=int, default=512, help="MiB")
    parser.add_argument("--memory", type=float, default=0.4, help="of the GPU, for the engine")
    options = parser.parse_args()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    rendezvous.connect(0, 1, "127.0.0.1", rendezvous.open_store(1, 60), 60)
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as folder:
        ray.init(address="local", include_dashboard=False, _temp_dir=f"{folder}/r", log_to_driver=False)
        model = learner(folder, TINY if options.tiny else SEVEN_B, device)
        measure(model, engine_of(folder, model, options, device), options, device)
        ray.shutdown()
    dist.destroy_process_group()


def measure(model: Model, engine: RemoteEngine, options: argparse.Namespace, device: torch.device) -> None:
    version = 0

    def push(verify: bool) -> None:
        nonlocal version
        version += 1
        update = Push(engine.group, engine.handles, engine.peers, device, engine.limits.bucket_bytes, verify=verify)
        assert update.run(model.full_tensors(), version, torch.bfloat16)

    buffer_N = torch.empty(options.bucket * 2**20, dtype=torch.uint8, device=device)
    ways: dict[str, Callable[[], None]] = {
        "copy of the same bytes": lambda: copy(model, buffer_N),
        "sync without proof": lambda: push(False),
        "sync with proof": lambda: push(True),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(options.runs + 1):  # the first warms up
        for name, act in ways.items():
            took = seconds(act, device)
            if run:
                taken[name].append(took)
    show(taken, sum(parameter.numel() for parameter in model.module.parameters()) * 2, device)


def show(taken: dict[str, list[float]], size: int, device: torch.device) -> None:
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"\n{size / 2**30:.2f} GiB of bf16 on {where}, torch {torch.__version__}\n")
    print("| what | median s | range | GiB/s | of the copy's rate |\n|---|---|---|---|---|")
    medians = {name: statistics.median(times) for name, times in taken.items()}
    floor = next(iter(medians.values()))
    for name, times in taken.items():
        middle = medians[name]
        span = f"{min(times):.3f} to {max(times):.3f}"
        print(f"| {name} | {middle:.3f} | {span} | {size / 2**30 / middle:.1f} | {floor / middle:.1%} |")
    proof = medians["sync with proof"] - medians["sync without proof"]
    print(f"\nthe proof costs {proof:.3f} s; reach: under {REACH_S:g} s for 7B")


if __name__ == "__main__":
    main()
