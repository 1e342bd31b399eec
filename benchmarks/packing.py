"""What padding costs: tokens that the models compute beside those that are there, padded and packed, on like lengths.

    python benchmarks/packing.py [--rows 1024]

Prompts of about 100 tokens and responses of about 200 with a long tail up to 1,024, as of GSM8K, drawn log-normal. The
computed tokens are counted where they enter a small model on a CPU: in micro-batches of 8 rows as they come, each
as wide as its longest, and in passes of 16,384 tokens, padded and packed. Beside them, how unevenly 8 ranks are
loaded: what the longest waits for, as a share of the mean.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModel, Qwen2Config

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from trainer.balance import PassLimit, Share, deal, shares
from trainer.learner.forward import ForwardOptions
from trainer.learner.fsdp import Model, forward_only
from trainer.learner.models import ValueModel
from trainer.records import Prompts, Rollout, Row

RANKS, BUDGET, ROWS_IN_A_PASS, REACH = 8, 16384, 8, 0.02


def made_up(rows: int) -> Rollout:
    dice = torch.Generator().manual_seed(0)

    def lengths(median: float, spread: float, most: int) -> torch.Tensor:
        drawn = torch.randn(rows, generator=dice) * spread
        return (median * drawn.exp()).long().clamp(1, most)[:, None]

    prompts, responses = lengths(100, 0.4, 512), lengths(180, 0.7, 1024)
    mask_BP = (torch.arange(512).flip(0) < prompts).long()
    mask_BT = (torch.arange(1024) < responses).long()
    named = tuple(Row(i, "made up", "none", "") for i in range(rows))
    uids = torch.arange(rows)
    return Rollout(Prompts(mask_BP * 5, mask_BP, uids, uids * 0, named), mask_BT * 7, mask_BT, mask_BT.float())


def computed(rollout: Rollout, share: Share, packed: bool) -> int:
    """Tokens that went into the model."""
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    backbone = AutoModel.from_config(Qwen2Config(vocab_size=16, num_key_value_heads=1, **sizes))
    model = Model(ValueModel(backbone), torch.device("cpu"), 1.0, ForwardOptions(remove_padding=packed))
    assert model.forward.packs is packed
    seen: list[int] = []
    backbone.embed_tokens.register_forward_hook(lambda _, args, __: seen.append(args[0].numel()))
    forward_only(model.values, rollout, [torch.tensor(rows) for rows in share.passes])
    return sum(seen)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    args = parser.parse_args(words)
    dist.init_process_group("cpu:gloo", store=dist.HashStore(), rank=0, world_size=1)
    rollout = made_up(args.rows)
    lengths = rollout.lengths_B.tolist()
    real = sum(lengths)
    print(f"{args.rows} sequences, {real} tokens, {min(lengths)} to {max(lengths)} each")
    ways = {
        "padded to the limits": (args.rows * (512 + 1024), ""),
        "padded, 8 rows in a pass": _counted(rollout, lengths, PassLimit(rows=ROWS_IN_A_PASS), packed=False),
        "padded, 16,384 tokens in a pass": _counted(
            rollout, lengths, PassLimit(tokens=BUDGET, padded_to=1), packed=False
        ),
        "packed, 16,384 tokens in a pass": _counted(rollout, lengths, PassLimit(tokens=BUDGET), packed=True),
    }
    for name, (tokens, more) in ways.items():
        print(f"{name:35} {tokens:9} tokens computed, {1 - real / tokens:6.1%} of them padding{more}")
    print(f"reach: {REACH:.0%}")
    for balanced in (False, True):
        loads = [sum(lengths[row] for row in rows) for rows in deal(lengths, RANKS, balanced=balanced)]
        name = f"{RANKS} ranks, " + ("dealt evenly" if balanced else "rows in order")
        print(f"{name:35} the longest has {max(loads) * RANKS / real - 1:.2%} more than the mean")
    dist.destroy_process_group()


def _counted(rollout: Rollout, lengths: list[int], limit: PassLimit, *, packed: bool) -> tuple[int, str]:
    [share] = shares(lengths, 1, limit, balanced=False)
    largest = max(limit.size([lengths[row] for row in rows]) for rows in share.passes)
    return computed(rollout, share, packed), f"; {len(share.passes)} passes of up to {largest} tokens"


if __name__ == "__main__":
    main(sys.argv[1:])
