"""What strangers say at a port that is not theirs: nine kinds of words, and who says them as another user."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from devkit.debug.inworker import PROTOCOL
from tests.security.users import program

INITIALIZE = b'{"seq":1,"type":"request","command":"initialize","arguments":{"adapterID":"python"}}'
# The first bytes of a TLS 1.2 client: record, handshake, random, one cipher suite.
TLS_HELLO = bytes.fromhex("160301002d010000290303") + secrets.token_bytes(32) + bytes.fromhex("00000200350100")

PROBES: dict[str, bytes] = {
    "nothing": b"",
    "garbage": secrets.token_bytes(512),
    "half a handshake": b'{"nonce":"00',
    "a handshake without the key": b'{"nonce":"00","mac":"00","kind":"client"}\n',
    "HTTP": b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
    "TLS": TLS_HELLO,
    "a huge line": b"x" * 1_000_000,
    "a debugger": b"Content-Length: %d\r\n\r\n%b" % (len(INITIALIZE), INITIALIZE),
    "an older protocol": json.dumps({"devkit": PROTOCOL - 1, "id": 1, "op": "ps", "arguments": {}}).encode() + b"\n",
}
Place = tuple[str, str, int] | tuple[str, str]  # ("tcp", host, port) or ("unix", path)


def said_to(places: Sequence[Place], words: bytes, uid: int) -> list[bytes]:
    """What each place answers to these words, said by a process of that user."""
    with program("stranger.py", uid) as stranger:
        return [bytes.fromhex(answer) for answer in stranger.ask(places=places, words=words.hex())]
