"""Models from a local folder or hub id, loaded once per run and sharded over the ranks.

Rank 0 reads the weights; the other ranks build the model without storage and receive only their shards. So the host
memory that loading takes does not grow with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from trainer.config.fits import USUAL
from trainer.config.schema import ActorConfig, Config, FsdpConfig, MegatronConfig
from trainer.errors import ModelError, TrainerError
from trainer.learner.compiling import compile_layers, compiler_works
from trainer.learner.lora import Adapters, adapt
from trainer.learner.lora_files import read_factors
from trainer.learner.scaling import LossScale
from trainer.learner.tensor_files import save_tensors
from trainer.model_path import UNREADABLE, local_path, reason
from trainer.precision import in_precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VALUE_HEAD_FILE = "value_head.safetensors"
Found = TypeVar("Found")

# Its progress bars and load reports, from every rank and for three models, bury what a run has to say.
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


class ValueModel(nn.Module):
    """A language model's backbone and a linear head that gives each position a value."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.config.get_text_config().hidden_size
        self.value_head = nn.Linear(width, 1)
        # As transformers initialises a new head: the first values are near 0, and the backbone gets a gradient at once.
        nn.init.normal_(self.value_head.weight, std=getattr(backbone.config, "initializer_range", 0.02))
        nn.init.zeros_(self.value_head.bias)

    def forward(self, **inputs: Any) -> Tensor:
        """Values [B, S, 1]."""
        hidden_BSD = self.backbone(**inputs | {"use_cache": False}).last_hidden_state
        # A copy: linear gives a view here, and FSDP2's hook on the output would not survive an in-place change of one.
        return self.value_head(hidden_BSD).clone()  # type: ignore[no-any-return]

    def save_pretrained(self, folder: str | Path) -> None:
        self.backbone.save_pretrained(folder)
        save_tensors(self.value_head.state_dict(), Path(folder) / VALUE_HEAD_FILE)


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    path: str
    trust_remote_code: bool
    seed: int  # of weights that the folder does not hold, such as a new value head


def read_config(source: Source) -> PretrainedConfig:
    """The model's configuration, dropout off: the log-probs of rollout, old and new policy must be comparable.

    Raises ModelError if the folder or hub id holds none.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            local_path(source.path), trust_remote_code=source.trust_remote_code
        )
    except UNREADABLE as error:
        raise unusable(source.path, error) from error
    for name in list(config.to_dict()):
        if name.endswith(("dropout", "_pdrop", "dropout_rate", "dropout_prob")) and getattr(config, name):
            setattr(config, name, 0.0)
    return config


def unusable(path: str, error: Exception) -> ModelError:
    return ModelError(
        f"cannot load a model from {path}: {reason(error)}",
        hint="give a folder with config.json and weights, or a hub id, as actor_rollout_ref.model.path",
    )


def read_causal_lm(source: Source, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The whole language model with its weights, on the host."""
    return _with_weights(AutoModelForCausalLM, source, config, dtype)


def _with_weights(kind: Any, source: Source, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Raises ModelError where the folder lacks some: transformers makes those up, and only warns."""
    try:
        model, found = kind.from_pretrained(
            local_path(source.path),
            config=config,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            **in_precision(dtype),
        )
    except UNREADABLE as error:
        raise unusable(source.path, error) from error
    if lacking := sorted(found["missing_keys"]):
        raise ModelError(
            f"the model in {source.path} lacks {len(lacking)} of its weights: {lacking[0]}",
            hint="its config.json is another model's, or its weights are incomplete: copy it again",
        )
    return model  # type: ignore[no-any-return]


def empty_causal_lm(source: Source, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(  # type: ignore[no-any-return]
        config, trust_remote_code=source.trust_remote_code, **in_precision(dtype)
    )


def read_value_model(source: Source, config: PretrainedConfig, dtype: torch.dtype) -> ValueModel:
    """The backbone with its weights and the value head: the folder's own if it has one, a new one otherwise."""
    backbone = _with_weights(AutoModel, source, config, dtype)
    torch.manual_seed(source.seed)
    model = ValueModel(backbone).to(dtype)
    head = Path(local_path(source.path)) / VALUE_HEAD_FILE
    if head.exists():
        model.value_head.load_state_dict(load_file(head))
    return model


def empty_value_model(source: Source, config: PretrainedConfig, dtype: torch.dtype) -> ValueModel:
    backbone = AutoModel.from_config(config, trust_remote_code=source.trust_remote_code, **in_precision(dtype))
    return ValueModel(backbone).to(dtype)


def sharded(
    kind: str,
    source: Source,
    config: FsdpConfig,
    mesh: DeviceMesh,
    *,
    checkpointing: bool,
    recompute: str = "full",
    budget: float | None = None,
    adapters: Adapters | None = None,
) -> nn.Module:
    """A "causal_lm" or "value" model as FSDP2 shards over `mesh`, weights in place, on the mesh's device.

    With `checkpointing`, `recompute` says what of a layer is computed again for the gradient: "full" or "selective".
    For "selective" a compiled layer keeps the share `budget` of its activations, those that cost most to compute; one
    that is not compiled keeps its products. With `adapters`, they train and the weights do not.

    Collective. Raises ModelError on every rank if rank 0 cannot read the model.
    """
    read, empty = {
        "causal_lm": (read_causal_lm, empty_causal_lm),
        "value": (read_value_model, empty_value_model),
    }[kind]
    dtype = DTYPES[config.model_dtype]
    structure = read_config(source)
    whole = on_rank_0(lambda: _adapted(read(source, structure, dtype), adapters))
    with torch.device("meta"):
        model = empty(source, structure, dtype)
    if adapters is not None:
        adapt(model, adapters)
    selective = recompute == "selective"
    compiles = bool(config.use_torch_compile) and compiler_works(mesh.device_type)
    if checkpointing and not (selective and compiles):
        _checkpoint_activations(_language_model(model), selective=selective)
    _shard(model, config, mesh)
    if compiles:
        share = USUAL if budget is None else budget
        compile_layers(_layers(model), share if checkpointing and selective else 1.0)
    _fill(model, whole, torch.device(mesh.device_type))
    return model


def _adapted(whole: nn.Module, adapters: Adapters | None) -> nn.Module:
    """Raises ModelError where the adapters do not fit."""
    if adapters is not None:
        adapt(whole, adapters)
        if adapters.path is not None:
            read_factors(whole, adapters)
    return whole


def compute_dtype(config: FsdpConfig | MegatronConfig, device_type: str) -> torch.dtype:
    """`auto` is bf16 on a GPU that computes in it; fp32 on a CPU, where bf16 is slow and its rounding hides mistakes.

    On a GPU from before Ampere, such as the V100, it is fp16, which is scaled; where it can not be, fp32.
    """
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device_type != "cuda":
        return torch.float32
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float16 if isinstance(config, FsdpConfig) and config.model_dtype == "fp32" else torch.float32


def actor_dtype(config: ActorConfig, device_type: str) -> torch.dtype:
    """What the actor computes in, on its training engine, and so what a copy of it does."""
    return compute_dtype(config.megatron if config.strategy == "megatron" else config.fsdp_config, device_type)


def first_loss_scale(config: FsdpConfig, device_type: str) -> LossScale | None:
    """Only fp16 needs one: bf16 has the range of fp32."""
    return LossScale() if compute_dtype(config, device_type) == torch.float16 else None


def on_rank_0(read: Callable[[], Found]) -> Found | None:
    """`read()` on rank 0, None elsewhere; its TrainerError is raised on every rank, so that none waits."""
    outcome: list[Any] = [None]
    whole = None
    if dist.get_rank() == 0:
        try:
            whole = read()
        except TrainerError as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]
    return whole


def _language_model(model: nn.Module) -> PreTrainedModel:
    return model.backbone if isinstance(model, ValueModel) else model  # type: ignore[return-value]


def _checkpoint_activations(model: PreTrainedModel, *, selective: bool) -> None:
    """Under the name that this transformers has for it; the older one warns in 5.x."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    kept = {"context_fn": partial(create_selective_checkpoint_contexts, _keep_products)} if selective else {}
    enable({"use_reentrant": False, **kept})


# What costs most to compute again: matrix products and attention. The rest of a layer reads and writes memory only.
PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"}
    | {"_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "_varlen_attn"}
    | {"_flash_attn_varlen_forward"}
)


def _keep_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """The policy of selective checkpointing (Korthikanti et al. 2022, turned around: what is dear is kept)."""
    kept = operator.name().partition("::")[2].partition(".")[0] in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _layers(model: nn.Module) -> list[nn.Module]:
    """The transformer layers, by the class that the model names; FSDP puts its own before it."""
    names = set(_language_model(model)._no_split_modules or [])
    return [module for module in model.modules() if any(kind.__name__ in names for kind in type(module).__mro__)]


def _shard(model: nn.Module, config: FsdpConfig, mesh: DeviceMesh) -> None:
    """Each layer is a unit of its own, so that only one is whole at a time."""
    dtype = compute_dtype(config, mesh.device_type)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "reshard_after_forward": config.reshard_after_forward is not False,
    }
    for layer in _layers(model):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if config.reshard_after_forward is False:  # then not between the passes of a mini-batch either
        model.set_reshard_after_backward(False)  # type: ignore[operator]


def _fill(model: nn.Module, whole: nn.Module | None, device: torch.device) -> None:
    """Rank 0's weights and buffers into every rank's, on `device`."""
    model.to_empty(device=device)
    _language_model(model).tie_weights()
    state = whole.state_dict() if whole is not None else {}
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    # Buffers that are not in the state dict, such as rotary frequencies, have no storage yet.
    buffers = dict(whole.named_buffers()) if whole is not None else {}
    for name, buffer in model.named_buffers():
        if whole is not None:
            buffer.copy_(buffers[name])
        dist.broadcast(buffer, src=0)


def device_of(config: Config) -> str:
    """`trainer.device`, with `auto` told from what the worker was given."""
    wanted = config.trainer.device
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
