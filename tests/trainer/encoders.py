"""A tiny encoder for the tests of retrieval: BERT with weights drawn from a seed, and a vocabulary of word pieces."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from trainer.quiet import without_bars

WORDS = [
    *("query", "passage", ":", "who", "wrote", "writer", "of", "german", "british", "faust", "a", "tragedy"),
    *("short", "stories", "atomic", "number", "symbol"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*string.ascii_lowercase, *string.digits, *string.punctuation]


def tiny(folder: Path, seed: int = 0, width: int = 32) -> Path:
    """Makes one in `folder`, which it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = list(dict.fromkeys([*SPECIAL, *WORDS, *PIECES, *(f"##{piece}" for piece in PIECES)]))
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=512,
        initializer_range=0.5,
    )
    with without_bars(), torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return folder
