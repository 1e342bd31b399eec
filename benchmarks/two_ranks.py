"""The actor's update on several GPUs of one host, beside the rival at its best on the same GPUs.

    torchrun --nproc-per-node 2 benchmarks/two_ranks.py [--runs 7]
    torchrun --nproc-per-node 2 benchmarks/two_ranks.py --tiny                       (the same lines on CPUs, by gloo)

The model and the rows of `actor_update.py`: one full pass of 8 rows on each rank, with the layers recomputed and not,
with parameters kept whole between the passes and resharded after each (`reshard_after_forward`). The rival is timed
before ours and once more after it; the ratio is to its quicker median. Seconds are those of rank 0, which waits for
the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: as Ray sets it in a worker

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import actor_update
from benchmarks.actor_update import BEST, PEAK, Sizes, Step, fresh, peak_gib, seconds_of
from benchmarks.actor_update_parts import Rival
from trainer import ppo
from trainer.balance import PassLimit, shares
from trainer.records import MiniBatch
from trainer.rows import take


@dataclasses.dataclass(frozen=True)
class Setting:
    recompute: bool
    reshard: bool

    def __str__(self) -> str:
        layers = "layers recomputed" if self.recompute else "nothing recomputed"
        return f"{layers}, {'resharded' if self.reshard else 'kept whole'}"


SETTINGS = tuple(Setting(recompute, reshard) for recompute, reshard in product((False, True), (False, True)))


def mine(sizes: Sizes) -> MiniBatch:
    """This rank's part of a batch that gives each rank one full pass."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    batch = actor_update.made_up(sizes, ranks * sizes.rows)
    lengths = batch.experience.rollout.lengths_B.tolist()
    share = shares(lengths, ranks, PassLimit(tokens=sizes.tokens))[rank]
    totals = ppo.totals_of(batch.experience.rollout.mask_BT)
    return MiniBatch(take(batch, torch.tensor(share.rows)), totals, tuple(torch.tensor(rows) for rows in share.passes))


def step_of(turn: str, setting: Setting, folder: str, part: MiniBatch, mesh: DeviceMesh, device: torch.device) -> Step:
    if turn == "ours":
        variant = dataclasses.replace(
            BEST[setting.recompute], reshard=setting.reshard, compiled_layers=device.type == "cuda"
        )
        return actor_update.our_step(actor_update.ours(folder, variant, mesh, device), part)
    rival = Rival(folder, mesh, device, recompute=setting.recompute, reshard=setting.reshard)
    return rival.step(part.batch, len(part.passes))


def timed(
    folder: str, sizes: Sizes, runs: int, mesh: DeviceMesh, device: torch.device
) -> Iterator[tuple[Setting, str, list[float], float]]:
    """What, who, seconds and this rank's peak memory."""
    part = mine(sizes)
    for setting in SETTINGS:
        for turn in ("rival", "ours", "rival again"):
            fresh(device)
            step = step_of(turn, setting, folder, part, mesh, device)
            dist.barrier()
            yield setting, turn, seconds_of({"": step}, runs, device)[""], peak_gib(device)
            del step


def show(sizes: Sizes, count: int, rows: Iterator[tuple[Setting, str, list[float], float]]) -> None:
    """A line for each as it comes, the ratios at the end; rank 0 alone prints."""
    medians: dict[tuple[Setting, str], float] = {}
    first = dist.get_rank() == 0
    for setting, turn, seconds, gib in rows:
        medians[setting, turn] = median = statistics.median(seconds)
        used = 6 * count * sizes.tokens / median / PEAK  # of one rank's GPU, for its own tokens
        if first:
            actor_update.show(f"{setting}: {turn}", seconds, f"{used:6.1%} of {PEAK / 1e12:.0f} TFLOP/s, {gib:.1f} GiB")
    for setting in SETTINGS if first else ():
        quicker = min(medians[setting, "rival"], medians[setting, "rival again"])
        print(f"{setting}: {medians[setting, 'ours'] / quicker:.3f} of the rival's time")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, on CPUs")
    args = parser.parse_args(words)
    sizes = actor_update.TINY if args.tiny else actor_update.FULL
    device = torch.device("cpu") if args.tiny else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo" if args.tiny else "cpu:gloo,cuda:nccl")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    with tempfile.TemporaryDirectory() as temporary:
        shared = [temporary]
        dist.broadcast_object_list(shared, src=0)
        if dist.get_rank() == 0:
            actor_update.model_folder(Path(shared[0]), sizes, device)
        dist.barrier()
        count = actor_update.parameters(shared[0])
        if dist.get_rank() == 0:
            card = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
            of_each = f"{sizes.tokens} tokens on each of {dist.get_world_size()} ranks"
            print(f"{count / 1e9:.3f} billion parameters, {of_each}, torch {torch.__version__}, {card}", flush=True)
        show(sizes, count, timed(shared[0], sizes, args.runs, mesh, device))
        dist.barrier()  # the folder is rank 0's
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
