"""What an update takes of a GPU: the formula of `trainer/config/fits.py` beside the peak that is measured.

    python benchmarks/fitting.py qwen2|llama|qwen3                                (one GPU, at most four minutes)
    python benchmarks/fitting.py qwen2 --tiny                  (the same lines on a CPU, which measures no memory)

One architecture with random weights, kept in float32 and computed in bf16, layers compiled and parameters whole. Two
depths, two lengths of a pass each, and of these the four ways to recompute; one update of two passes; and one that
shards parameters again after each layer. A step is `ppo.update` over the learner, as a run takes it; the peak is of the
second and third of three, since the first makes the optimizer's state. Last, what a layer keeps for its gradient, in
bytes a token: by formula, and as measured between two depths.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: as Ray sets it in a worker

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.actor_update import Sizes, fresh, made_up, mini_batch, our_step, synchronize
from trainer.config.fits import BUDGETS, FULL, GIB, NONE, SELECTIVE, Load, Plan, activations, kept, peak
from trainer.config.schema import FsdpConfig, OptimConfig
from trainer.config.shape import Shape, shape_of
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Trained
from trainer.learner.models import Source, sharded
from trainer.rows import take

# Of models that there are, with fewer layers; each depth is a size of its own.
LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN2 = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
QWEN3 = {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen2": (Qwen2Config, QWEN2 | {"vocab_size": 151936}),
    "llama": (LlamaConfig, LLAMA | {"vocab_size": 128256}),
    "qwen3": (Qwen3Config, QWEN3 | {"vocab_size": 151936, "head_dim": 128}),
}
DEPTHS, ROWS, PROMPT, RESPONSE = (8, 16), (4, 8), 512, 1536
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 512}
LEVELS: tuple[tuple[str, float | None], ...] = ((NONE, None), *((SELECTIVE, share) for share in BUDGETS), (FULL, None))
NEAR = 0.1


@dataclasses.dataclass(frozen=True)
class Case:
    depth: int
    rows: int  # of a pass
    passes: int
    plan: Plan


@dataclasses.dataclass(frozen=True)
class Measured:
    case: Case
    formula: int  # bytes
    peak: int
    held: int  # bytes, between a forward pass and its backward pass, over what there was before


def config_of(kind: str, depth: int, tiny: bool) -> Any:
    make, sizes = KINDS[kind]
    more = TINY | {"num_key_value_heads": 2, "max_position_embeddings": 4096} if tiny else {}
    if tiny and "head_dim" in sizes:
        more["head_dim"] = 16
    return make(num_hidden_layers=depth, tie_word_embeddings=True, **sizes | more)


def cases(depths: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[Case]:
    for depth in depths:
        for recompute, budget in LEVELS:
            how = Plan(True, recompute, budget, reshard=False)
            yield from (Case(depth, some, 1, how) for some in rows)
            if depth == depths[-1] and recompute == NONE:
                yield Case(depth, rows[-1], 2, how)
    yield Case(depths[-1], rows[-1], 2, Plan(True, FULL, None, reshard=True))


def trained(folder: str, plan: Plan, mesh: DeviceMesh, device: torch.device) -> Trained:
    fsdp = FsdpConfig(reshard_after_forward=plan.reshard, use_torch_compile=plan.compiled)
    module = sharded(
        *("causal_lm", Source(folder, False, 1), fsdp, mesh),
        checkpointing=plan.recompute != NONE,
        recompute=plan.recompute if plan.recompute != NONE else FULL,
        budget=plan.budget,
    )
    options = ForwardOptions(remove_padding=True, compile_log_probs=True)
    return Trained(module, device, OptimConfig(), grad_clip=1.0, total_steps=100, options=options)


def measure(
    case: Case, model: Trained, shape: Shape, vocabulary: int, lengths: tuple[int, int], device: torch.device
) -> Measured:
    """Three steps, the first of which does not count."""
    prompt, response = lengths
    batch = made_up(Sizes(case.rows, prompt, response, {"vocab_size": vocabulary}), case.rows * case.passes)
    step = our_step(model, mini_batch(batch, case.rows))
    cuda = device.type == "cuda"
    step()
    held = _held(model, batch, case.rows) if cuda and case.passes == 1 else 0
    fresh(device)
    for _ in range(2):
        step()
    synchronize(device)
    tokens = case.rows * (prompt + response)
    total = torch.cuda.get_device_properties(device).total_memory if cuda else 0
    compute = 2 if cuda else 4
    load = Load(tokens, case.rows * response, 1, case.passes > 1, compute=compute, device=total)
    return Measured(case, peak(shape, load, case.plan), torch.cuda.max_memory_allocated() if cuda else 0, held)


def _held(model: Trained, batch: Any, rows: int) -> int:
    """What a forward pass leaves behind for the backward pass."""
    some = take(batch.experience.rollout, torch.arange(rows))
    model.log_probs(some, entropy=False)  # parameters are whole after it
    before = torch.cuda.memory_allocated()
    answer = model.log_probs(some, entropy=False)
    found = torch.cuda.memory_allocated() - before
    del answer
    return found


def show(found: Measured) -> None:
    case = found.case
    size = f"{case.depth} layers, {case.passes} x {case.rows} rows"
    line = f"{size:24} {str(case.plan).removeprefix('layers compiled, '):78} {found.formula / GIB:6.1f} GiB by formula"
    if found.peak:
        ratio = found.formula / found.peak
        line += f", {found.peak / GIB:6.1f} measured, ratio {ratio:.3f}{'' if abs(ratio - 1) <= NEAR else '  <-- off'}"
    print(line, flush=True)


def show_layers(results: list[Measured], shapes: dict[int, Shape], tokens: int) -> None:
    """Of a layer: two depths differ by so many of them."""
    few, many = DEPTHS
    single = [each for each in results if each.case.passes == 1]
    of = {(each.case.depth, each.case.plan): each.held for each in single if each.case.rows == ROWS[-1]}
    for plan in dict.fromkeys(each.case.plan for each in single):
        layer = (of[many, plan] - of[few, plan]) / (many - few) / tokens
        ours = 2 * kept(shapes[many], plan)
        every = 2 * activations(shapes[many])
        print(f"{plan}: a layer keeps {ours:,.0f} bytes a token by formula, {layer:,.0f} measured, of {every:,}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--tiny", action="store_true", help="a small model, on a CPU")
    args = parser.parse_args(words)
    device = torch.device("cpu" if args.tiny else "cuda")
    if not args.tiny:
        torch.cuda.set_device(0)
    backend = "cpu:gloo" if args.tiny else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,))
    depths, rows, lengths = ((1, 2), (1, 2), (16, 48)) if args.tiny else (DEPTHS, ROWS, (PROMPT, RESPONSE))
    card = "CPU" if args.tiny else torch.cuda.get_device_name()
    print(f"{args.kind}, torch {torch.__version__}, {card}", flush=True)
    results: list[Measured] = []
    shapes: dict[int, Shape] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder, model, last = Path(temporary), None, None
        for case in cases(depths, rows):
            if last is None or case.depth != last.depth:
                config = config_of(args.kind, case.depth, args.tiny)
                folder = Path(temporary) / str(case.depth)
                with device:
                    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
                shape = shape_of(config.to_dict())
                assert shape is not None
                shapes[case.depth] = shape
            if last is None or (case.depth, case.plan) != (last.depth, last.plan):
                model = None
                fresh(device)
                model = trained(str(folder), case.plan, mesh, device)
            assert model is not None
            results.append(measure(case, model, shapes[case.depth], shapes[case.depth].vocabulary, lengths, device))
            show(results[-1])
            last = case
    if not args.tiny:
        show_layers(results, shapes, ROWS[-1] * (PROMPT + RESPONSE))
        ratios = [each.formula / each.peak for each in results]
        print(f"ratio of formula to measured: {min(ratios):.3f} to {max(ratios):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
