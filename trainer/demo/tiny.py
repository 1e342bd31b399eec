"""What the demos share: their command line, a new folder, and a model of 0.1 million parameters."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.commands import Parser
from trainer.config.overrides import format_value
from trainer.errors import ConfigError
from trainer.quiet import without_bars

LAYERS, WIDTH, HEADS = 2, 64, 4


def parse(
    argv: Sequence[str] | None, *, program: str, description: str, example: str, named: str
) -> argparse.Namespace:
    """`example` of an override; `named`: how its folder begins below checkpoints/."""
    parser = Parser(prog=f"python -m {program}", description=description)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"for example {example}")
    parser.add_argument("--output", type=Path, metavar="DIR", help=f"a new folder [default: checkpoints/{named}-TIME]")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser.parse_intermixed_args(argv)


def new_folder(given: Path | None, named: str) -> Path:
    """Where everything goes. Raises ConfigError for a folder with something in it."""
    folder = given or Path("checkpoints") / time.strftime(f"{named}-%Y%m%d-%H%M%S")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not a new folder", hint="give another one as --output")
    return folder


def place(key: str, path: Path) -> str:
    """The word that sets `key` to the path on this machine, whatever letters it has.

    >>> place("trainer.default_local_dir", Path("/srv/Über uns"))
    "trainer.default_local_dir='/srv/Über uns'"
    """
    return f"{key}={format_value(str(path.absolute()))}"


def learning(folder: Path, *, named: str, steps: int, workers: int, log_prob_rows: int) -> list[str]:
    """How a tiny model learns from conversations, by GRPO on this machine: words of `main_ppo`.

    `log_prob_rows` go through the model at once where log-probs are taken.
    """
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        "data.train_batch_size=32",
        f"{actor}.ppo_mini_batch_size=8",
        f"{actor}.ppo_micro_batch_size_per_gpu=32",
        f"{actor}.optim.lr=5e-4",
        f"{rollout}.name=hf",
        f"{rollout}.n=8",
        f"{rollout}.max_num_seqs=512",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={log_prob_rows}",
        f"{rollout}.val_kwargs.do_sample=True",
        f"{rollout}.val_kwargs.temperature=1.0",
        "algorithm.adv_estimator=grpo",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={workers}",
        "trainer.device=cpu",
        f"trainer.total_training_steps={steps}",
        f"trainer.test_freq={steps}",
        f"trainer.save_freq={steps}",
        f"trainer.project_name={named}",
        "trainer.logger=[console,file]",
        place("trainer.rollout_data_dir", folder / "samples"),
        place("trainer.default_local_dir", folder),
    ]


def new_model(tokenizer: Any, seed: int, positions: int) -> Any:
    """A Qwen2 for contexts of so many tokens."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with without_bars():  # of a file of half a megabyte: they would tear the display of the demo
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
