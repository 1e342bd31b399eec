"""One short line for what has much inside that nobody asks for: handles of Ray, locks, queues, random generators.

Equal ones of two ranks have equal lines: no addresses, no numbers of threads. Read from what the objects keep, and by
methods written in C; no code of the program's runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from .insides import type_name

ID = 12  # characters of an id: enough to tell two of one job apart
CLOSE_WAIT = 8  # of Linux' TCP: the other end has closed its side
REFERENCE = 48  # characters of a reference's id, behind which its number among its task's results stands

_Line = Callable[[Any], str]


def short(value: Any) -> str | None:
    """The line, for one of the types below; None for anything else.

    >>> import queue, threading
    >>> short(threading.Event()), short(threading.Semaphore(3)), short(queue.Queue())
    ('<Event not set>', '<Semaphore at 3>', '<Queue of 0>')
    >>> short(threading.Barrier(3))
    '<Barrier 0 of 3>'
    >>> short(threading.RLock()), short(threading.Lock()), short(3)
    ('<RLock unlocked>', '<lock unlocked>', None)
    >>> from concurrent.futures import Future
    >>> failed = Future()
    >>> failed.set_exception(KeyError("answer")); short(failed)
    '<Future finished with KeyError>'
    """
    kind = type(value)
    module, name = getattr(kind, "__module__", ""), type_name(kind)
    line = _LINES.get((module, name)) if isinstance(module, str) else None
    if line is None:
        return f"<{name}>" if _is_actor_class(kind, name) else None
    return f"<{name}{line(value)}>"


def _own(value: Any, name: str) -> Any:
    """What the object keeps under a name."""
    return object.__getattribute__(value, "__dict__").get(name)


def _is_actor_class(kind: type, name: str) -> bool:
    """`@ray.remote` of a class, each of which has a type of its own: `ActorClass(Worker)`."""
    return name.startswith("ActorClass(") and any(type_name(base) == "ActorClass" for base in kind.__mro__)


def _handle(value: Any) -> str:
    described = _own(value, "_ray_actor_creation_function_descriptor")
    return f" {getattr(described, 'class_name', '?').rpartition('.')[2]} {_own(value, '_ray_actor_id').hex()[:ID]}"


def _reference(value: Any) -> str:
    text = value.hex()
    number = int.from_bytes(bytes.fromhex(text[REFERENCE:]), "little")
    return f" {text[:ID]} #{number}"


def _function(value: Any) -> str:
    return f" {_own(value, '_function_name')}"


def _method(value: Any) -> str:
    return f" {_own(value, '_method_name')}"


def _lock(value: Any) -> str:
    return " locked" if repr(value).startswith("<locked") else " unlocked"


def _event(value: Any) -> str:
    return " set" if _own(value, "_flag") or _own(value, "_value") is True else " not set"


def _semaphore(value: Any) -> str:
    return f" at {_own(value, '_value')}"


def _nothing(_value: Any) -> str:
    return ""


def _thread(value: Any) -> str:
    known = getattr(sys.modules.get("threading"), "_active", {})
    begun = _own(value, "_ident")
    state = ", not started" if begun is None else "" if known.get(begun) is value else ", ended"
    return f" {_own(value, '_name')}{state}"


def _child(value: Any) -> str:
    """Of `multiprocessing`."""
    popen, name = _own(value, "_popen"), _own(value, "_name")
    named = f" {name}" if type(name) is str else ""
    if popen is None:  # in a forked child that stays so: it was forked as they were
        if value is getattr(sys.modules.get("multiprocessing.process"), "_current_process", None):
            return f"{named}, this process"
        return f"{named}, not started" if _own(value, "_parent_pid") == os.getpid() else named
    pid = getattr(popen, "pid", 0)
    return f"{named} pid {pid}{_ended(pid, getattr(popen, 'returncode', None))}"


def _popen(value: Any) -> str:
    pid = _own(value, "pid")
    return f"{f' pid {pid}' if type(pid) is int else ''}{_ended(pid or 0, _own(value, 'returncode'))}"


def _ended(pid: int, code: int | None) -> str:
    """How a child of this process has ended, which stays to be waited for as it is."""
    if code is None and pid > 0 and hasattr(os, "waitid"):
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:  # somebody else's child, or one that was waited for
            return ""
        if found is None:
            return ", running"
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    if code is None:
        return ""
    return f", ended with exit code {code}" if code >= 0 else f", ended by {_signal(-code)}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _future(value: Any) -> str:
    """What it has failed with, without taking that for heard."""
    failed = value._exception
    return f" {str(value._state).lower()}" + (f" with {type_name(type(failed))}" if failed is not None else "")


def _of_loop(line: _Line) -> _Line:
    """What belongs to an event loop: when that has closed, who waited has been cancelled, as by `asyncio.run`, and its
    state says nothing of the time before.
    """

    def said(value: Any) -> str:
        loop = getattr(value, "_loop", None)
        return " of a closed event loop" if loop is not None and loop.is_closed() else line(value)

    return said


def _future_of_loop(value: Any) -> str:
    """One that has ended by itself stays as it is."""
    return "" if value.cancelled() and value._loop.is_closed() else _future(value)


def _queue(value: Any) -> str:
    return f" of {len(_own(value, 'queue') or ())}"


def _queue_of_asyncio(value: Any) -> str:
    return f" of {len(_own(value, '_queue') or ())}"


def _barrier(value: Any) -> str:
    return f" {_own(value, '_count')} of {_own(value, '_parties')}"


# ---- sockets and loaders of data


def _socket(value: Any) -> str:
    """To whom it is connected, and whether that one has closed: then a `recv` gives nothing, as often as one likes."""
    import socket

    if (number := socket.socket.fileno(value)) < 0:
        return " closed"
    if socket.socket.getsockopt(value, socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return f" listening at {_address(socket.socket.getsockname(value))}"
    try:
        peer = _address(socket.socket.getpeername(value))
    except OSError:
        return " not connected"
    closed = _is_tcp(value) and socket.socket.getsockopt(value, socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT
    return f" to {peer}, which its peer has closed, {_unread(number)} bytes left to read" if closed else f" to {peer}"


def _is_tcp(value: Any) -> bool:
    import socket

    return sys.platform == "linux" and value.family in (socket.AF_INET, socket.AF_INET6) and value.proto in (0, 6)


def _address(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def _unread(number: int) -> int:
    import array
    import fcntl
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(number, termios.FIONREAD, count)
    return count[0]


def _loader(value: Any) -> str:
    """How many batches it has, where its rows can be counted without the program's own code."""
    own = object.__getattribute__(value, "__dict__")
    size, drops = own.get("_DataLoader__initialized") and own.get("batch_size"), own.get("drop_last")
    rows = _rows(own.get("dataset"))
    if rows is None or not isinstance(size, int) or size < 1:
        return ""
    batches = rows // size if drops else -(-rows // size)
    return f" of {rows} rows in batches of {size}{', drop_last' if drops else ''}: {batches} batches"


def _rows(data: Any) -> int | None:
    if type(data) in (list, tuple, range, dict):
        return len(data)
    where = (getattr(type(data), "__module__", ""), type_name(type(data)))
    if where == ("torch.utils.data.dataset", "TensorDataset"):
        return int(_own(data, "tensors")[0].shape[0])
    return _rows(_own(data, "indices")) if where == ("torch.utils.data.dataset", "Subset") else None


# ---- random generators, by a digest of their state


def _digest(state: bytes) -> str:
    import hashlib

    return f" #{hashlib.blake2b(state, digest_size=4).hexdigest()}"


def _of_python(value: Any) -> str:
    return _digest(repr(value.getstate()).encode())


def _of_numpy(value: Any) -> str:
    bits = value.bit_generator if hasattr(value, "bit_generator") else value._bit_generator
    return f" {type(bits).__name__}{_digest(_bytes(bits.state))}"


def _bytes(state: Any) -> bytes:
    """Of a dictionary of numbers and arrays."""
    if isinstance(state, dict):
        return b"".join(name.encode() + _bytes(each) for name, each in sorted(state.items()))
    return bytes(state.tobytes()) if hasattr(state, "tobytes") else repr(state).encode()


def _of_torch(value: Any) -> str:
    if value.device.type != "cpu":  # another one's would have to be fetched, behind what runs there
        return f" {value.device}"
    return f" cpu{_digest(value.get_state().numpy().tobytes())}"


_LINES: dict[tuple[str, str], _Line] = {
    ("ray.actor", "ActorHandle"): _handle,
    ("ray.actor", "ActorMethod"): _method,
    ("ray.remote_function", "RemoteFunction"): _function,
    ("ray", "ObjectRef"): _reference,
    ("ray._raylet", "ObjectRef"): _reference,
    ("_thread", "lock"): _lock,
    ("_thread", "RLock"): _lock,
    ("threading", "Event"): _event,
    ("threading", "Condition"): _nothing,
    ("threading", "Semaphore"): _semaphore,
    ("threading", "BoundedSemaphore"): _semaphore,
    ("threading", "Thread"): _thread,
    ("multiprocessing.context", "Process"): _child,
    ("multiprocessing.context", "ForkProcess"): _child,
    ("multiprocessing.context", "SpawnProcess"): _child,
    ("multiprocessing.context", "ForkServerProcess"): _child,
    ("subprocess", "Popen"): _popen,
    ("asyncio.locks", "Lock"): _of_loop(lambda value: " locked" if _own(value, "_locked") else " unlocked"),
    ("asyncio.locks", "Event"): _of_loop(_event),
    ("asyncio.locks", "Condition"): _nothing,
    ("asyncio.locks", "Semaphore"): _of_loop(_semaphore),
    ("_asyncio", "Future"): _future_of_loop,
    ("_asyncio", "Task"): _future_of_loop,
    ("concurrent.futures._base", "Future"): _future,
    ("threading", "Barrier"): _barrier,
    ("socket", "socket"): _socket,
    ("torch.utils.data.dataloader", "DataLoader"): _loader,
    ("asyncio.queues", "Queue"): _of_loop(_queue_of_asyncio),
    ("asyncio.queues", "LifoQueue"): _of_loop(_queue_of_asyncio),
    ("asyncio.queues", "PriorityQueue"): _of_loop(_queue_of_asyncio),
    ("queue", "Queue"): _queue,
    ("queue", "LifoQueue"): _queue,
    ("queue", "PriorityQueue"): _queue,
    ("random", "Random"): _of_python,
    ("numpy.random._generator", "Generator"): _of_numpy,
    ("numpy.random.mtrand", "RandomState"): _of_numpy,
    ("torch._C", "Generator"): _of_torch,
}
