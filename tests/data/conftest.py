"""Tokenizers built on the spot, and parquet files in verl's schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<bos>", "<unk>", "<user>", "<assistant>", *(f"w{i}" for i in range(100))]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system\nmessages here') }}{% endif %}"
    "<{{ message.role }}> {{ message.content }} "
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def bare_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, w0 to w99. It would add <bos> to everything, were it asked for special tokens."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", unk_token="<unk>")


@pytest.fixture
def tokenizer(bare_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """`<user>`, the words, `<assistant>`: a prompt of n words has n + 2 tokens."""
    bare_tokenizer.chat_template = TEMPLATE
    return bare_tokenizer


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(rows)` or `write(rows, name)`: a parquet file; gives its path."""

    def write_rows(rows: Sequence[dict[str, Any]], name: str = "train.parquet") -> str:
        pq.write_table(pa.Table.from_pylist(list(rows)), tmp_path / name)
        return str(tmp_path / name)

    return write_rows


MakeRow = Callable[..., dict[str, Any]]


@pytest.fixture
def make_row() -> MakeRow:
    """`make_row(index, words, **columns)`: its prompt is `words` words, the first of them w<index>."""

    def row(index: int = 0, words: int = 3, **columns: Any) -> dict[str, Any]:
        content = " ".join(f"w{(index + i) % 100}" for i in range(words))
        return {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": content}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"split": "train", "index": index},
            **columns,
        }

    return row
