"""Says words at ports and Unix sockets as another user. UID; each line on stdin is {"places", "words"}, in hex.

Answers by what each place has said until it closed, or until a moment had passed: a stranger has five seconds there.
"""

from __future__ import annotations

import json
import socket
import sys

from tests.security.users import become

SECONDS = 0.5


def heard(place: list[object], words: bytes) -> bytes:
    kind, *where = place
    there = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    answer = b""
    with there:
        there.settimeout(5.0)
        try:
            there.connect(where[0] if kind == "unix" else tuple(where))  # type: ignore[arg-type]
            there.settimeout(SECONDS)
            there.sendall(words)
            while data := there.recv(65536):
                answer += data
        except OSError:  # closed in the midst, or silent
            pass
    return answer


def main() -> None:
    socket.getaddrinfo("127.0.0.1", 1)  # loads what it needs
    become(int(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        words = bytes.fromhex(asked["words"])
        print(json.dumps([heard(place, words).hex() for place in asked["places"]]), flush=True)


if __name__ == "__main__":
    main()
