"""What both trainers of `end_to_end.py` are given: a model with random weights, its tokenizer, prompts and a reward."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from string import ascii_lowercase
from typing import Any

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
END, PAD = "<|endoftext|>", "<|pad|>"
REWARD = '''"""The share of sevens among the characters of a response: some number that is not the same for all."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return solution_str.count("7") / max(1, len(solution_str))
'''


@dataclasses.dataclass(frozen=True)
class Sizes:
    rows: int
    mini_batch: int
    prompt: int
    response: int
    actor_tokens: int
    critic_tokens: int
    model: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.rows * (self.prompt + self.response)


QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
FULL = Sizes(
    *(256, 128, 256, 512, 16384, 16384),
    QWEN2 | {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768},
)
TINY = Sizes(
    *(8, 4, 16, 16, 128, 128), SMALL | {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 64}
)


def make(folder: Path, sizes: Sizes, steps: int) -> None:
    """Writes `model/`, `train.parquet` and `reward.py` into `folder`."""
    make_tokenizer(sizes.model["vocab_size"]).save_pretrained(folder / "model")
    make_model(folder / "model", sizes)
    make_prompts(folder / "train.parquet", sizes, steps)
    (folder / "reward.py").write_text(REWARD)


def make_model(folder: Path, sizes: Sizes) -> None:
    """In bf16, as models are published; both trainers read it as float32.

    It names no token that ends a text, so that every response has its full length: verl's SGLang has no `ignore_eos`.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    config = Qwen2Config(tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, **sizes.model)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def make_tokenizer(size: int) -> Any:
    """Of bytes alone: no merges, so that a prompt of N letters has N tokens. Other tokens fill the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [PAD, END, *letters, *(f"w{i}" for i in range(len(letters) + 2, size))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=CHAT_TEMPLATE, padding_side="left"
    )


def make_prompts(path: Path, sizes: Sizes, steps: int) -> None:
    """Prompts of random letters, at the limit of their length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = random.Random(0)
    rows = [
        {
            "data_source": "made up",
            "prompt": [{"role": "user", "content": "".join(dice.choices(ascii_lowercase, k=sizes.prompt))}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index in range(sizes.rows * steps)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
