"""The Unix socket of the smoke test's warm process: other users can't reach it, and no words end what serves it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.smoke.warm_process import WarmProcess
from tests.debug.conftest import eventually
from tests.security.probes import PROBES, said_to
from tests.security.users import MALLORY, needs_users

pytestmark = [needs_users, pytest.mark.ray]


def test_strangers_words_at_the_warm_process(tmp_path: Path) -> None:
    process = WarmProcess(tmp_path / "warm.log")
    try:
        eventually(lambda: Path(process.socket).exists(), "the socket")
        assert Path(process.socket).parent.stat().st_mode & 0o077 == 0
        for words in PROBES.values():
            assert said_to([("unix", process.socket)], words, MALLORY) == [b""]
            with socket.socket(socket.AF_UNIX) as own:
                own.connect(process.socket)
                own.sendall(words[:4096])
        process.tell("dance")
        with pytest.raises(DevkitError, match="KeyError: 'dance'"):
            process.answer()
    finally:
        process.close()
    assert process._process.returncode == 0
    assert "another user" not in (tmp_path / "warm.log").read_text() and not os.path.exists(process.socket)
