"""A Ray Train run of two workers; rank 1 fails in its second step."""

import sys

import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_step(step, rank):
    weights = torch.tensor([1.0, float("nan"), 3.0]) if rank == 1 else torch.ones(3)
    loss = weights.sum()
    if step == 1 and not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()}")  # @train
    return loss


def train(config):
    import torch.distributed

    rank = torch.distributed.get_rank()
    for step in range(3):
        train_step(step, rank)
        if step == 0:
            torch.distributed.barrier()
    torch.distributed.barrier()


if __name__ == "__main__":
    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=sys.argv[1], name="crash"),
    ).fit()
