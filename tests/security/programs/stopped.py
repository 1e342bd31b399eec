"""A process with a stopped thread and a debug port, as a worker has one. UID [MODE [GUARD]]: whose it is, who may pass.

GUARD `proof`: the first look, before anything is read, lets everybody through. `table`: so does the look at the open
files, and the kernel's table alone decides.

Prints its port; answers each line on stdin by how many clients were listened to, how many got a debugger, and how much
code of theirs was run.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from types import SimpleNamespace

from devkit.debug.inworker import adapter, dap_frames, gate, peer, snapshot  # noqa: F401 - while they can be read
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.stops import Stops
from tests.security.users import become

clients: list[object] = []
heard: list[str] = []  # what was found out of each client that said something


class Counted(adapter.Adapter):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        clients.append(self)


def stand(stops: Stops, ran: list[int]) -> None:
    stops.park(sys._getframe(), "breakpoint")


def watch(guard: str) -> None:
    owner = peer.owner

    def counted(client: socket.socket) -> peer.Owner:
        heard.append(owner(client))
        return heard[-1]  # type: ignore[return-value]

    peer.owner = counted
    if guard in ("proof", "table"):
        peer.may_be_ours = lambda _: True  # type: ignore[assignment]
    if guard == "table":
        peer._is_open_in_ours = lambda _: True  # type: ignore[assignment]


def main() -> None:
    uid, mode, guard = (*sys.argv[1:], *("0", "local", "all")[len(sys.argv) - 1 :])
    watch(guard)
    who = Identity("01", "w" * 8, "n", "127.0.0.1", "h", os.getpid(), "Worker")
    listed = threading.Event()
    stops, ran = Stops(lambda: who, listed.set), list[int]()
    threading.Thread(target=stand, args=(stops, ran), daemon=True).start()
    assert listed.wait(20)
    adapter.Adapter = Counted  # type: ignore[misc]
    become(int(uid))
    agent = SimpleNamespace(settings=SimpleNamespace(ray_extension=mode), stops=stops, arming=None)
    door = gate.Gate(agent, "127.0.0.1")
    print(json.dumps(door.port), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"heard": len(heard), "clients": len(clients), "ran": len(ran)}), flush=True)


if __name__ == "__main__":
    main()
