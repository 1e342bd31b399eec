"""Another user at a debug port. UID PORT KIND TRIES [LENT]: as whom, where, how sockets end, how often, whose rights.

Each try says all that it takes to run code in the stopped process in one write, and is gone before anybody asks who
said it. Prints how many tries got an answer.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time

from tests.security.users import become

REQUESTS = (
    ("initialize", {"adapterID": "python"}),
    ("attach", {}),
    ("configurationDone", {}),
    ("evaluate", {"expression": "ran.append(1)", "context": "repl"}),
)
LATEST = 0.002  # seconds until a socket is closed


def frame(number: int, command: str, arguments: dict[str, str]) -> bytes:
    body = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


ATTACK = b"".join(frame(number, *request) for number, request in enumerate(REQUESTS, 1))


def attempt(port: int, kind: str, wait: float) -> bool:
    """Whether anything came back."""
    there = socket.create_connection(("127.0.0.1", port), timeout=10)
    there.sendall(ATTACK)
    if wait:
        time.sleep(wait)
    if kind == "reset":
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer = b""
    if kind in ("half", "stay"):
        if kind == "half":
            there.shutdown(socket.SHUT_WR)
        try:
            there.settimeout(5)
            answer = there.recv(1000)
        except OSError:
            pass
    there.close()
    return bool(answer)


def main() -> None:
    uid, port, kind, tries = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    socket.getaddrinfo("127.0.0.1", 1)  # loads what it needs
    become(uid, *map(int, sys.argv[5:]))
    chance = random.Random(tries)
    answered = refused = 0
    for number in range(tries):
        try:
            answered += attempt(port, kind, chance.uniform(0, LATEST) if number % 2 else 0.0)
        except OSError:  # closed while something was still to be said
            refused += 1
    print(json.dumps({"answered": answered, "refused": refused}), flush=True)


if __name__ == "__main__":
    main()
