"""Rules about memory and tensor parallelism: whether the run fits on its GPUs, with the arithmetic.

    states     parameters, gradients and Adam's two moments of actor and critic, 4 bytes each, sharded over all ranks
    engine     gpu_memory_utilization of the GPU: the weights in bf16, sharded by tensor parallelism, and the KV cache
    rollout    engine + the states that are not offloaded, without gradients
    update     states that are not offloaded + gradients of one model at a time; the engine sleeps

Activations and logits come on top: what does not fit by this, does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from devkit.lint.check_keys import span_of
from devkit.lint.gpus import Gpu, usual_gpu
from devkit.lint.launch import Launch, Training
from devkit.lint.models import Size, size_of
from devkit.lint.records import Finding

_A, _R, _O = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
_TP, _SHARE, _MODEL = f"{_O}.tensor_model_parallel_size", f"{_O}.gpu_memory_utilization", "actor_rollout_ref.model.path"
_PARAMETERS, _GRADIENTS, _MOMENTS, _ENGINE = 4, 4, 8, 2  # bytes per parameter
_TIGHT = 0.95  # of a GPU: CUDA, NCCL and fragments need the rest


@dataclass(frozen=True)
class Need:
    """GB on one GPU, and how they add up."""

    total: float
    sum: str


def check(launch: Launch) -> Iterator[Finding]:
    for training in launch.trainings:
        is_ours = training.is_ours or launch.asked == "ours"
        if training.options or training.is_abridged:
            continue  # a config file of its own may say anything
        if (training.value(f"{_O}.name") or ("hf" if is_ours else None)) == "hf":
            continue  # no tensor parallelism and no engine's pool
        nodes, gpus = training.number("trainer.nnodes", 1), training.number("trainer.n_gpus_per_node", 8)
        tp = training.number(_TP, 1 if is_ours else 2)
        if nodes and gpus and tp and min(nodes, gpus, tp) >= 1 and max(nodes, gpus, tp) < 1e6:
            size = _size(training)
            if not is_ours:  # whose own check has said it
                yield from _divided(training, int(nodes), int(gpus), int(tp))
            yield from _headed(training, int(tp), size)
            yield from _memory(launch, training, int(nodes * gpus), int(tp), size)


def _size(training: Training) -> Size | None:
    path = training.value(_MODEL)
    return size_of(path) if path else None


def _divided(training: Training, nodes: int, gpus: int, tp: int) -> Iterator[Finding]:
    span = span_of(training, _TP, "trainer.n_gpus_per_node")
    if nodes * gpus % tp:
        default = "" if _TP in training.by_key else ", its default,"
        message = (
            f"{_TP}={tp}{default} does not divide the {nodes * gpus} GPUs ({nodes} node{'s' * (nodes > 1)} x {gpus})"
        )
        why = "the engines can't be spread evenly over the GPUs, and the run stops"
        yield Finding("tensor-parallel", span, message, why, f"choose a divisor of {nodes * gpus}")
    elif tp > gpus:
        message = f"{_TP}={tp} is more than the {gpus} GPUs of a node: each engine spans nodes"
        why = "only some engines support that, and every layer waits for the network"
        yield Finding("tensor-parallel", span, message, why, f"set it to at most {gpus}", "note")


def _headed(training: Training, tp: int, size: Size | None) -> Iterator[Finding]:
    if size is not None and size.heads and size.heads % tp:
        span = span_of(training, _TP, "trainer.n_gpus_per_node")
        message = f"{_TP}={tp} does not divide the model's {size.heads} attention heads"
        yield Finding(
            "tensor-parallel", span, message, "the engine refuses to start", f"choose a divisor of {size.heads}"
        )


def _memory(launch: Launch, training: Training, ranks: int, tp: int, size: Size | None) -> Iterator[Finding]:
    share = training.number(_SHARE, 0.5)
    if size is None or share is None or not 0 < share <= 1:
        return
    gpu = launch.gpu or usual_gpu()
    weights = size.billions * _ENGINE / tp
    span = span_of(training, _SHARE, _MODEL)
    if weights >= share * gpu.memory:
        message = (
            f"the engine's weights don't fit: {size.billions:g}B x {_ENGINE} B / {tp} = {weights:.1f} GB, and it gets"
            f" {share:g} x {gpu.memory:g} GB = {share * gpu.memory:.1f} GB ({gpu.origin})"
        )
        why = "the engine runs out of memory when it loads the model"
        yield Finding("gpu-memory", span, message, why, f"raise {_TP} or {_SHARE}")
        return
    if _is_special(training):
        return
    for need, when, hint in (
        (_rollout(training, ranks, size, share, gpu), "rollout", f"lower {_SHARE}, or offload: {_A}.fsdp_config.*"),
        (_update(training, ranks, size), "update", f"offload {_A}.fsdp_config.*, or use more GPUs"),
    ):
        yield from _too_much(training, need, when, hint, gpu)


def _is_special(training: Training) -> bool:
    """LoRA trains few parameters; Megatron and FSDP's own offloading hold the states in other ways."""
    lora = training.number("actor_rollout_ref.model.lora_rank", 0)
    words = {argument.value for argument in training.overrides}
    words |= {part for key in training.by_key for part in key.split(".")}
    return lora != 0 or "megatron" in words or training.is_on(f"{_A}.fsdp_config.offload_policy", False)


def _too_much(training: Training, need: Need, when: str, hint: str, gpu: Gpu) -> Iterator[Finding]:
    if need.total <= _TIGHT * gpu.memory:
        return
    is_over = need.total > gpu.memory
    message = f"{when} needs {need.total:.1f} GB of {gpu.memory:g} GB ({gpu.origin}): {need.sum}"
    why = "activations and logits need more on top: " + (
        "it can't fit" if is_over else "little memory is left for them"
    )
    span = span_of(training, _SHARE if when == "rollout" else _MODEL, _MODEL)
    yield Finding("gpu-memory", span, message, why, hint, "error" if is_over else "warning")


def _models(training: Training, size: Size) -> Iterator[tuple[str, float, str]]:
    """Each model that is trained: its name, its billions of parameters, and the section of its FSDP settings."""
    yield "actor", size.billions, f"{_A}.fsdp_config"
    estimator = training.value("algorithm.adv_estimator") or "gae"
    if training.is_on("critic.enable", estimator == "gae"):
        path = training.value("critic.model.path")
        critic = size_of(path) if path else None
        section = (
            "critic.fsdp" if any(k.startswith("critic.fsdp.") for k in training.by_key) else "critic.model.fsdp_config"
        )
        yield "critic", critic.billions if critic else size.billions, section


def _resident(training: Training, section: str) -> int:
    """Bytes per parameter that stay on the GPU between phases."""
    parameters = 0 if training.is_on(f"{section}.param_offload", False) else _PARAMETERS
    return parameters + (0 if training.is_on(f"{section}.optimizer_offload", False) else _MOMENTS)


def _rollout(training: Training, ranks: int, size: Size, share: float, gpu: Gpu) -> Need:
    models = list(_models(training, size))
    free = gpu.memory
    if training.value(f"{_O}.name") == "sglang":  # its share is of what is free when it starts
        free -= sum(b * _PARAMETERS / ranks for _, b, s in models if not training.is_on(f"{s}.param_offload", False))
    total, parts = share * free, [f"engine {share:g} x {free:.4g}"]
    for name, billions, section in models:
        resident = _resident(training, section)
        if resident:
            total += billions * resident / ranks
            parts.append(f"{name} {billions:g}B x {resident} B / {ranks} = {billions * resident / ranks:.1f}")
    if _has_reference(training) and not training.is_on(f"{_R}.fsdp_config.param_offload", False):
        total += size.billions * _PARAMETERS / ranks
        parts.append(f"reference {size.billions:g}B x {_PARAMETERS} B / {ranks} = {size.billions * 4 / ranks:.1f}")
    return Need(total, " + ".join(parts))


def _has_reference(training: Training) -> bool:
    return training.is_on("algorithm.use_kl_in_reward", False) or training.is_on(f"{_A}.use_kl_loss", False)


def _update(training: Training, ranks: int, size: Size) -> Need:
    """The largest of the updates: one model with everything, the others as they stay."""
    models = list(_models(training, size))
    needs = []
    whole = _PARAMETERS + _GRADIENTS + _MOMENTS
    for active, _, _ in models:
        parts, total = [], 0.0
        for name, billions, section in models:
            each = whole if name == active else _resident(training, section)
            if each:
                total += billions * each / ranks
                parts.append(f"{name} {billions:g}B x {each} B / {ranks} = {billions * each / ranks:.1f}")
        needs.append(Need(total, " + ".join(parts)))
    return max(needs, key=lambda need: need.total)
