"""Calls a reward function directly, with rows of the file: `python -m devkit.smoke.direct_calls SPEC`.

A process of its own, so that whatever the function does (print, hang, keep state, end the process) is done to nobody
else. One line of JSON answers one line of JSON, until standard input closes. Neither Ray nor torch is loaded, unless
the function does it; and the function is loaded as Python loads any file, not by the trainer's code.
"""

from __future__ import annotations

import dis
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from devkit.smoke.row_reader import RowReader

MODULE = "custom_reward_function"  # what the module is named in a run, too
OURS = ("gsm8k", "math", "exact_match", "registry")  # the trainer's scorers, and what has them all
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)
LARGEST = 3.4028234663852886e38  # of fp32, in which scores go on


class Direct:
    """The reward function and the rows that it is called with."""

    def __init__(self, path: str | None, name: str, prompt_key: str, source_key: str) -> None:
        self._path, self._name = path, name
        self._rows = RowReader(prompt_key, source_key)
        self._function: Callable[..., Any] | None = None

    def load(self) -> dict[str, Any]:
        """Loads it anew, as a rank does: nothing that it kept is left -> how long that took, which arguments it reads.

        The scorers that are the trainer's own have no file of the user's.
        """
        started = time.perf_counter()
        for name in OURS:
            if module := sys.modules.get(f"trainer.rewards.{name}"):
                importlib.reload(module)
        self._function, problem = attempted(self._loaded) if self._path else (None, "")
        if problem:
            return {"error": problem}
        reads = {name: reads_argument(self._function, name) for name in ("solution_str", "ground_truth")}
        return {"seconds": time.perf_counter() - started, "reads": reads, "place": place(self._function)}

    def _loaded(self) -> Callable[..., Any]:
        assert self._path is not None
        file = Path(self._path).expanduser().absolute()
        spec = importlib.util.spec_from_file_location(MODULE, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function: Callable[..., Any] = getattr(module, self._name)
        return function

    def call(
        self, file: str, index: int, text: str, *, truth_of: int | None, extra_of: int | None, source_of: int | None
    ) -> dict[str, Any]:
        """The answer to `text` as that to row `index`, or with a part of another row of the file."""
        work = self._work(index, text, file, truth_of=truth_of, extra_of=extra_of, source_of=source_of)
        started = time.perf_counter()
        given, problem = attempted(work)
        told = {"score": None, "problem": problem, "kind": ""} if problem else judged(given)
        return {**told, "seconds": time.perf_counter() - started}

    def caught(self, file: str, index: int, text: str, **_: int | None) -> dict[str, Any]:
        """{"caught": "TypeError: ... at file:line"} of the first exception that a user's function raises and catches
        itself on that call; empty: none.
        """
        work, own = self._work(index, text, file), getattr(getattr(self._function, "__code__", None), "co_filename", "")
        with noticing(own) as found:
            _, problem = attempted(work)
        return {"caught": "" if problem else next(iter(found), "")}

    def _work(
        self,
        index: int,
        text: str,
        file: str,
        *,
        truth_of: int | None = None,
        extra_of: int | None = None,
        source_of: int | None = None,
    ) -> Callable[[], Any]:
        here = [index if other is None else other for other in (source_of, truth_of, extra_of)]
        source, truth, extra = (self._rows(file, i) for i in here)
        function = self._function or (lambda **words: _of_the_trainer(source.data_source)(**words))
        arguments = {"data_source": source.data_source, "solution_str": text, "ground_truth": truth.ground_truth}
        return lambda: function(**arguments, extra_info=dict(extra.extra_info))


@contextmanager
def noticing(file: str) -> Iterator[list[str]]:
    """The exceptions that come through code of `file` meanwhile, but for those by which iterators end."""
    found: list[str] = []

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception" and frame.f_code.co_filename == file and not issubclass(arg[0], _ENDS):
            text = " ".join(str(arg[1]).split())[:200]
            found.append(f"{arg[0].__name__}{': ' + text if text else ''} at {relative(file)}:{frame.f_lineno}")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield found
    finally:
        sys.settrace(before)


def attempted(work: Callable[[], Any]) -> tuple[Any, str]:
    """What it gives, or what it raises in a line."""
    try:
        return work(), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything; it is told as a finding
        traceback.print_exc()
        return None, raised(error)


def _of_the_trainer(data_source: str) -> Callable[..., Any]:
    from trainer.rewards.registry import scorer_for

    return scorer_for(data_source)


def judged(given: Any) -> dict[str, Any]:
    """
    >>> judged({"score": True})["kind"], judged(float("nan"))["problem"], judged("1")["problem"]
    ('bool', 'gives nan', 'gives a str')
    """
    if isinstance(given, Mapping):
        if "score" not in given:
            return {"score": None, "problem": 'gives a dict without "score"', "kind": "dict"}
        given = given["score"]
    kind = type(given).__name__
    if given is None or isinstance(given, (str, bytes)):
        return {"score": None, "problem": "gives None" if given is None else f"gives a {kind}", "kind": kind}
    try:
        score = float(given)
    except (TypeError, ValueError, OverflowError):
        return {"score": None, "problem": f"gives a {kind}", "kind": kind}
    if not abs(score) <= LARGEST:
        return {"score": None, "problem": f"gives {score}", "kind": kind}
    return {"score": score, "problem": "", "kind": kind}


def raised(error: BaseException) -> str:
    """In a line, with the innermost line that lies outside of Python's own folders."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if not frame.filename.startswith((sys.base_prefix, sys.prefix))] or frames
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    text = " ".join(str(error).split())[:200]
    return f"raises {type(error).__name__}{': ' + text if text else ''}{where}"


def reads_argument(function: Callable[..., Any] | None, name: str) -> bool | None:
    """Whether its code ever looks at the argument; None where that cannot be told.

    >>> def score(solution_str, ground_truth): return len(ground_truth)
    >>> reads_argument(score, "solution_str"), reads_argument(score, "ground_truth")
    (False, True)
    """
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        return None
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if name not in arguments or {"locals", "vars", "eval", "exec"} & set(code.co_names):
        return None
    if name in code.co_cellvars:
        return True  # an inner function has it
    for instruction in dis.get_instructions(code):
        named = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname.startswith(("LOAD", "STORE_FAST_LOAD")) and name in named:
            return True
    return False


def place(function: Callable[..., Any] | None) -> str:
    """`file:line` of a user's function."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return f"{relative(code.co_filename)}:{code.co_firstlineno}"


def relative(file: str) -> str:
    """From the working folder, if it is below that."""
    short = os.path.relpath(file)
    return file if short.startswith("..") else short


def main() -> None:
    """Serves until standard input closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the function prints is no answer
    sys.dont_write_bytecode = True
    direct = Direct(**json.loads(sys.argv[1]))
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(direct, order.pop("do"))(**order)
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
