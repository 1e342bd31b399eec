"""`trainer.agent.tools.python.PythonTool`: runs Python that a model wrote, in a process with limits.

Its limits keep a run alive: time, memory, file size, output. They are no wall against somebody who means harm: the code
reads what this user reads, and reaches what this node reaches. A container around the node is such a wall.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from trainer import own_files
from trainer.agent.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from trainer.agent.tools.verl import BaseTool

TIMEOUT_S, MEMORY_MB, OUTPUT_BYTES = 5.0, 1024, 16384
KEYS = ("type", "timeout", "memory_mb", "max_output")
# In the process itself: limits first, then the code, which is told apart from this by its name in tracebacks. It ends
# with its parent; a file that it writes, and a core that it leaves, is bounded.
_RUNNER = """
import ctypes, resource, signal, sys, traceback
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
memory, seconds = int(sys.argv[1]), int(sys.argv[2])
for what, most in (("AS", memory), ("CPU", seconds), ("FSIZE", memory), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (most, most))
code, sys.argv[1:] = sys.stdin.read(), []
sys.excepthook = lambda kind, error, trace: traceback.print_exception(kind, error, trace.tb_next if trace else None)
exec(compile(code, "<code>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
"""
_SCHEMA = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python code and gives what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code. What is to be seen must be printed."}},
            "required": ["code"],
        },
    },
}


class PythonTool(BaseTool):
    """`config`: `timeout` in seconds, `memory_mb`, `max_output` in bytes. Its `code` is the call's one argument."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        """Raises ValueError for a limit that is none."""
        super().__init__(config, tool_schema or OpenAIFunctionToolSchema.model_validate(_SCHEMA))
        unknown = [name for name in config if name not in KEYS]
        if unknown:
            raise ValueError(f"PythonTool has no config.{unknown[0]}: it has {', '.join(KEYS[1:])}")
        self._timeout_s = _positive(config, "timeout", TIMEOUT_S)
        self._memory = int(_positive(config, "memory_mb", MEMORY_MB)) * 2**20
        self._most = int(_positive(config, "max_output", OUTPUT_BYTES))

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """What the code prints, and its traceback. Raises ValueError where there is no code."""
        code = parameters.get("code") if isinstance(parameters, dict) else None
        if not isinstance(code, str):
            raise ValueError("give the code as the argument `code`")
        text = await asyncio.to_thread(run, code, self._timeout_s, self._memory, self._most)
        return ToolResponse(text=text), 0.0, {}


def _positive(config: dict[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**31:
        raise ValueError(f"config.{name}={value!r} of PythonTool is not a positive number")
    return float(value)


def run(code: str, timeout_s: float, memory: int, most: int) -> str:
    """What `code` prints within `timeout_s`, up to `most` bytes; it is ended where it goes on beyond either.

    >>> run("print(6 * 7)", 20.0, 2**30, 100)
    '42\\n'
    """
    end = time.monotonic() + timeout_s
    place = own_files.temporary()
    with tempfile.TemporaryDirectory(prefix="python-tool-", dir=place, ignore_cleanup_errors=True) as folder:
        environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LANG": "C.UTF-8"}
        process = subprocess.Popen(
            [sys.executable, "-I", "-u", "-c", _RUNNER, str(memory), str(int(timeout_s) + 1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )
        try:
            said, why = _talk(process, code.encode(errors="replace"), end, most)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            process.wait()
    why = {"time": f"[ended after {timeout_s:g} s]", "output": f"[ended after {most} bytes of output]"}.get(why, "")
    if not why and process.returncode < 0:
        why = f"[ended by {signal.Signals(-process.returncode).name}]"
    text = said.decode(errors="replace")
    return f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{why}" if why else text


def _talk(process: subprocess.Popen[bytes], code: bytes, end: float, most: int) -> tuple[bytes, str]:
    """Writes `code` and reads what comes: what was said, and why it was not read to its end."""
    assert process.stdin is not None and process.stdout is not None
    said, sent = bytearray(), 0
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector, process.stdout as stdout, process.stdin as stdin:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stdin, selectors.EVENT_WRITE)
        while len(said) <= most:
            left = end - time.monotonic()
            if left <= 0:
                return bytes(said), "time"
            for key, _ in selector.select(left):
                if key.fileobj is stdin:
                    sent = _written(stdin.fileno(), code, sent)
                    if sent >= len(code):
                        selector.unregister(stdin)
                        with suppress(BrokenPipeError):
                            stdin.close()
                    continue
                part = os.read(stdout.fileno(), 2**16)
                if not part:
                    return bytes(said), "" if _ends(process, end) else "time"
                said += part
    return bytes(said[:most]), "output"


def _written(descriptor: int, code: bytes, sent: int) -> int:
    try:
        return sent + os.write(descriptor, code[sent : sent + 2**16])
    except BlockingIOError:
        return sent
    except BrokenPipeError:
        return len(code)  # it has ended: nobody reads


def _ends(process: subprocess.Popen[bytes], end: float) -> bool:
    """Whether it ends in time, once it has closed its output."""
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
