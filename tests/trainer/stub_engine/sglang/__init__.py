"""In place of SGLang: its calls as `trainer.rollout.sglang` makes them, over a model that only holds weights.

A response is the prompt's last token, as often as it may be. STUB_SGLANG names a folder whose files say what to do:
`slow` (seconds) delays the start, `broken` ends it with its text as the last error; while `hang` is there, prompts that
begin with the token in it have no answer, all if none is in it. `generating` is there once one of these has come, and
`nodes` has each part's node (Ray's id). No weights are taken while `stuck` is there.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import ray
import torch
from torch import Tensor, nn

LONGEST = 64
KEY = b"stub"


class Engine:
    """One node's part, with one tensor-parallel rank."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self._folder = Path(os.environ["STUB_SGLANG"])
        if (slow := self._folder / "slow").exists():
            time.sleep(float(slow.read_text()))
        if (broken := self._folder / "broken").exists():
            sys.stderr.write(f"Traceback (most recent call last):\n{broken.read_text()}\nbye\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.loop = asyncio.new_event_loop()
        self._open = False
        self._others: list[Connection[Any, Any]] = []
        self._model = Holder(Path(arguments["model_path"]))
        nodes, rank = arguments.get("nnodes", 1), arguments.get("node_rank", 0)
        assert arguments["tp_size"] == nodes, "one rank a node"
        os.environ["STUB_RANK"] = str(rank)
        with (self._folder / "nodes").open("a") as file:
            node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "replica"
            file.write(f"{rank} {node}\n")
        if nodes > 1:
            host, _, port = arguments["dist_init_addr"].rpartition(":")
            self._meet((host, int(port)), rank, nodes)

    def _meet(self, address: tuple[str, int], rank: int, nodes: int) -> None:
        if rank == 0:
            with Listener(address, authkey=KEY) as listener:
                self._others = [listener.accept() for _ in range(nodes - 1)]
            return
        while True:
            try:
                first = Client(address, authkey=KEY)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        Thread(target=self._follow, args=(first,), daemon=True).start()

    def _follow(self, first: Connection[Any, Any]) -> None:
        with suppress(EOFError, ConnectionError):  # until the first part ends
            while True:
                self._load(*first.recv())
                first.send("done")

    def _load(self, message: str, loader: str) -> None:
        module, _, function = loader.rpartition(".")
        getattr(importlib.import_module(module), function)(self._model, [(message, torch.empty(0))])

    def update_weights_from_tensor(
        self, named_tensors: list[tuple[str, Tensor]], *, load_format: str, flush_cache: bool
    ) -> tuple[bool, str]:
        if not self._open:
            return False, "no session is open"
        [(message, _)] = named_tensors
        assert load_format in self.arguments["custom_weight_loader"] and not flush_cache
        while (self._folder / "stuck").exists():
            time.sleep(0.05)
        for other in self._others:
            other.send((message, load_format))
        self._load(message, load_format)
        for other in self._others:
            other.recv()
        return True, "Success"

    def begin_weight_update(self) -> tuple[bool, str]:
        self._open = True
        return True, ""

    def end_weight_update(self) -> tuple[bool, str]:
        self._open = False
        return True, ""

    async def async_generate(
        self, *, input_ids: list[int], sampling_params: dict[str, Any], return_logprob: bool, rid: str
    ) -> dict[str, Any]:
        if len(input_ids) > LONGEST:
            return {"meta_info": {"finish_reason": {"type": "abort", "message": "too long for the context"}}}
        await asyncio.sleep(0.01)
        hang = self._folder / "hang"
        if hang.exists() and hang.read_text() in ("", str(input_ids[0])):
            (self._folder / "generating").touch()
            while hang.exists():
                await asyncio.sleep(0.05)
        assert return_logprob
        tokens = [input_ids[-1]] * sampling_params["max_new_tokens"]
        logprobs = [(-0.5, token, None) for token in tokens]
        return {
            "output_ids": tokens,
            "meta_info": {"finish_reason": {"type": "length"}, "output_token_logprobs": logprobs},
        }

    def flush_cache(self) -> None:
        """Nothing is remembered."""

    def freeze_gc(self) -> None:
        """Nothing is made by the thousand."""

    def release_memory_occupation(self, tags: list[str]) -> None:
        """Nothing is held."""

    def resume_memory_occupation(self, tags: list[str]) -> None:
        """Nothing is held."""


class Holder(nn.Module):
    """The parameters of the model in `folder`, each whole on every rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        with (folder / "model.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                *path, last = name.split(".")
                self._at(path).register_parameter(last, nn.Parameter(torch.zeros(entry["shape"])))

    def _at(self, path: list[str]) -> nn.Module:
        module: nn.Module = self
        for name in path:
            if name not in dict(module.named_children()):
                module.add_module(name, nn.Module())
            module = module.get_submodule(name)
        return module

    def load_weights(self, tensors: Any) -> None:
        for name, tensor in tensors:
            self.get_parameter(name).data.copy_(tensor)
