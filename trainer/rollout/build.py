"""The engine that `rollout.name` asks for, on this rank."""

from __future__ import annotations

import os
from typing import Any

import torch

from trainer.config.agents import stop_texts
from trainer.config.schema import Config
from trainer.interfaces import Engine
from trainer.learner.models import Source, actor_dtype, empty_causal_lm, read_config
from trainer.model_path import local_path
from trainer.rollout import deadlines, memory, replicas, vllm
from trainer.rollout.server import EngineSpec

MEGABYTE = 2**20
TOKENS = 256  # lengths are rounded up to such steps, so that an engine fits the next run, too


def build_engine(config: Config, source: Source, device: torch.device, tokenizer: Any) -> Engine:
    """Collective for engines in processes of their own. Raises ConfigError, EngineError, ModelError."""
    ends = eos_ids(tokenizer, source)
    if config.actor_rollout_ref.rollout.name == "hf":
        return _hf(config, source, device, ends, tokenizer)
    return _remote(config, source, device, ends, tokenizer.pad_token_id)


def _hf(config: Config, source: Source, device: torch.device, ends: list[int], tokenizer: Any) -> Engine:
    from trainer.rollout.hf import HfEngine

    structure = read_config(source)
    dtype = actor_dtype(config.actor_rollout_ref.actor, device.type)
    with device:
        model = empty_causal_lm(source, structure, dtype)
    return HfEngine(
        model,
        eos_ids=ends,
        pad_id=tokenizer.pad_token_id,
        max_sequences=config.actor_rollout_ref.rollout.max_num_seqs,
        decode=tokenizer.decode,
    )


def _remote(config: Config, source: Source, device: torch.device, ends: list[int], pad_id: int) -> Engine:
    from trainer.rollout.remote import Limits, RemoteEngine

    rollout = config.actor_rollout_ref.rollout
    dtype = actor_dtype(config.actor_rollout_ref.actor, device.type)
    structure = read_config(source)
    spec = spec_of(config, local_path(source.path), str(dtype).removeprefix("torch."), device.type)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in empty_causal_lm(source, structure, dtype).parameters())
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0
    limits = Limits(
        timeout_s=deadlines.of_call(config),
        update_s=deadlines.of_update(config),
        bucket_bytes=rollout.update_weights_bucket_megabytes * MEGABYTE,
        memory_bytes=int(rollout.gpu_memory_utilization * total),
        needed=memory.needed(
            parameters,
            structure,
            tokens=spec.max_tokens,
            itemsize=dtype.itemsize,
            tensor_parallel=rollout.tensor_model_parallel_size,
        ),
    )
    spec = replicas.suited(
        spec,
        rollout.engine_kwargs.sglang.replicas,
        limits.needed,
        limits.memory_bytes,
        len(os.sched_getaffinity(0)) // config.trainer.n_gpus_per_node,
    )
    return RemoteEngine(
        spec,
        limits,
        device=device,
        eos_ids=ends,
        pad_id=pad_id,
    )


def spec_of(config: Config, model: str, dtype: str, device: str) -> EngineSpec:
    """What an engine is started with, from the configuration."""
    rollout = config.actor_rollout_ref.rollout
    options = vars(getattr(rollout.engine_kwargs, rollout.name))
    if rollout.name == "vllm":
        options = {**options, "logprobs_mode": vllm.logprobs_mode(rollout)}
    tokens = config.data.max_prompt_length + config.data.max_response_length
    written = config.actor_rollout_ref.model.tokenizer_path
    return EngineSpec(
        name=rollout.name,
        model=model,
        trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
        dtype=dtype,
        device=device,
        tensor_parallel=rollout.tensor_model_parallel_size,
        memory_share=rollout.gpu_memory_utilization,
        max_sequences=rollout.max_num_seqs,
        max_tokens=-(-tokens // TOKENS) * TOKENS,
        cuda_graphs=not rollout.enforce_eager,
        releases_memory=rollout.free_cache_engine,
        seed=config.trainer.seed,
        options={name: value for name, value in options.items() if value is not None and name != "replicas"},
        tokenizer=(local_path(written) if written else model) if stop_texts(config) else "",
    )


def eos_ids(tokenizer: Any, source: Source) -> list[int]:
    """The tokens that end a response: the tokenizer's, and those of the model's generation configuration."""
    from transformers import GenerationConfig

    ids = [tokenizer.eos_token_id]
    try:
        declared = GenerationConfig.from_pretrained(local_path(source.path)).eos_token_id
    except OSError:  # a model folder may do without one
        declared = None
    ids += declared if isinstance(declared, list) else [declared]
    return [i for i in ids if i is not None]
