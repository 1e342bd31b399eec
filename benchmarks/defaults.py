"""What a run chooses where its command leaves it open, beside every other way to train that fits.

    python benchmarks/defaults.py [--runs 4]                                 (one GPU, at most ten minutes)
    python benchmarks/defaults.py --tiny                       (the same lines on a CPU, where nothing is chosen)

The model of `actor_update.py`, one pass an update, in several sizes. The choice is that of `trainer/config/chosen.py`
for a command that gives the batch alone, and for the memory that is free here. The grid: layers compiled and not, all
that may be recomputed, parameters whole and sharded again after each layer. A way that takes far more than there is by
the formula, or too much when it is tried, does not fit. Last, for each size: the time of the choice over that of the
quickest that fits.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: as Ray sets it in a worker

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import actor_update
from benchmarks.actor_update import Sizes, fresh, made_up, mini_batch, model_folder, our_step, peak_gib, seconds_of
from benchmarks.fitting import trained
from trainer.config import load
from trainer.config.chosen import CPU, Choice, Device, choose
from trainer.config.fits import BUDGETS, FULL, GIB, NONE, SELECTIVE, Load, Plan, peak
from trainer.config.shape import Shape, shape_of
from trainer.learner.compiling import compiler_works
from trainer.learner.models import Source, read_config

NEAR = 1.05
TRIED = 1.1  # of what is free, by formula: it is up to 10 % over what is measured
Lengths = tuple[int, int]  # of prompt and response


@dataclasses.dataclass(frozen=True)
class Size:
    rows: int
    prompt: int
    response: int
    often: bool = True  # tried with every plan; else with those that keep parameters whole and compile

    @property
    def length(self) -> int:
        return self.prompt + self.response

    def __str__(self) -> str:
        return f"{self.rows} x {self.length:,}"


SIZES = (
    *(Size(8, 512, 1536), Size(16, 512, 1536), Size(12, 512, 1536, often=False)),
    *(Size(32, 512, 1536, often=False), Size(4, 2048, 6144, often=False)),
    Size(18, 512, 1536, often=False),  # of 80 GB, a budget of 0.75 takes between 0.9 and all
)
TINY_SIZES = (Size(2, 16, 48), Size(1, 32, 96, often=False))


def plans(cuda: bool) -> Iterator[Plan]:
    """The dearest in memory first. Layers that are not compiled have no budgets."""
    levels = ((NONE, None), *((SELECTIVE, budget) for budget in BUDGETS), (FULL, None))
    for recompute, budget in levels if cuda else ():
        yield from (Plan(True, recompute, budget, reshard) for reshard in (False, True))
    for recompute in (NONE, SELECTIVE, FULL):
        yield from (Plan(False, recompute, None, reshard) for reshard in ((False,) if cuda else (False, True)))


def chosen(size: Size, shape: Shape, device: Device) -> Choice:
    """Of a command that gives the batch, and leaves open how it is trained."""
    words = (
        *(f"data.train_batch_size={size.rows}", f"actor_rollout_ref.actor.ppo_mini_batch_size={size.rows}"),
        *(f"data.max_prompt_length={size.prompt}", f"data.max_response_length={size.response}"),
        *("actor_rollout_ref.actor.use_dynamic_bsz=True", "algorithm.adv_estimator=grpo"),
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={size.rows * size.length}",
        "trainer.n_gpus_per_node=1",
    )
    [choice] = choose(load(words).config, {"actor": shape}, device)
    return choice


@dataclasses.dataclass(frozen=True)
class Timed:
    size: Size
    plan: Plan
    seconds: tuple[float, ...]
    peak: float  # GiB
    needs: float  # the same by formula

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def timed(
    folder: str, shape: Shape, sizes: tuple[Size, ...], runs: int, there: Device, mesh: DeviceMesh, device: torch.device
) -> Iterator[Timed]:
    for plan in plans(there.cuda):
        model = None
        for size in sizes:
            tokens = size.rows * size.length
            needs = peak(shape, Load(tokens, size.rows * size.response, 1, False, device=there.total), plan)
            every = size.often or (plan.compiled and not plan.reshard) or not there.cuda
            if not every or (there.cuda and needs > TRIED * there.free):
                continue
            batch = made_up(Sizes(size.rows, size.prompt, size.response, {"vocab_size": shape.vocabulary}), size.rows)
            taken: list[float] = []
            try:
                model = model or trained(folder, plan, mesh, device)
                fresh(device)
                taken = seconds_of({"": our_step(model, mini_batch(batch, size.rows))}, runs, device)[""]
            except torch.OutOfMemoryError:
                print(f"{size!s:10} {plan}: does not fit, {needs / GIB:.1f} GiB by formula", flush=True)
            if taken:
                yield Timed(size, plan, tuple(taken), peak_gib(device), needs / GIB)
            else:  # a step that broke off leaves the model halfway
                model = None
                fresh(device)
        del model
        fresh(device)


def show(found: Timed, choice: Choice) -> None:
    spread = f"({min(found.seconds):.3f} to {max(found.seconds):.3f})"
    mark = "  <-- chosen" if found.plan == choice.plan else ""
    memory = f"{found.peak:5.1f} GiB, {found.needs:5.1f} by formula"
    print(f"{found.size!s:10} {found.median:7.3f} s {spread:18} {memory}  {found.plan}{mark}", flush=True)


def show_choices(results: list[Timed], choices: dict[Size, Choice]) -> None:
    for size, choice in choices.items():
        ways = {each.plan: each for each in results if each.size == size}
        best = min(ways.values(), key=lambda each: each.median)
        print(f"\n{size}: {choice}")
        if choice.plan not in ways:
            print("  not among those that were tried")
            continue
        ratio = ways[choice.plan].median / best.median
        word = "it is" if best.plan == choice.plan else str(best.plan)
        print(f"  {ratio:.3f} of the quickest that fits{'' if ratio <= NEAR else '  <-- off'}: {word}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on a CPU")
    parser.add_argument("--rows", type=int, nargs="*", help="passes of so many rows alone")
    args = parser.parse_args(words)
    device = torch.device("cpu" if args.tiny else "cuda")
    there = CPU
    if not args.tiny:
        torch.cuda.set_device(0)
        works = compiler_works("cuda")
        fresh(device)
        there = Device(True, works, *torch.cuda.mem_get_info())
    dist.init_process_group(
        "cpu:gloo" if args.tiny else "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1
    )
    mesh = init_device_mesh(device.type, (1,))
    sizes = tuple(s for s in (TINY_SIZES if args.tiny else SIZES) if not args.rows or s.rows in args.rows)
    with tempfile.TemporaryDirectory() as temporary:
        model = actor_update.TINY if args.tiny else actor_update.FULL
        folder = model_folder(Path(temporary), model, device)
        shape = shape_of(read_config(Source(folder, False, 1)).to_dict())
        assert shape is not None
        card = "CPU" if args.tiny else f"{torch.cuda.get_device_name()}, {there.free / GIB:.1f} GiB free"
        print(f"{shape.parameters / 1e9:.3f} billion parameters, torch {torch.__version__}, {card}", flush=True)
        choices = {size: chosen(size, shape, there) for size in sizes}
        results: list[Timed] = []
        for found in timed(folder, shape, sizes, args.runs, there, mesh, device):
            results.append(found)
            show(found, choices[found.size])
    show_choices(results, choices)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
