"""A tiny model that stands for a large one: same architecture, same files, a fraction of the size; made offline.

Built in the warm process (`warm.py`), so that the smoke test's driver never imports transformers' model code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.precision import in_precision

LAYERS, WIDTH, HEADS = 2, 64, 4
VOCABULARY = 384  # 256 bytes, the special tokens, and some merges, so that tokens are not all one character
PAD, END, START = "<|pad|>", "<|im_end|>", "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinySpec:
    """What to build: the architecture of `like` (a local folder; None: Qwen2), a tokenizer trained on `texts`."""

    folder: str
    like: str | None
    texts: tuple[str, ...]
    seed: int
    max_positions: int
    heads: int = HEADS  # half as many of keys and values, where these are fewer
    loudness: float = 1.0  # what the output layer is multiplied by


def make_tokenizer(texts: Sequence[str], size: int = VOCABULARY) -> Any:
    """A byte-level BPE tokenizer of `size` tokens trained on `texts`, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=CHAT_TEMPLATE, padding_side="left"
    )


def shrink(config: Any, tokenizer: Any, max_positions: int, heads: int = HEADS) -> Any:
    """A transformers configuration with its sizes cut, in place; what is no size stays."""
    if hasattr(config, "layer_types") and config.layer_types:
        config.layer_types = list(config.layer_types)[:LAYERS]
    grouped = getattr(config, "num_key_value_heads", None) not in (None, getattr(config, "num_attention_heads", None))
    sizes = {
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if grouped else heads,
        "head_dim": WIDTH // heads,
        "max_window_layers": LAYERS,
        "n_inner": None,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max_positions,
    }
    for name, size in sizes.items():
        if hasattr(config, name):
            setattr(config, name, size)
    config.eos_token_id = config.bos_token_id = tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id
    return config


class Built(NamedTuple):
    """What `build` has written."""

    is_like: bool  # the architecture is that of `spec.like`: one that is code in its folder is not run
    modules: list[str]  # by name


def build(spec: TinySpec) -> Built:
    """Writes configuration, weights and tokenizer into `spec.folder`."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config
    from transformers.utils import logging

    logging.disable_progress_bar()  # of a file that is written in no time
    tokenizer = make_tokenizer(spec.texts)
    config = _config_of(spec.like) if spec.like else None
    is_like = config is not None
    if config is None:
        config = Qwen2Config(num_key_value_heads=HEADS // 2)
    shrink(config, tokenizer, spec.max_positions, spec.heads)
    torch.manual_seed(spec.seed)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **in_precision(torch.float32))
    model.get_output_embeddings().weight.data.mul_(spec.loudness)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(spec.folder)
    tokenizer.save_pretrained(spec.folder)
    return Built(is_like, [name for name, _ in model.named_modules()])


def _config_of(folder: str) -> Any:
    """The configuration in a folder, without the names of code that is there; None where only that code knows it."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" in str(error):
            return None
        raise
    if hasattr(config, "auto_map"):
        del config.auto_map  # the tiny model's folder has no such files
    return config


def build_from(**fields: Any) -> dict[str, Any]:
    """`build`, for the warm process."""
    return build(TinySpec(**{**fields, "texts": tuple(fields["texts"])}))._asdict()


def digests_of(folder: str) -> dict[str, Any]:
    """A digest of each parameter of an exported model as `transformers` loads it, for the warm process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.learner.snapshot import digest

    AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    return {"digests": {name: digest(tensor) for name, tensor in model.named_parameters()}}
