"""What Megatron must know of a Hugging Face configuration, and which models it would not compute as they are meant."""

from __future__ import annotations

from transformers import PretrainedConfig

from trainer.config.splits import Shape, megatron_misfits
from trainer.errors import ModelError
from trainer.learner.megatron.weights import Dimensions

# Llama 3.1's, which Megatron has as constants.
LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def dimensions(config: PretrainedConfig, *, value: bool) -> Dimensions:
    """Raises ModelError if Megatron would not compute what the configuration says."""
    kind = config.model_type
    odd = [
        what
        for what, present in {
            f"model_type={kind}": kind not in ("qwen2", "llama"),
            f"hidden_act={getattr(config, 'hidden_act', None)}": getattr(config, "hidden_act", "silu") != "silu",
            "sliding-window attention": getattr(config, "use_sliding_window", False),
            "a bias in o_proj": kind == "llama" and getattr(config, "attention_bias", False),
            "a bias in the MLP": getattr(config, "mlp_bias", False),
            f"rope_type={rope(config)[1]}": rope(config)[1] not in ("default", "llama3"),
        }.items()
        if present
    ]
    if odd:
        raise ModelError(
            f"strategy=megatron does not support models with {', '.join(odd)}",
            hint="use Qwen2 or Llama, or strategy=fsdp",
        )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Dimensions(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head=head,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        qkv_bias=kind == "qwen2",
        tied=bool(config.tie_word_embeddings) and not value,
        value=value,
    )


def rope(config: PretrainedConfig) -> tuple[float, str, float]:
    """Base, type and scaling factor of the rotary positions, from transformers 4's or 5's place for them."""
    scaling = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "llama3" and any(scaling.get(name) != number for name, number in LLAMA3_SCALING.items()):
        kind = "llama3 with factors of its own"
    base = scaling.get("rope_theta", getattr(config, "rope_theta", 10000.0))
    return float(base), str(kind), float(scaling.get("factor", 1.0))


def fitting(model: Dimensions, tensor: int, pipeline: int) -> None:
    """Raises ModelError if the model cannot be split over so many ranks."""
    shape = Shape(model.heads, model.groups, model.ffn, model.layers)
    for kind, what in megatron_misfits(shape, tensor, pipeline):
        size = tensor if kind == "tensor" else pipeline
        raise ModelError(
            f"cannot split {what} over {kind}_model_parallel_size={size}", hint="choose a divisor as the parallel size"
        )
