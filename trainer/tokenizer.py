"""The tokenizer of a run, the same on the driver and on every rank."""

from __future__ import annotations

from typing import Any

from trainer.config.schema import ModelConfig
from trainer.errors import ModelError
from trainer.model_path import UNREADABLE, local_path, reason


def load_tokenizer(model: ModelConfig) -> Any:
    """The tokenizer of `tokenizer_path`, else of `path`; without a padding token, EOS pads.

    Raises ModelError if there is none, or none that knows an EOS token.
    """
    from transformers import AutoTokenizer

    path = model.tokenizer_path or model.path
    folder = local_path(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except UNREADABLE as error:
        raise ModelError(
            f"cannot load a tokenizer from {path}: {reason(error)}",
            hint="the folder needs tokenizer.json and tokenizer_config.json; "
            "or set actor_rollout_ref.model.tokenizer_path",
        ) from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {path} has no EOS token", hint="set eos_token in its tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
