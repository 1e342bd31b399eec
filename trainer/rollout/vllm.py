"""The engine `vllm`: what `server.EngineServer` asks of an engine, in vLLM's terms. 0.20 and later.

vLLM's core runs in the actor's own process, and with it the model, or a process per tensor-parallel rank: when that
process goes, nothing is left behind. A rank's process that dies takes it along.
"""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from trainer.config.schema import RolloutConfig
from trainer.quiet import errors_only
from trainer.rollout.exchange import Asked, Dropped, Line
from trainer.rollout.server import GATHER_S, Answer, Draw, EngineSpec, PartSpec, refused_prompt
from trainer.rollout.versions import require_version

_REFUSALS = frozenset({"ValueError", "VLLMValidationError"})  # the latter is no ValueError any more in 0.32
EXTENSION = "trainer.rollout.vllm_worker.TakesWeights"
CPU_WORKER = "trainer.rollout.vllm_cpu.PlainWorker"
CPU_CACHE = 2**30  # bytes of KV cache; without a figure vLLM takes a share of the host's whole memory


def start(spec: EngineSpec, part: PartSpec) -> VllmEngine:
    """Raises ConfigError if vLLM is missing or too old."""
    version = require_version("vllm", part.where)
    environment(spec)
    from vllm.engine.arg_utils import EngineArgs

    given = EngineArgs(**arguments(spec, part))
    if part.node_rank > 0:
        return VllmEngine(_workers(given), part, version)
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(given)
    engine.model_executor.register_failure_callback(_end)
    return VllmEngine(engine, part, version)


def _workers(given: Any) -> Any:
    """Another node's ranks. The first node's engine speaks to them."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    executor = MultiprocExecutor(given.create_engine_config(headless=True))
    executor.register_failure_callback(_end)
    return executor


def _end() -> NoReturn:
    """Called when a rank's process has died: an engine's processes end together."""
    os._exit(1)  # from a thread of vLLM's, while another may wait for that rank for ever


def environment(spec: EngineSpec) -> None:
    """What vLLM reads from the environment, before it is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # ours is rounded up; `data` has the real limits
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ["VLLM_LOGGING_LEVEL"] = str(spec.options.get("log_level", "error")).upper()
    if spec.device == "cpu":
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def arguments(spec: EngineSpec, part: PartSpec) -> dict[str, Any]:
    """vLLM's engine arguments."""
    cuda = spec.device == "cuda"
    chosen: dict[str, Any] = {
        "model": spec.model,
        "load_format": "dummy",  # the weights come from the trainer
        "trust_remote_code": spec.trust_remote_code,
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel,
        # Inside an actor it would choose Ray, for which there are no GPUs left.
        "distributed_executor_backend": "mp" if spec.tensor_parallel > 1 else "uni",
        "gpu_memory_utilization": spec.memory_share,
        "max_num_seqs": spec.max_sequences,
        "max_model_len": spec.max_tokens,
        "seed": spec.seed,
        "enforce_eager": not (cuda and spec.cuda_graphs),
        "enable_sleep_mode": cuda and spec.releases_memory,
        "worker_extension_cls": EXTENSION,
        "skip_tokenizer_init": not spec.tokenizer,  # tokens in, tokens out
        "generation_config": "vllm",  # none of the model's own defaults
        "disable_log_stats": True,
        "use_tqdm_on_load": not errors_only(spec.options),  # also where it captures graphs
    }
    if spec.tokenizer:
        chosen["tokenizer"] = spec.tokenizer
    if not cuda:
        chosen |= {"worker_cls": CPU_WORKER, "kv_cache_memory_bytes": CPU_CACHE}
    if part.nodes > 1:
        host, _, port = part.address.rpartition(":")
        chosen |= {
            "nnodes": part.nodes,
            "node_rank": part.node_rank,
            "master_addr": host,
            "master_port": int(port),
            "disable_custom_all_reduce": True,  # it is for GPUs of one host
        }
    return chosen | {name: value for name, value in spec.options.items() if name != "log_level"}


def logprobs_mode(rollout: RolloutConfig) -> str:
    """So that log-probs are of the temperature-scaled distribution before top-k and top-p.

    vLLM gives them before all of these, or after: a run that uses temperature and top-k or top-p together has those of
    the restricted distribution (`config.check` says so).
    """
    return "raw_logprobs" if rollout.temperature == 1.0 else "processed_logprobs"


class VllmEngine:
    """Implements `server.Adapter`. On another node than the first, it only holds that node's ranks."""

    def __init__(
        self, engine: Any, part: PartSpec, version: str, sampling: Callable[[Draw], Any] | None = None
    ) -> None:
        """`sampling` makes vLLM's `SamplingParams`."""
        self.version = version
        self._engine = engine
        self._sampling = sampling or sampling_parameters
        self._name = f"vllm engine {part.engine} ({version})"
        self._names = itertools.count()

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        open_: dict[str, int] = {}  # the index of each request
        sampling = self._sampling(draw)
        try:
            for index, prompt in enumerate(prompts):
                open_[self._add(prompt, sampling)] = index
            done: list[Answer] = []
            sent = time.monotonic()
            while open_:
                for output in self._engine.step():
                    if output.finished:
                        done.append(answer_of(open_.pop(output.request_id), output.outputs[0]))
                if not open_ or (done and time.monotonic() - sent >= GATHER_S):
                    yield done
                    done, sent = [], time.monotonic()
        finally:
            if open_:  # the next generation must not find them
                self._engine.abort_request(list(open_))

    def converse(self, line: Line, draw: Draw) -> None:
        """A step of the engine at a time; what was said meanwhile is heard before the next one."""
        heard: queue.SimpleQueue[Asked | Dropped | None] = queue.SimpleQueue()
        line.listen(heard.put)
        open_: dict[str, int] = {}  # the row of each request
        try:
            while True:
                while not open_ or not heard.empty():
                    said = heard.get()
                    if said is None:
                        return
                    if isinstance(said, Asked):
                        own = replace(draw, max_new_tokens=said.most, own_seed=said.seed)
                        open_[self._add(said.ids, self._sampling(own))] = said.row
                    else:
                        dropped = [name for name, row in open_.items() if row == said.row]
                        self._engine.abort_request(dropped)
                        open_ = {name: row for name, row in open_.items() if name not in dropped}
                for output in self._engine.step():
                    if output.finished:
                        answer = answer_of(open_.pop(output.request_id), output.outputs[0])
                        line.answer(answer.index, answer.token_ids, answer.logprobs)
        finally:
            if open_:
                self._engine.abort_request(list(open_))

    def _add(self, prompt: Sequence[int], sampling: Any) -> str:
        name = str(next(self._names))
        tokens = [int(token) for token in prompt]
        try:
            self._engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        except Exception as error:
            if _REFUSALS.isdisjoint(kind.__name__ for kind in type(error).__mro__):
                raise
            raise refused_prompt(self._name, len(prompt), str(error)) from error
        return name

    def send(self, message: str) -> None:
        self._engine.collective_rpc("take_weights", args=(message,))

    def begin_update(self) -> None:
        """Nothing to do: vLLM takes weights at any time."""

    def end_update(self) -> None:
        self._engine.reset_prefix_cache()  # what it remembers of prompts belongs to the old weights

    def release(self) -> None:
        # What is released is lost, but for the weights: a generation may follow without an update in between.
        self._engine.sleep(level=1)

    def resume(self, what: str) -> None:
        self._engine.wake_up(tags=[what])


def answer_of(index: int, completion: Any) -> Answer:
    """From vLLM's `CompletionOutput`, whose log-probs are a table for each token."""
    tokens = [int(token) for token in completion.token_ids]
    tables = zip(tokens, completion.logprobs, strict=True)
    return Answer(index, tokens, [float(table[token].logprob) for token, table in tables])


def sampling_parameters(draw: Draw) -> Any:
    """vLLM's `SamplingParams`."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(**named(draw), output_kind=RequestOutputKind.FINAL_ONLY)


def named(draw: Draw) -> dict[str, Any]:
    """vLLM's names."""
    given: dict[str, Any] = {
        "max_tokens": draw.max_new_tokens,
        "temperature": draw.temperature,
        "top_p": draw.top_p,
        "top_k": draw.top_k,
        "stop_token_ids": list(draw.stop_ids),
        "ignore_eos": not draw.stop_ids,
        "logprobs": 0,  # of the drawn token alone
        "detokenize": bool(draw.stop),
    }
    if draw.stop:  # which may be of special tokens, too
        given |= {"stop": list(draw.stop), "include_stop_str_in_output": True, "skip_special_tokens": False}
    return given if draw.own_seed is None else {**given, "seed": draw.own_seed}
