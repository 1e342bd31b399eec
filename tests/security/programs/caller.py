"""A process of UID that connects to the Unix socket PATH, and prints what it is told there."""

from __future__ import annotations

import json
import socket
import sys

from tests.security.users import become

become(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as there:
    there.connect(sys.argv[2])
    print(json.dumps(there.makefile().read()), flush=True)
