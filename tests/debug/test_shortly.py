"""One short line for sockets and loaders of data, of which more is asked than their class."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import socket
import sys
import threading

import pytest

from devkit.debug.inworker.expressions import told

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset  # noqa: E402


def test_a_socket_says_to_whom_it_is_and_whether_that_one_has_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert told(server) == f"<socket listening at 127.0.0.1:{port}>"
        with socket.create_connection(("127.0.0.1", port)) as mine:
            assert told(mine) == f"<socket to 127.0.0.1:{port}>"
            theirs, _ = server.accept()
            theirs.sendall(b"half")
            theirs.close()
            assert mine.recv(2) == b"ha"
            assert told(mine) == f"<socket to 127.0.0.1:{port}, which its peer has closed, 2 bytes left to read>"
            assert mine.recv(9) == b"lf", "looking has taken nothing"
            assert told(mine) == f"<socket to 127.0.0.1:{port}, which its peer has closed, 0 bytes left to read>"
        assert told(mine) == "<socket closed>"


def test_what_belongs_to_a_closed_loop_has_no_state_of_before() -> None:
    """`asyncio.run` cancels who waits, which gives permits back: what was so at an error is not what is so after it."""

    async def failing(permits: asyncio.Semaphore, kept: list[asyncio.Task[None]]) -> str | None:
        async def holding() -> None:
            async with permits:
                await asyncio.sleep(600)

        async def ends() -> None:
            raise KeyError("answer")

        kept += [asyncio.create_task(holding()) for _ in range(3)] + [asyncio.create_task(ends())]
        await asyncio.wait(kept[3:])
        return told(permits)

    permits, kept = asyncio.Semaphore(2), list[asyncio.Task[None]]()
    assert asyncio.run(failing(permits, kept)) == "<Semaphore at 0>"
    assert told(permits) == "<Semaphore of a closed event loop>"
    assert [told(each) for each in kept[2:]] == [None, "<Task finished with KeyError>"]
    assert told(asyncio.Semaphore(2)) == "<Semaphore at 2>"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_sockets_of_no_network(kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as alone:
        assert told(alone) == "<socket not connected>"
    mine, theirs = socket.socketpair()
    with mine, theirs:
        assert (told(mine) or "").startswith("<socket to ")


class Rows(Dataset[int]):
    asked = 0

    def __len__(self) -> int:
        Rows.asked += 1
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_says_how_many_batches_it_has() -> None:
    assert told(DataLoader([1, 2, 3, 4], batch_size=8, drop_last=True)) == (  # type: ignore[arg-type]
        "<DataLoader of 4 rows in batches of 8, drop_last: 0 batches>"
    )
    rows = TensorDataset(torch.zeros(9, 2))
    assert told(DataLoader(rows, batch_size=4)) == "<DataLoader of 9 rows in batches of 4: 3 batches>"
    assert told(DataLoader(Subset(rows, [1, 2]))) == "<DataLoader of 2 rows in batches of 1: 2 batches>"
    assert told(DataLoader(rows, batch_size=None)) is None
    loader = DataLoader(Rows(), batch_size=2)
    Rows.asked = 0
    assert told(loader) is None and Rows.asked == 0, "the program's own code has run"


def test_a_dictionary_of_containers_that_another_thread_fills_is_told() -> None:
    groups: dict[int, list[int]] = {number: [] for number in range(2000)}
    over = threading.Event()

    def fill() -> None:
        for number in itertools.count(len(groups)):
            if over.is_set():
                return
            groups[number] = []
            del groups[number - 2000]

    filler, interval = threading.Thread(target=fill), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        filler.start()
        for _ in range(200):
            assert (told(groups) or "").startswith("dict of ")
    finally:
        over.set()
        sys.setswitchinterval(interval)
        filler.join()


def test_a_forked_child_is_not_said_to_be_not_started_within_itself() -> None:
    """It was forked while its own object, and those of the ones to come, had no child yet."""
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    children = [context.Process(target=lambda: said.put(list(map(told, children))), name=f"g-{n}") for n in range(2)]
    assert told(children[0]) == "<ForkProcess g-0, not started>"
    children[0].start()
    assert said.get() == ["<ForkProcess g-0, this process>", "<ForkProcess g-1>"]
    children[0].join()
