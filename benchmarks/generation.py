"""Tokens per second that each rollout engine generates, at several numbers of sequences at once.

    python benchmarks/generation.py [--engines hf sglang] [--sequences 64 256 1024] [OPTION=VALUE ...]      (a GPU)
    python benchmarks/generation.py --tiny --engines hf                                                     (a CPU)

A Qwen2 of 17 million random weights in bf16, prompts of 32 tokens, responses of 256 that nothing ends early: so small
a model shows what an engine costs beside the model's own work. `OPTION=VALUE` goes to SGLang or vLLM as
`engine_kwargs` does. Each engine is asked as a run asks it, with `max_num_seqs` at the most sequences of all; medians
of three calls after one that does not count.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: as Ray sets it in a worker

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer.interfaces import Sampling
from trainer.precision import in_precision
from trainer.records import Prompts, Row
from trainer.rollout import memory, replicas
from trainer.rollout.hf import HfEngine
from trainer.rollout.server import ADAPTERS, Draw, EngineSpec, PartSpec, start_engine

Generate = Callable[[int], int]  # of so many prompts; the number of tokens that came back


@dataclass(frozen=True)
class Sizes:
    prompt: int
    response: int
    model: Mapping[str, Any]


FULL = Sizes(32, 256, {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 4096})
TINY = Sizes(4, 8, {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256})


def model_folder(folder: Path, sizes: Sizes, dtype: torch.dtype) -> str:
    heads = sizes.model["hidden_size"] // 64
    config = Qwen2Config(
        **sizes.model, num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=1024
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, **in_precision(dtype)).save_pretrained(folder)
    return str(folder)


def parameters_in(folder: str) -> int:
    with safe_open(f"{folder}/model.safetensors", framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def prompts_of(sizes: Sizes, count: int) -> torch.Tensor:
    dice = torch.Generator().manual_seed(count)
    return torch.randint(4, sizes.model["vocab_size"], (count, sizes.prompt), generator=dice)


def with_hf(folder: str, sizes: Sizes, most: int, device: torch.device, _options: Mapping[str, Any]) -> Generate:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **in_precision(dtype))
    engine = HfEngine(model.to(device), eos_ids=[1], pad_id=0, max_sequences=most)
    sampling = Sampling(sizes.response, temperature=1.0, top_p=1.0, top_k=-1, do_sample=True, ignore_eos=True, seed=0)

    def generate(count: int) -> int:
        ids_BP, zeros_B = prompts_of(sizes, count), torch.zeros(count, dtype=torch.long)
        rows = tuple(Row(index, "made up", "none", "") for index in range(count))
        prompts = Prompts(ids_BP, torch.ones_like(ids_BP), torch.arange(count), zeros_B, rows)
        return int(engine.generate(prompts, sampling).mask_BT.sum())

    return generate


def with_server(
    name: str, folder: str, sizes: Sizes, most: int, device: torch.device, options: Mapping[str, Any]
) -> Generate:
    """SGLang or vLLM in this process, by the adapter that a run has in an actor."""
    spec = EngineSpec(
        name=name,
        model=folder,
        trust_remote_code=False,
        dtype="bfloat16" if device.type == "cuda" else "float32",
        device=device.type,
        tensor_parallel=1,
        memory_share=0.5,
        max_sequences=most,
        max_tokens=512,
        cuda_graphs=True,
        releases_memory=False,
        seed=0,
        options={option: value for option, value in options.items() if option != "replicas"},
    )
    with socket.create_server(("127.0.0.1", 0)) as lent:
        port = lent.getsockname()[1]
    part = PartSpec(engine=0, node_rank=0, nodes=1, gpus="0", address=f"127.0.0.1:{port}")
    structure = AutoConfig.from_pretrained(folder)
    itemsize = 2 if device.type == "cuda" else 4
    needed = memory.needed(
        parameters_in(folder), structure, tokens=spec.max_tokens, itemsize=itemsize, tensor_parallel=1
    )
    total = torch.cuda.mem_get_info()[1] if device.type == "cuda" else 0
    asked = int(options["replicas"]) if "replicas" in options else None
    spec = replicas.suited(spec, asked, needed, int(spec.memory_share * total), len(os.sched_getaffinity(0)))
    print(f"{name}: {spec.replicas} of it" + (", as for a small model" if spec.small else ""))
    adapter = start_engine(spec, part)
    draw = Draw(max_new_tokens=sizes.response, temperature=1.0, top_p=1.0, top_k=-1, stop_ids=(), seed=0)

    def generate(count: int) -> int:
        answers = (answer for some in adapter.generate(prompts_of(sizes, count).tolist(), draw) for answer in some)
        return sum(len(answer.token_ids) for answer in answers)

    return generate


def rates(generate: Generate, counts: Sequence[int], runs: int) -> Iterator[tuple[int, list[float]]]:
    """Tokens per second of each call, by the number of sequences."""
    for count in counts:
        taken = []
        for run in range(runs + 1):
            started = time.perf_counter()
            tokens = generate(count)
            if run:
                taken.append(tokens / (time.perf_counter() - started))
        yield count, taken


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    parser.add_argument("--engines", nargs="+", default=["hf", "sglang"], choices=["hf", *ADAPTERS])
    parser.add_argument("--sequences", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a smaller model, on a CPU")
    args = parser.parse_intermixed_args(words)
    sizes, device = (TINY, torch.device("cpu")) if args.tiny else (FULL, torch.device("cuda"))
    options = dict(option.split("=", 1) for option in args.options)
    medians: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = model_folder(Path(temporary), sizes, torch.bfloat16)
        card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        print(f"prompts of {sizes.prompt} tokens, responses of {sizes.response}, torch {torch.__version__}, {card}")
        for name in args.engines:
            most = max(args.sequences)
            started = time.perf_counter()
            if name == "hf":
                generate = with_hf(folder, sizes, most, device, options)
            else:
                generate = with_server(name, folder, sizes, most, device, options)
            print(f"{name}: up in {time.perf_counter() - started:.1f} s", flush=True)
            for count, taken in rates(generate, args.sequences, args.runs):
                medians[name, count] = statistics.median(taken)
                spread = f"({min(taken):,.0f} to {max(taken):,.0f})"
                print(f"{name:8} {count:6} at once {medians[name, count]:12,.0f} tokens/s {spread}", flush=True)
            del generate
            gc.collect()
    for (name, count), rate in medians.items():
        if name != "hf" and ("hf", count) in medians:
            print(f"{count} at once: {name} has {rate / medians['hf', count]:.2f} times the rate of hf")


if __name__ == "__main__":
    main(sys.argv[1:])
