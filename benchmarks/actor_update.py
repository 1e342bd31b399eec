"""The actor's update: how much of the GPU's arithmetic it uses, and what more micro-batches cost.

    python benchmarks/actor_update.py [--runs 7]              (a GPU of Hopper's generation: ours beside the rivals)
    python benchmarks/actor_update.py --variants [--only NAME...]       (ours by its settings, beside the naive rival)
    python benchmarks/actor_update.py --tiny                                            (the same lines on a CPU)

A Qwen2 of 1.54 billion random weights, kept in float32 and computed in bf16, with checkpointed layers. One step is 8
sequences of 2,048 tokens, 512 of them the prompt. Utilisation is by the 6N rule: 6 FLOPs per parameter (the embeddings
included) and token, whatever is really computed, over the 790 TFLOP/s that the best matrix products reach.

Ours is `ppo.update` over the learner, as a run takes it. The naive rival is what one would write first: FSDP2 around
transformers, logits of all tokens in float32, AdamW. The rival at its best has what ours has, see
`actor_update_parts.py`; it is timed before ours and once more after it. Three batches: one pass at full length, four
such passes, and rows of drawn lengths, each without recomputing and with layers recomputed.

`--variants`: also 32 such sequences in a few micro-batches and in four times as many, in turn on one model, the naive
rival too. Medians, and the quickest and slowest in brackets. The host has one thread: it only queues work.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: as Ray sets it in a worker

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, Qwen2Config

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.actor_update_parts import Rival, drawn
from trainer import ppo
from trainer.balance import PassLimit, shares
from trainer.config.schema import ActorConfig, FsdpConfig, OptimConfig
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Trained
from trainer.learner.models import Source, sharded
from trainer.records import Experience, MiniBatch, Prompts, Rollout, Row, TrainBatch

PEAK = 790e12  # FLOP/s of bf16 matrix products on an H100 or H200
REACH, RIVAL_REACHED, GROWTH_REACH = 0.45, 0.35, 1.1
Step = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    rows: int
    prompt: int
    response: int
    model: dict[str, Any]

    @property
    def tokens(self) -> int:
        return self.rows * (self.prompt + self.response)


QWEN2 = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
FULL = Sizes(8, 512, 1536, QWEN2 | {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768})
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY = Sizes(8, 16, 48, SMALL | {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256})


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to set the learner."""

    name: str
    packed: bool = True
    recompute: str = "full"  # full | selective | none
    reshard: bool = True
    compiled_layers: bool = False


VARIANTS = (
    Variant("padded, full recompute", packed=False),
    Variant("packed, full recompute"),
    Variant("packed, selective recompute", recompute="selective"),
    Variant("packed, selective, parameters stay whole", recompute="selective", reshard=False),
    Variant("packed, whole, compiled, full recompute", reshard=False, compiled_layers=True),
    Variant("packed, whole, compiled, selective", recompute="selective", reshard=False, compiled_layers=True),
)
RIVAL = "FSDP2 + transformers"
BEST = {
    False: Variant("ours, nothing recomputed", reshard=False, compiled_layers=True, recompute="none"),
    True: Variant("ours, layers recomputed", reshard=False, compiled_layers=True),
}


@dataclasses.dataclass(frozen=True)
class Growth:
    """The same sequences in micro-batches of `pass_rows`, and of a quarter of that; without a variant, the rival's."""

    variant: Variant | None
    pass_rows: int


GROWTHS = (
    Growth(None, 8),
    Growth(VARIANTS[3], 8),
    Growth(VARIANTS[4], 32),
    Growth(VARIANTS[5], 16),
    Growth(VARIANTS[5], 8),
)


def made_up(sizes: Sizes, rows: int) -> TrainBatch:
    """Sequences at the limit of their lengths, with random experience."""
    dice = torch.Generator().manual_seed(0)
    vocabulary = sizes.model["vocab_size"]

    def ids(width: int) -> torch.Tensor:
        return torch.randint(vocabulary, (rows, width), generator=dice)

    def reals() -> torch.Tensor:
        return torch.randn(rows, sizes.response, generator=dice)

    named = tuple(Row(i, "made up", "none", "") for i in range(rows))
    zeros = torch.zeros(rows, dtype=torch.int64)
    prompts = Prompts(ids(sizes.prompt), torch.ones(rows, sizes.prompt).long(), torch.arange(rows), zeros, named)
    old = 0.01 * reals() - math.log(
        vocabulary
    )  # near what random weights give: within the clip, so there is a gradient
    rollout = Rollout(prompts, ids(sizes.response), torch.ones(rows, sizes.response).long(), old)
    return TrainBatch(Experience(rollout, reals(), old, None, None), reals(), reals(), reals())


def mini_batch(batch: TrainBatch, pass_rows: int, row_tokens: int = 0) -> MiniBatch:
    """The whole batch on one rank, in passes of as many tokens as `pass_rows` sequences have: of `row_tokens` each."""
    lengths = batch.experience.rollout.lengths_B.tolist()
    [share] = shares(lengths, 1, PassLimit(tokens=pass_rows * (row_tokens or max(lengths))))
    totals = ppo.totals_of(batch.experience.rollout.mask_BT)
    return MiniBatch(batch, totals, tuple(torch.tensor(rows) for rows in share.passes))


def model_folder(folder: Path, sizes: Sizes, device: torch.device) -> str:
    """A model with random weights, in bf16: read as float32 like any other."""
    torch.manual_seed(0)
    config = Qwen2Config(tie_word_embeddings=True, **sizes.model)
    with device:
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return str(folder)


def ours(folder: str, variant: Variant, mesh: DeviceMesh, device: torch.device) -> Trained:
    fsdp = FsdpConfig(reshard_after_forward=variant.reshard, use_torch_compile=variant.compiled_layers)
    source = Source(folder, False, 1)
    kept = variant.recompute == "none"
    recompute = "full" if kept else variant.recompute
    module = sharded("causal_lm", source, fsdp, mesh, checkpointing=not kept, recompute=recompute)
    options = ForwardOptions(remove_padding=variant.packed, compile_log_probs=True)
    return Trained(module, device, OptimConfig(), grad_clip=1.0, total_steps=100, options=options)


def our_step(model: Trained, share: MiniBatch) -> Step:
    config = ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2)
    return partial(ppo.update, model, (share,), partial(ppo.actor_loss, model, config=config))


def plain_step(folder: str, batch: TrainBatch, mesh: DeviceMesh, device: torch.device, passes: int) -> Step:
    """FSDP2 + transformers, with nothing of this repository's but the loss."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.to(device)
    checkpoint = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    checkpoint({"use_reentrant": False})
    model.train()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    rollout, totals = batch.experience.rollout, ppo.totals_of(batch.experience.rollout.mask_BT)

    def step() -> None:
        for index in torch.arange(len(batch)).chunk(passes):
            ids_BS, width = rollout.ids_BS[index].to(device), rollout.response_BT.shape[1]
            logits_BTV = model(input_ids=ids_BS, use_cache=False).logits[:, :-1].float()
            logp_BS = -cross_entropy(logits_BTV.flatten(0, 1), ids_BS[:, 1:].flatten(), reduction="none")
            logp_BT = logp_BS.view(len(index), -1)[:, -width:]
            old, advantages = (x[index].to(device) for x in (batch.experience.old_logp_BT, batch.advantages_BT))
            mask = rollout.mask_BT[index].to(device)
            ppo.policy_loss(old, logp_BT, advantages, mask, 0.2, 0.2, 3.0, "token-mean", totals)[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of(steps: dict[str, Step], runs: int, device: torch.device) -> dict[str, list[float]]:
    """Each step `runs` times, turn and turn about, after three that do not count."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for run in range(runs + 3):
        for name, step in steps.items():
            synchronize(device)
            started = time.perf_counter()
            step()
            synchronize(device)
            if run >= 3:
                taken[name].append(time.perf_counter() - started)
    return taken


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def fresh(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")


def rows_of_the_table(
    folder: str, sizes: Sizes, only: list[str], runs: int, mesh: DeviceMesh, device: torch.device
) -> Iterator[tuple[str, list[float], float]]:
    """Name, seconds and peak memory of the rival and of each variant."""
    batch = made_up(sizes, sizes.rows)
    fresh(device)
    step: Step = plain_step(folder, batch, mesh, device, 1)
    yield RIVAL, seconds_of({"": step}, runs, device)[""], peak_gib(device)
    for variant in VARIANTS:
        if only and variant.name not in only:
            continue
        del step
        fresh(device)
        step = our_step(ours(folder, variant, mesh, device), mini_batch(batch, sizes.rows))
        yield variant.name, seconds_of({"": step}, runs, device)[""], peak_gib(device)


def growth(
    case: Growth, folder: str, sizes: Sizes, runs: int, mesh: DeviceMesh, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of a step of four times the rows, in few micro-batches and in four times as many."""
    fresh(device)
    batch = made_up(sizes, 4 * sizes.rows)
    if case.variant is None:
        few = len(batch) // case.pass_rows
        steps = {f"{n} passes": plain_step(folder, batch, mesh, device, n) for n in (few, 4 * few)}
        return seconds_of(steps, runs, device)
    model = ours(folder, case.variant, mesh, device)
    shares = [mini_batch(batch, rows) for rows in (case.pass_rows, case.pass_rows // 4)]
    return seconds_of({f"{len(share.passes)} passes": our_step(model, share) for share in shares}, runs, device)


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch, and the passes that it is cut into."""

    name: str
    batch: TrainBatch
    passes: int  # of the rival

    @property
    def tokens(self) -> int:
        return int(self.batch.experience.rollout.lengths_B.sum())


def cases(sizes: Sizes) -> list[Case]:
    many = drawn(made_up(sizes, 28 * sizes.rows // 8), sizes.prompt // 2)
    return [
        Case("one full pass", made_up(sizes, sizes.rows), 1),
        Case("four full passes", made_up(sizes, 4 * sizes.rows), 4),
        Case("drawn lengths", many, 4),
    ]


def beside_the_rival(
    folder: str, sizes: Sizes, runs: int, mesh: DeviceMesh, device: torch.device, rivals: bool
) -> Iterator[tuple[str, Case, list[float], float]]:
    """Who, what, seconds and peak memory, with the rival before and after ours."""
    for recompute in (False, True):
        how = "layers recomputed" if recompute else "nothing recomputed"
        for turn in ("rival", "ours", "rival again"):
            if turn != "ours" and not rivals:
                continue
            fresh(device)
            ours_ = ours(folder, BEST[recompute], mesh, device) if turn == "ours" else None
            rival = None if ours_ else Rival(folder, mesh, device, recompute=recompute)
            for case in cases(sizes):
                if ours_ is not None:
                    step: Step = our_step(ours_, mini_batch(case.batch, sizes.rows, sizes.prompt + sizes.response))
                else:
                    assert rival is not None
                    step = rival.step(case.batch, case.passes)
                fresh(device)
                yield f"{turn}, {how}", case, seconds_of({"": step}, runs, device)[""], peak_gib(device)
            del ours_, rival, step


def show(name: str, seconds: list[float], more: str) -> None:
    spread = f"({min(seconds):.3f} to {max(seconds):.3f})"
    print(f"{name:45} {statistics.median(seconds):8.3f} s {spread:20} {more}", flush=True)


def parameters(folder: str) -> int:
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(Qwen2Config.from_pretrained(folder))
    return sum(parameter.numel() for parameter in model.parameters())


def show_rivals(
    folder: str, sizes: Sizes, count: int, args: argparse.Namespace, mesh: DeviceMesh, device: torch.device
) -> None:
    taken: dict[tuple[str, str], list[float]] = {}
    for name, case, seconds, gib in beside_the_rival(folder, sizes, args.runs, mesh, device, not args.no_rivals):
        share = 6 * count * case.tokens / statistics.median(seconds) / PEAK
        show(f"{case.name}: {name}", seconds, f"{share:6.1%} of {PEAK / 1e12:.0f} TFLOP/s, {gib:.1f} GiB")
        who, how = name.split(", ")
        taken.setdefault((f"{case.name}, {how}", who.split()[0]), []).extend(seconds)
    for what, who in [key for key in taken if key[1] == "ours" and (key[0], "rival") in taken]:
        ratio = statistics.median(taken[what, who]) / statistics.median(taken[what, "rival"])
        print(f"{what}: {ratio:.3f} of the rival's time")


def show_variants(
    folder: str, sizes: Sizes, count: int, args: argparse.Namespace, mesh: DeviceMesh, device: torch.device
) -> None:
    for name, seconds, gib in rows_of_the_table(folder, sizes, args.only, args.runs, mesh, device):
        share = 6 * count * sizes.tokens / statistics.median(seconds) / PEAK
        show(name, seconds, f"{share:6.1%} of {PEAK / 1e12:.0f} TFLOP/s, {gib:.1f} GiB")
    print(f"reach: {REACH:.0%}; the naive rival on an H200 earlier: {RIVAL_REACHED:.0%}")
    for case in GROWTHS if not args.only else ():
        name = case.variant.name if case.variant else RIVAL
        taken = growth(case, folder, sizes, args.runs, mesh, device)
        few, many = (statistics.median(seconds) for seconds in taken.values())
        print(f"{name}: {4 * sizes.rows} sequences, {many / few:.3f} times from {' to '.join(taken)}")
        for passes, seconds in taken.items():
            show(passes, seconds, "")
    print(f"reach: {GROWTH_REACH} times")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--variants", action="store_true", help="ours by its settings, beside the naive rival")
    parser.add_argument("--no-rivals", action="store_true", help="ours alone")
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on a CPU")
    parser.add_argument("--only", nargs="*", default=[], help="variants by name; the rival is always there")
    args = parser.parse_args(words)
    sizes = TINY if args.tiny else FULL
    device = torch.device("cpu" if args.tiny else "cuda")
    backend = "cpu:gloo" if args.tiny else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (1,))
    with tempfile.TemporaryDirectory() as temporary:
        folder = model_folder(Path(temporary), sizes, device)
        count = parameters(folder)
        card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        print(f"{count / 1e9:.3f} billion parameters, {sizes.tokens} tokens, torch {torch.__version__}, {card}")
        if args.variants:
            show_variants(folder, sizes, count, args, mesh, device)
        else:
            show_rivals(folder, sizes, count, args, mesh, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
