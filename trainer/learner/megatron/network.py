"""Megatron's GPT model for a Hugging Face configuration: Qwen2 and Llama.

Built from Megatron's own layers, without TransformerEngine and apex. Two parts are ours: attention goes through torch's
fused kernel instead of whole score matrices, and RMSNorm takes part in sequence parallelism.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig

from trainer.config.schema import MegatronConfig
from trainer.learner.megatron.structure import rope
from trainer.learner.megatron.weights import Dimensions, entries


class FusedAttention(nn.Module):
    """Causal attention of each sequence, [S, B, heads, head] -> [S, B, heads * head]; rows begin at position 0."""

    def __init__(self, config: TransformerConfig, attn_mask_type: AttnMaskType, **_: Any) -> None:
        super().__init__()
        assert attn_mask_type == AttnMaskType.causal and config.attention_dropout == 0.0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return out.permute(2, 0, 1, 3).flatten(2)


class RmsNorm(nn.Module):
    """As transformers computes it: in float32, the weight applied after the cast back."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.eps = eps
        # Each tensor rank sees a part of the sequence, so Megatron must add up the weight's gradients.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class ValueHead(nn.Linear):
    """In place of the output layer: a value per position, [S, B, hidden] -> [S, B, 1]; the same on all tensor ranks."""

    sequence_parallel = False  # Megatron asks it of an output layer

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.hidden_size, 1, dtype=config.params_dtype)
        self._split = config.sequence_parallel
        for parameter in self.parameters():
            parameter.sequence_parallel = self._split  # type: ignore[attr-defined]

    def forward(self, hidden_SBD: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        values_SB1 = super().forward(hidden_SBD)
        if self._split:
            values_SB1 = gather_from_sequence_parallel_region(values_SB1, tensor_parallel_output_grad=False)
        return values_SB1, None


def build(structure: PretrainedConfig, model: Dimensions, megatron: MegatronConfig, dtype: torch.dtype) -> GPTModel:
    """This rank's part of the model on the host or current device, its weights not yet filled in."""
    config = transformer_config(structure, model, megatron, dtype)
    base, kind, factor = rope(structure)
    network = GPTModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules([layer_spec()] * _layers_here(model), layer_norm=RmsNorm),
        vocab_size=model.padded_vocab(config.tensor_model_parallel_size),
        max_sequence_length=structure.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=model.tied,
        position_embedding_type="rope",
        rotary_base=base,
        rope_scaling=kind == "llama3",
        rope_scaling_factor=factor,
    )
    if model.value and network.post_process:
        network.output_layer = ValueHead(config)
    _mark_split(network, model)
    return network


def _mark_split(network: GPTModel, model: Dimensions) -> None:
    """Tells Megatron which parameters are slices: it does so itself only while it draws initial weights.

    The gradient's norm depends on it: what is not marked is taken for a copy and counted once.
    """
    parameters, stages = dict(network.named_parameters()), parallel_state.get_pipeline_model_parallel_world_size()
    for entry in entries(model, stages):
        here = entry.stage == parallel_state.get_pipeline_model_parallel_rank()
        if here and entry.kind != "same":
            parameter = parameters[entry.local_name(model.layers // stages)]
            if not hasattr(parameter, "tensor_model_parallel"):
                set_tensor_model_parallel_attributes(parameter, True, 1 if entry.kind == "row" else 0, 1)


def _layers_here(model: Dimensions) -> int:
    return model.layers // int(parallel_state.get_pipeline_model_parallel_world_size())


def transformer_config(
    structure: PretrainedConfig, model: Dimensions, megatron: MegatronConfig, dtype: torch.dtype
) -> TransformerConfig:
    tensor, pipeline = megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        num_query_groups=model.groups,
        kv_channels=model.head,
        gated_linear_unit=True,
        activation_func=functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=structure.rms_norm_eps,
        add_bias_linear=False,
        add_qkv_bias=model.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        sequence_parallel=megatron.sequence_parallel and tensor > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        variable_seq_lengths=pipeline > 1,  # micro-batches are as long as their longest row
        moe_token_dispatcher_type="alltoall",  # the one that Megatron lets lengths vary with, experts or not
        bf16=dtype is torch.bfloat16,
        use_cpu_initialization=not torch.cuda.is_available(),
        perform_initialization=False,  # weights come from a folder
        calculate_per_token_loss=True,  # gradients are summed over ranks: the loss is normalised already
        gradient_accumulation_fusion=False,  # apex's
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        **asdict(megatron.override_transformer_config),
    )


def layer_spec() -> ModuleSpec:
    """One decoder layer of Megatron's own parallel layers."""
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear, core_attention=FusedAttention, linear_proj=RowParallelLinear
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RmsNorm,
            self_attention=ModuleSpec(
                module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RmsNorm,
            mlp=ModuleSpec(
                module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )
