"""Environment variables that a driver sets when its Ray has started, and that its workers read: they do not have them.

Workers have the environment in which Ray was started on their node, and what a `runtime_env` adds. Who reads such a
variable there gets its default, and nothing says so.

The driver notes what its own code sets, and tells the names. A worker tells what its own code found under them, and
the driver compares when it ends.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from opcode import opname
from types import CodeType, FrameType
from typing import Any, NamedTuple

from . import noticeboard
from .core import asking
from .expressions import VALUE, nodes_of, short, tree_of
from .imports import on_import
from .passing import unframed
from .redaction import REDACTED, redact, scrub_start
from .sources import is_users
from .stacks import OURS, users_lines
from .words import warn

SET, READ = "environ-set", "environ-read"  # kinds of notes
MOST = 50  # names
LINES = 5
SKEW_SECONDS = 2.0  # by which the clocks of two nodes may differ
LAST_SECONDS = 0.1  # that a driver waits at its end for what its workers are about to tell
_MARK = "__devkit_environ__"
# Of Ray, torch and others, which read them by themselves, and of the process: each may have its own.
_OTHERS = (
    *("RAY_", "DEVKIT_", "TORCH", "PYTORCH", "NCCL_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "HIP_", "ROCM", "ROCR_"),
    *("OMP_", "MKL_", "KMP_", "OPENBLAS", "NUMEXPR", "VECLIB", "GOTO_", "GLOO_", "UCX_", "MPI", "OMPI_", "PMI"),
    *("HF_", "HUGGING", "TRANSFORMERS_", "TOKENIZERS_", "DATASETS_", "ACCELERATE_", "DEEPSPEED", "DS_", "PL_"),
    *("WANDB", "MLFLOW", "COMET_", "NEPTUNE", "VLLM", "SGLANG", "SGL_", "FLASH", "TRITON", "XLA_", "JAX", "TF_"),
    *("PYTHON", "LD_", "LC_", "XDG_", "GRPC", "GLOG_", "SLURM", "KUBERNETES", "AWS_", "GOOGLE", "AZURE", "SDL_"),
    *("MUJOCO", "PYOPENGL", "EGL_", "DISPLAY", "MPL", "QT_", "CONDA", "VIRTUAL_", "PIP_", "UV_", "TQDM", "COLORTERM"),
)
_EXACTLY = frozenset(
    {"PATH", "HOME", "USER", "PWD", "OLDPWD", "SHELL", "TERM", "LANG", "TMPDIR", "TMP", "TEMP", "TZ", "CI", "COLUMNS"}
    | {"LINES", "NO_COLOR", "FORCE_COLOR", "HOSTNAME", "EDITOR", "PAGER", "BROWSER", "LOGNAME", "WORLD_SIZE", "RANK"}
    | {"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
)
# In a name, that each process means itself by it, or that it is about what is printed.
_ITS_OWN = frozenset(
    {"ROLE", "DRIVER", "MAIN", "MASTER", "HEAD", "PARENT", "CHILD", "COORDINATOR", "CONTROLLER", "LEADER", "PROCESS"}
    | {"PID", "LOCAL", "NODE", "HOST", "IP", "ADDR", "PORT", "LOG", "LOGGING", "LOGLEVEL", "LEVEL", "VERBOSE", "DEBUG"}
    | {"QUIET", "PROFILE", "TRACE", "INITIALIZED", "STARTED", "DONE", "READY", "PROGRESS"}
)
_MARKS = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "driver", "main", "master", "head"})


class _Set(NamedTuple):
    """A variable that the driver's own code has set last."""

    value: str
    file: str
    line: int


@dataclass(slots=True)
class _Read:
    """What a worker's own code found last."""

    value: str | None
    code: CodeType
    at: int  # in that code
    line: int
    time: float


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.began: dict[str, str] = {}  # the driver's environment when its Ray had started
        self.where = ""  # that was
        self.job = ""
        self.sets: dict[str, _Set] = {}
        self.read_here: dict[str, set[tuple[str, int]]] = {}  # by name, the driver's lines that have read it since
        self.reads: dict[str, _Read] = {}
        self.others: set[str] = set()  # names that are none of those
        self.own: set[str] = set()  # names that this worker has set itself
        self.told: dict[str, Any] = {}
        self.soon: noticeboard.Soon | None = None


_state = _State()


def _forked() -> None:
    """A forked child has an environment of its own, and its parent's connection to Ray is none of its."""
    _state.sets, _state.job, _state.soon = {}, "", None


os.register_at_fork(after_in_child=_forked)


# ---- noting


def watch(*, driver: bool) -> None:
    """Notes what the program sets, in a driver, and what it reads, in a worker."""
    if hasattr(os._Environ.__getitem__, _MARK):
        return
    if driver:
        site = next(users_lines(sys._getframe(1)), None)
        _state.where = f"{os.path.basename(site['file'])}:{site['line']}" if site else ""
        _state.began, _state.job = dict(os.environ), noticeboard.job()
    elif noticeboard.is_connected():
        _state.soon = noticeboard.Soon(_tell, "devkit-environ")
    else:
        return  # a child without Ray
    on_import("torch.compiler", _ask_torch)
    kind: Any = os._Environ
    kind.__getitem__ = _reading(kind.__getitem__, _read_in_driver if driver else _read_in_worker)
    for name in ("__setitem__", "__delitem__"):
        setattr(kind, name, _changing(getattr(kind, name), _set_in_driver if driver else _set_in_worker))


def _never() -> bool:
    return False


# Whether `torch.compile` follows what calls this, and must find what was there before: torch's, once that is imported.
_is_traced: Callable[[], bool] = _never


def _ask_torch(module: Any) -> None:
    global _is_traced
    _is_traced = getattr(module, "is_dynamo_compiling", _is_traced)


def _reading(original: Any, noted: Any) -> Any:
    @functools.wraps(original)
    def __getitem__(self: Any, key: Any) -> Any:
        if _is_traced():
            return original(self, key)
        try:
            value = original(self, key)
        except KeyError as error:
            noted(key, None, sys._getframe(1))
            unframed(error)
            raise
        noted(key, value, sys._getframe(1))
        return value

    setattr(__getitem__, _MARK, True)
    return __getitem__


def _changing(original: Any, noted: Any) -> Any:
    @functools.wraps(original)
    def change(self: Any, key: Any, *value: Any) -> None:
        original(self, key, *value)
        if _is_traced():
            return
        with suppress(Exception):  # whatever it is: the variable is set all the same
            noted(key, *value, frame=sys._getframe(1))

    setattr(change, _MARK, True)
    return change


@functools.lru_cache(maxsize=500)
def _is_ours(name: str) -> bool:
    """Whether it may be one by which a program tells its workers something."""
    words = name.upper().replace("-", "_").split("_")
    return not (name in _EXACTLY or name.upper().startswith(_OTHERS) or not _ITS_OWN.isdisjoint(words))


@functools.lru_cache(maxsize=500)
def _is_programs(file: str) -> bool:
    return is_users(file) and not file.startswith(OURS)


_GETS = frozenset(map(id, (Mapping.get.__code__, Mapping.__contains__.__code__, os.getenv.__code__)))


def _reader(frame: FrameType | None) -> FrameType | None:
    """The program's frame that asks for one variable: who copies all of them reads none."""
    asks = False
    while frame is not None and id(frame.f_code) in _GETS:
        frame, asks = frame.f_back, True
    if frame is None or not _is_programs(frame.f_code.co_filename):
        return None
    return frame if asks or _is_subscript(frame) else None


def _is_subscript(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and opname[code[at]] == "CACHE":  # it stands behind them, once the interpreter has made it faster
        at -= 2
    return opname[code[at]].startswith("BINARY")


# ---- in the driver


def _set_in_driver(name: Any, value: Any = None, *, frame: FrameType | None) -> None:
    if value is None or not _is_ours(str(name)) or len(_state.sets) >= MOST or not _state.job:
        return
    while frame is not None and _passes(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or not _is_programs(frame.f_code.co_filename):
        return
    is_new = name not in _state.sets
    _state.sets[name] = _Set(str(value), frame.f_code.co_filename, frame.f_lineno or 0)
    if is_new and noticeboard.is_connected() and noticeboard.job() == _state.job:
        times = {each: _state.told[each] for each in _state.sets if each in _state.told}
        _state.told = {**times, name: time.time()}
        with asking() as is_open:
            if is_open:
                noticeboard.put(SET, "", {"host": socket.gethostname(), "names": _state.told})


def _passes(file: str) -> bool:
    """Whether a file's functions set what they are given."""
    return file in (_OS, _COLLECTIONS) or f"{os.sep}dotenv{os.sep}" in file


_OS, _COLLECTIONS = os.getenv.__code__.co_filename, Mapping.get.__code__.co_filename


def _read_in_driver(name: Any, _value: str | None, frame: FrameType | None) -> None:
    if name in _state.sets and (reader := _reader(frame)) is not None:
        _state.read_here.setdefault(name, set()).add((reader.f_code.co_filename, reader.f_lineno or 0))


def tell() -> None:
    """At the driver's end: warns of what was set in vain."""
    if _state.sets and noticeboard.is_connected() and noticeboard.job() == _state.job:
        with suppress(Exception):  # a GCS that is gone: the program ends all the same
            for each in unseen(_notes())[:LINES]:
                warn(*each)
            noticeboard.forget(SET)
            noticeboard.forget(READ)
    _state.sets, _state.job = {}, ""  # what is set from now on is there when Ray is started again


def _notes() -> list[noticeboard.Document]:
    if not (found := noticeboard.every(READ)):
        time.sleep(LAST_SECONDS)
        found = noticeboard.every(READ)
    return found


def unseen(notes: list[noticeboard.Document]) -> list[tuple[str, int, str]]:
    """(file, line, sentence) of each variable of the driver that workers have read and not found, or found as it was
    before the driver set it.
    """
    found = []
    for name, kept in _state.sets.items():
        read = [each for each in notes if each["name"] == name]
        if not read or os.environ.get(name) != kept.value or _is_given(kept.file, name):
            continue
        before, now = _digest(_state.began.get(name)), _digest(kept.value)
        if any(each["own"] or each["digest"] == now for each in read):  # somebody gives it to them in another way
            continue
        stale = [each for each in read if each["digest"] in ("", before) and not _is_mark(name, kept.value, each)]
        if stale and before != now:
            found.append((kept.file, kept.line, _sentence(name, kept, min(stale, key=lambda each: each["time"]))))
    return found


def _is_mark(name: str, value: str, read: noticeboard.Document) -> bool:
    """Whether it may tell the driver from the others: the same line asks for it in both, and it says yes or no."""
    return value.strip().lower() in _MARKS and (read["file"], read["line"]) in _state.read_here.get(name, ())


def _sentence(name: str, kept: _Set, read: noticeboard.Document) -> str:
    started = f" at {_state.where}" if _state.where else ""
    at = f"{os.path.basename(read['file'])}:{read['line']}"
    finds = f"finds {read['shown']}" if read["digest"] else "does not find it"
    return (
        f"{name} is set to {_shown(name, kept.value)} here, after the start of Ray{started}, which reaches no worker: "
        f"{read['who']} reads it at {at} and {finds} (a runtime_env with env_vars would give it to them)"
    )


def _is_given(file: str, name: str) -> bool:
    """Whether the program gives it to some of its workers by a `runtime_env` of theirs, or may do so."""
    _, tree = tree_of(file)
    if tree is None:
        return True
    inits = [
        each for each in nodes_of(tree, ast.Call) if isinstance(each.func, ast.Attribute) and each.func.attr == "init"
    ]
    of_all = {id(part) for each in inits for part in ast.walk(each)}  # which has what it had then
    pairs: list[tuple[Any, ast.expr]] = [
        *((one.arg, one.value) for one in nodes_of(tree, ast.keyword) if id(one.value) not in of_all)
    ]
    for each in nodes_of(tree, ast.Dict):
        if id(each) not in of_all:
            named = zip(each.keys, each.values, strict=True)
            pairs += [(key.value, value) for key, value in named if isinstance(key, ast.Constant)]
    return any(key == "env_vars" and _may_name(value, name) for key, value in pairs)


def _may_name(node: ast.expr, name: str) -> bool:
    """Whether a dictionary has this key, as far as can be seen."""
    if not isinstance(node, ast.Dict):
        return True
    return any(not isinstance(key, ast.Constant) or key.value == name for key in node.keys)


def _shown(name: str, value: str) -> str:
    return REDACTED if redact(name, value) is not value else short(scrub_start(repr(value), VALUE, code=True), VALUE)


def _digest(value: str | None) -> str:
    """Of a value that only this job can compare."""
    if value is None:
        return ""
    return hashlib.blake2b(value.encode("utf-8", "replace"), key=noticeboard.job().encode(), digest_size=8).hexdigest()


# ---- in a worker


def _read_in_worker(name: Any, value: str | None, frame: FrameType) -> None:
    """On a hot path: by what was found at the last look, most of it is known."""
    try:
        if name in _state.others:
            return
        read = _state.reads.get(name)
        reader: FrameType | None = frame
        while reader is not None and id(reader.f_code) in _GETS:
            reader = reader.f_back
        if read is not None and reader is not None and reader.f_code is read.code and reader.f_lasti == read.at:
            read.value, read.time = value, time.time()
            _wake()
        else:
            _read_anew(name, value, frame, read)
    except Exception:  # noqa: BLE001 - no thread is to be had, or a key that is no text: it is read all the same
        pass


def _read_anew(name: Any, value: str | None, frame: FrameType, read: _Read | None) -> None:
    if not _is_ours(name) or (read is None and len(_state.reads) >= MOST):
        if len(_state.others) < MOST * 10:
            _state.others.add(name)
    elif (reader := _reader(frame)) is not None:
        _state.reads[name] = _Read(value, reader.f_code, reader.f_lasti, reader.f_lineno or 0, time.time())
        _wake()


def _wake() -> None:
    if _state.soon is not None:  # in a forked child it is not
        _state.soon.wake()


def _set_in_worker(name: Any, _value: Any = None, *, frame: FrameType | None) -> None:
    if len(_state.own) < MOST * 10:
        _state.own.add(str(name))
    if name in _state.told:
        _wake()


def _tell() -> bool:
    """Of the variables that the driver has set, what was found under their names since. False: there is no telling."""
    try:
        given = noticeboard.get(SET, "")
        for name, at in (given or {"names": {}})["names"].items():
            skew = 0.0 if given and given["host"] == socket.gethostname() else SKEW_SECONDS
            read = _state.reads.get(name)
            if read is None or read.time <= at + skew:
                continue
            note = _note(name, read)
            if (told := (note["own"], note["digest"])) != _state.told.get(name):
                noticeboard.put(READ, f"{os.getpid()}-{socket.gethostname()}-{name}", note)
                _state.told[name] = told
    except Exception:  # noqa: BLE001 - a GCS that is gone, or another Ray's: then nobody hears of it
        return False
    return True


def _note(name: str, read: _Read) -> noticeboard.Document:
    """What was found; of a secret that is there nothing but that it is."""
    is_secret = read.value is not None and redact(name, read.value) is not read.value
    return {
        "name": name,
        "own": name in _state.own or is_secret,
        "digest": _digest(read.value),
        "shown": _shown(name, read.value or ""),
        "who": _who(read.code),
        "file": read.code.co_filename,
        "line": read.line,
        "time": read.time,
    }


def _who(code: CodeType) -> str:
    return "a module" if code.co_qualname == "<module>" else code.co_qualname.replace("<locals>.", "")


__all__ = ["tell", "unseen", "watch"]
