"""The engine `sglang`: what `server.EngineServer` asks of an engine, in SGLang's terms. 0.5.17 and later.

A failing child of SGLang's ends the process that it is in, which is why that process is an actor of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from trainer.errors import EngineError
from trainer.rollout.exchange import Asked, Dropped, Line
from trainer.rollout.server import GATHER_S, Answer, Draw, EngineSpec, PartSpec, refused_prompt
from trainer.rollout.versions import require_version

LOADER = "trainer.rollout.inside.sglang_load"
# verl's name, SGLang's own once, and today's: it has graphs for prompts too.
SPELLINGS = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode"}
MOST_GRAPHED = 1024  # sequences: beyond it each size that is captured costs more memory and time than it saves
# Of Python's garbage collector. Scheduler and tokenizer manager make objects by the thousand at each token, hardly any
# of them in cycles; by Python's own thresholds all are looked through again and again: docs/results/generation.md.
COLLECT_AFTER = [100_000, 50, 50]
CPU_TOKENS = 2**17  # of the KV cache at most; without a limit SGLang takes a share of the host's whole memory


def start(spec: EngineSpec, part: PartSpec) -> SglangEngine:
    """Raises ConfigError if SGLang is missing or too old, EngineError if it does not come up."""
    require_version("sglang", part.where)
    environment(spec, part)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    from sglang import Engine

    engine = Engine(**arguments(spec, part))
    if part.node_rank == 0:
        engine.flush_cache()  # the first call sets handlers of its own
        # Until 0.5.17 the thresholds are this process's alone. What there is by now, each collection of the scheduler's
        # would look through; newer ones set its thresholds with this call, too.
        engine.freeze_gc()
        # Its SIGTERM would wait for requests to drain, and Ray for the actor to end.
        engine.loop.remove_signal_handler(signal.SIGTERM)
    signal.signal(signal.SIGTERM, on_sigterm)
    return SglangEngine(engine, part)


def environment(spec: EngineSpec, part: PartSpec) -> None:
    """What SGLang reads from the environment, before it is imported."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning")  # of each process: what this machine is not
    if part.node_rank > 0:
        os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] = "0"  # the constructor returns, as on the first node
    if spec.device == "cpu":
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if spec.tensor_parallel > 1:  # one word per rank: its cores
            cores = sorted(os.sched_getaffinity(0))
            ranks = range(spec.tensor_parallel)
            bind = "|".join(str(cores[rank % len(cores)]) for rank in ranks)
            os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", bind)


def arguments(spec: EngineSpec, part: PartSpec) -> dict[str, Any]:
    """SGLang's server arguments."""
    cuda = spec.device == "cuda"
    chosen: dict[str, Any] = {
        "model_path": spec.model,
        "load_format": "dummy",  # the weights come from the trainer
        "trust_remote_code": spec.trust_remote_code,
        "dtype": spec.dtype,
        "device": spec.device,
        "tp_size": spec.tensor_parallel,
        "mem_fraction_static": spec.memory_share,
        "max_running_requests": spec.max_sequences,
        "random_seed": spec.seed,
        "disable_cuda_graph": not (cuda and spec.cuda_graphs),
        "enable_memory_saver": cuda and spec.releases_memory,
        # What is released is lost, and a generation may follow without an update in between.
        "enable_weights_cpu_backup": cuda and spec.releases_memory,
        "custom_weight_loader": [LOADER],
        "skip_tokenizer_init": not spec.tokenizer,  # tokens in, tokens out
        "skip_server_warmup": True,
        "gc_threshold": COLLECT_AFTER,
        "sleep_on_idle": True,  # else an idle engine takes a whole core while the trainer works
        "log_level": "error",
    }
    if spec.tokenizer:
        chosen["tokenizer_path"] = spec.tokenizer
    if spec.cache_tokens:
        chosen["max_total_tokens"] = spec.cache_tokens
    if spec.small:
        # The GPU's work for a token is short: what is saved by preparing the next one beside it costs more than it.
        chosen["disable_overlap_schedule"] = True
    if not chosen["disable_cuda_graph"]:
        # Without graphs for as many sequences as there are, SGLang decodes without any, four times slower.
        chosen["cuda_graph_max_bs_decode"] = min(spec.max_sequences, MOST_GRAPHED)
    if not cuda:
        tokens = min(CPU_TOKENS, spec.max_sequences * spec.max_tokens)
        chosen |= {"attention_backend": "torch_native", "sampling_backend": "pytorch", "max_total_tokens": tokens}
    if part.nodes > 1:
        chosen |= {
            "nnodes": part.nodes,
            "node_rank": part.node_rank,
            "dist_init_addr": part.address,
            "disable_custom_all_reduce": True,  # it is for GPUs of one host
        }
    else:
        chosen["nccl_port"] = int(part.address.rpartition(":")[2])  # engines that start at once must not meet
    return chosen | {SPELLINGS.get(name, name): value for name, value in spec.options.items()}


class SglangEngine:
    """Implements `server.Adapter`."""

    def __init__(self, engine: Any, part: PartSpec) -> None:
        self.version = metadata.version("sglang")
        self._engine = engine
        self._name = f"sglang engine {part.engine} ({self.version})"
        self._updating = False

    def generate(self, prompts: Sequence[Sequence[int]], draw: Draw) -> Iterator[list[Answer]]:
        """All at once. Each is left in one queue when it is done: nobody looks through a thousand for it."""
        loop, parameters = self._engine.loop, sampling_parameters(draw)
        finished: asyncio.Queue[asyncio.Task[Answer]] = asyncio.Queue()
        pending = {loop.create_task(self._answer(i, ids, parameters)) for i, ids in enumerate(prompts)}
        for task in pending:
            task.add_done_callback(finished.put_nowait)
        try:
            while pending:
                done = loop.run_until_complete(_gathered(finished, len(pending)))
                pending -= done
                yield [task.result() for task in done]
        finally:
            for task in pending:  # after one that failed
                task.cancel()

    def converse(self, line: Line, draw: Draw) -> None:
        self._engine.loop.run_until_complete(self._converse(line, draw))

    async def _converse(self, line: Line, draw: Draw) -> None:
        """Each request is a task. What the rank says and tasks that fail come through one queue."""
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[Asked | Dropped | Exception | None] = asyncio.Queue()

        def hear(said: Asked | Dropped | None) -> None:
            with contextlib.suppress(RuntimeError):  # this side has ended first, and the loop with it
                loop.call_soon_threadsafe(heard.put_nowait, said)

        line.listen(hear)
        open_: dict[int, asyncio.Task[None]] = {}

        async def turn(asked: Asked) -> None:
            parameters = sampling_parameters(replace(draw, max_new_tokens=asked.most))
            try:
                answer = await self._answer(asked.row, asked.ids, parameters)
            except Exception as error:  # noqa: BLE001 - it ends the conversations: nobody else waits for this task
                heard.put_nowait(error)
            else:
                line.answer(asked.row, answer.token_ids, answer.logprobs)

        try:
            while (said := await heard.get()) is not None:
                if isinstance(said, Exception):
                    raise said
                if isinstance(said, Asked):
                    open_[said.row] = loop.create_task(turn(said))
                elif said.row in open_:
                    open_[said.row].cancel()
        finally:
            for task in open_.values():
                task.cancel()
            await asyncio.gather(*open_.values(), return_exceptions=True)

    async def _answer(self, index: int, prompt: Sequence[int], parameters: dict[str, Any]) -> Answer:
        name = uuid.uuid4().hex
        try:
            output = await self._engine.async_generate(
                input_ids=[int(token) for token in prompt], sampling_params=parameters, return_logprob=True, rid=name
            )
        except ValueError as error:
            raise refused_prompt(self._name, len(prompt), str(error)) from error
        except asyncio.CancelledError:
            self._engine.tokenizer_manager.abort_request(rid=name)  # before 0.5.20 it would be computed to its end
            raise
        meta = output["meta_info"]
        finish = meta.get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise refused_prompt(self._name, len(prompt), finish.get("message", "no reason given"))
        logprobs = [float(entry[0]) for entry in meta["output_token_logprobs"]]
        return Answer(index, [int(token) for token in output["output_ids"]], logprobs)

    def send(self, message: str) -> None:
        import torch

        alone = not self._updating
        if alone:
            self._session("begin")
        # Nothing but the message travels: a tensor with numbers in it lies in memory that no other node can open.
        nothing = torch.empty(0)
        self._require("update_weights_from_tensor", [(message, nothing)], load_format=LOADER, flush_cache=False)
        if alone:
            self._session("end")

    def begin_update(self) -> None:
        if self._updating:  # the last one came to no end
            self._session("end")
        self._session("begin")
        self._updating = True

    def end_update(self) -> None:
        self._updating = False
        self._session("end")
        self._engine.flush_cache()  # what it remembers of prompts belongs to the old weights

    def _session(self, which: str) -> None:
        """0.5.21 and later refuse updates outside of these two calls."""
        call = f"{which}_weight_update"
        if hasattr(self._engine, call):
            self._require(call)

    def release(self) -> None:
        self._engine.release_memory_occupation(tags=["kv_cache", "weights"])

    def resume(self, what: str) -> None:
        self._engine.resume_memory_occupation(tags=[what])

    def _require(self, call: str, *args: Any, **kwargs: Any) -> None:
        """SGLang's calls answer `(False, why)`, and go on, where others raise."""
        ok, why = accepted(getattr(self._engine, call)(*args, **kwargs))
        if not ok:
            raise EngineError(
                f"{self._name} refused {call}: {why}",
                hint="its log says more: actor_rollout_ref.rollout.engine_kwargs.sglang.log_level=info",
            )


async def _gathered(finished: asyncio.Queue[asyncio.Task[Answer]], most: int) -> set[asyncio.Task[Answer]]:
    """The first that is done, and what else is within a moment of it."""
    done = {await finished.get()}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GATHER_S):
            while len(done) < most:
                done.add(await finished.get())
    return done


def accepted(answer: Any) -> tuple[bool, str]:
    """Whether one of SGLang's calls did what it was asked: a pair, or an object with the same two fields.

    >>> accepted((False, "no session is open"))
    (False, 'no session is open')
    """
    if isinstance(answer, (tuple, list)) and len(answer) >= 2:
        return bool(answer[0]), str(answer[1])
    return bool(getattr(answer, "success", True)), str(getattr(answer, "message", ""))


def sampling_parameters(draw: Draw) -> dict[str, Any]:
    """SGLang's names. Its log-probs are of the temperature-scaled distribution, before top-p and top-k."""
    given: dict[str, Any] = {
        "max_new_tokens": draw.max_new_tokens,
        "temperature": draw.temperature,
        "top_p": draw.top_p,
        "top_k": draw.top_k,
        "stop_token_ids": list(draw.stop_ids) or None,
        "ignore_eos": not draw.stop_ids,
    }
    if draw.stop:
        # Not `stop`: for such a text SGLang looks through as many tokens as its tokenizer makes of it, and a model may
        # spell it in more. For a pattern it looks through one per character.
        given |= {"stop_regex": [re.escape(text) for text in draw.stop], "no_stop_trim": True}
    return given
