"""What is known of the raylets of this machine, by their command lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

from devkit.debug import processes
from devkit.hang.tables import on_this_machine


def test_where_a_raylet_writes_its_errors(tmp_path: Path) -> None:
    program, log = tmp_path / "raylet", tmp_path / "raylet.err"
    program.write_text("#!/bin/sh\nread line\n")  # the kernel calls a script by its own name
    program.chmod(0o700)
    log.write_bytes(b"old\n" * 10_000 + b"error: no such package\n")
    options = ["--node_id=a1b2", f"--stderr_filepath={log}", "--gcs-address=127.0.0.1:1", "--session_dir=/s"]
    with subprocess.Popen([program, *options], stdin=subprocess.PIPE) as raylet:
        while "--node_id" not in Path(f"/proc/{raylet.pid}/cmdline").read_text():  # it begins as a copy of this process
            pass
        assert processes.raylets_errors("a1b2") == log and processes.raylets_errors("c3d4") is None
        assert on_this_machine("a1b2").endswith(b"error: no such package\n") and on_this_machine("c3d4") == b""
        log.unlink()
        assert on_this_machine("a1b2") == b""
        assert "127.0.0.1:1" in processes.gcs_addresses(below="/s") - processes.gcs_addresses(below="/t")
