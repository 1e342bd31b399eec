"""A process of UID that looks like a node of Ray: by its name, and by the GCS that its command line names."""

from __future__ import annotations

import ctypes
import json
import sys

from tests.security.users import become

PR_SET_NAME = 15

become(int(sys.argv[1]))
ctypes.CDLL(None).prctl(PR_SET_NAME, b"raylet", 0, 0, 0)
print(json.dumps("ready"), flush=True)
sys.stdin.read()
