"""The stub that stands for SGLang (`stub_engine`), for processes that tests start."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pace import stretched
from tests.trainer.runs import ROOT
from trainer.rollout import exchange
from trainer.rollout.exchange import Asked, Door
from trainer.rollout.server import Draw, EngineSpec, PartSpec

STUB = Path(__file__).parent / "stub_engine"
DRAW = Draw(max_new_tokens=4, temperature=0.7, top_p=0.9, top_k=5, stop_ids=(1, 2), seed=0)
PART = PartSpec(engine=3, node_rank=0, nodes=1, gpus="0", address="127.0.0.1:5000")


class Conversation:
    """An engine in this process, over stand-ins, that is spoken to by its rank."""

    def __init__(self, engine: Any, folder: Path, draw: Draw = DRAW) -> None:
        self._engine, self._draw, self._door = engine, draw, Door(str(folder))
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._converse)
        self._thread.start()
        self.line = exchange.meet(str(folder), 0, "session")
        self.line.settimeout(stretched(20.0))

    def _converse(self) -> None:
        try:
            with self._door.opened("session") as line:
                self._engine.converse(line, self._draw)
        except Exception as error:  # noqa: BLE001 - also what an engine raises itself
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def ask(self, *asked: Asked) -> None:
        for each in asked:
            exchange.ask(self.line, each)

    def answer(self) -> tuple[int, list[int], list[float]]:
        return exchange.answer_on(self.line)

    def hang_up(self) -> None:
        self.line.close()

    def ended(self) -> BaseException | None:
        """What it raised, at its end."""
        return self._ended.exception(stretched(20.0))

    def close(self) -> None:
        self.hang_up()
        self._thread.join(stretched(20.0))
        self._door.close()


def stub_in(folder: Path, version: str = "0.5.23") -> dict[str, str]:
    """The environment of processes that find the stub installed in this version; `folder` tells it what to do."""
    metadata = folder / "sglang.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return {"PYTHONPATH": os.pathsep.join([str(STUB), str(folder), str(ROOT)]), "STUB_SGLANG": str(folder)}


def spec_of(model: str, **changes: Any) -> EngineSpec:
    """Of SGLang on a CPU, with these changes."""
    spec = EngineSpec(
        name="sglang",
        model=model,
        trust_remote_code=False,
        dtype="float32",
        device="cpu",
        tensor_parallel=1,
        memory_share=0.3,
        max_sequences=8,
        max_tokens=64,
        cuda_graphs=False,
        releases_memory=True,
        seed=7,
    )
    return replace(spec, **changes)


def gpu_spec(name: str) -> EngineSpec:
    """Of this engine on a GPU, with half of its memory."""
    return spec_of("/m", name=name, device="cuda", dtype="bfloat16", memory_share=0.5, cuda_graphs=True, max_tokens=512)
