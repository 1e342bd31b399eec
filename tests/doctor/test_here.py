"""The doctor on this machine alone: the command, the record, exit codes, and mistakes that are made here for real."""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from devkit import cli
from devkit.doctor.records import DoctorDocument
from devkit.doctor.run import DoctorOptions, doctor
from devkit.doctor.view import lines
from tests import documents
from tests.pace import stretched

QUICK = ("doctor", "--here", "--no-collective", "--json")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert cli.main(arguments) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    documents.check(document, DoctorDocument)
    return document


def said(document: dict[str, Any], rule: str) -> list[str]:
    return [finding["what"] for finding in document["findings"] if finding["rule"] == rule]


@pytest.mark.xdist_group("doctor")
@pytest.mark.timeout(180)
def test_this_machine_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "doctor", "--here", "--timeout", "60", "--json")
    assert document["errors"] == 0
    [gloo] = document["collectives"]
    assert (gloo["status"], gloo["ranks"]) == ("done", 2)


def test_a_check_that_did_not_end_in_time_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("devkit.doctor.run.LEAST_S", 1.0)
    cli.main(["doctor", "--here", "--timeout", "1"])
    page = capsys.readouterr().out
    assert "gloo all-reduce over 2 ranks: not finished (" in page
    assert "[collective-unfinished]" in page


def test_the_page_has_the_machine_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--here", "--no-collective"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, heading, row, *_, last = out.splitlines()
    assert first == "this machine"
    assert heading.split()[:4] == ["node", "ip", "Python", "ray"]
    assert row.split()[0] == socket.gethostname()
    assert last.startswith("doctor: ") and "(this machine, " in last


def test_a_narrow_terminal_gets_two_tables_and_no_broken_line() -> None:
    record = doctor(DoctorOptions(here=True, collective=False))

    def page(width: int | None) -> list[str]:
        console = Console(width=200, file=io.StringIO())
        for each in lines(record, width):
            console.print(each, soft_wrap=True)
        return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]

    wide = page(None)
    software, hardware = wide[1].split()[:5], wide[1].split()[5:]
    assert hardware == ["GPUs", "CPUs", "memory", "shm", "disk", "free"] and page(200) == wide
    narrow = page(60)
    assert narrow[1].split() == software and narrow[4].split() == ["node", *hardware]
    assert [*narrow[2].split(), *narrow[5].split()[1:]] == wide[2].split()
    assert max(len(line.rstrip()) for line in narrow[:6]) < len(wide[1])  # by how much, the names of GPUs say


def test_a_finding_shows_what_was_seen_and_what_mends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "/no/cuda")
    assert cli.main(["doctor", "--here", "--no-collective"]) == 0  # a warning
    lines = capsys.readouterr().out.splitlines()
    start = lines.index(f"warning: CUDA_HOME on {socket.gethostname()} has no nvcc: /no/cuda [cuda-home]")
    assert [line.split(":")[0].strip() for line in lines[start + 1 : start + 4]] == ["found", "why", "fix"]


@pytest.mark.xdist_group("doctor")
@pytest.mark.timeout(180)
def test_gloo_on_an_interface_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a variable that a script of another cluster has left
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    # when the doctor looks
    document = ask(capsys, "doctor", "--here", "--timeout", "60", "--json", code=1)
    # then it says so, and gloo itself has failed with it
    what = f"GLOO_SOCKET_IFNAME is ib7 on {socket.gethostname()}, which has no such interface"
    assert said(document, "interface-missing") == [what]
    assert said(document, "collective-failed")
    assert "ib7" in document["collectives"][0]["detail"]


def test_a_port_that_an_earlier_run_holds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        document = ask(capsys, *QUICK)
    assert said(document, "port-taken") == [f"port {port} on {socket.gethostname()} (MASTER_PORT) is in use"]
    [finding] = [each for each in document["findings"] if each["rule"] == "port-taken"]
    assert f"pid {os.getpid()}: " in finding["evidence"][0]
    # and once it is free, nothing is said
    assert said(ask(capsys, *QUICK), "port-taken") == []


def test_a_limit_that_is_too_low(tmp_path: Path) -> None:
    command = f"ulimit -Sn 512; exec {shlex.quote(sys.executable)} -m devkit {' '.join(QUICK)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=stretched(60))
    assert done.returncode == 0, done.stderr
    assert said(json.loads(done.stdout), "open-files") == [
        f"a process on {socket.gethostname()} may open only 512 files"
    ]


def test_a_cluster_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    # given an address where nothing listens
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # when it is named
    document = ask(capsys, "doctor", "--address", f"127.0.0.1:{port}", "--no-collective", "--json", code=3)
    # then that is said, and this machine was looked at
    assert said(document, "cluster-unreachable") == [f"no Ray answers at 127.0.0.1:{port}: connection refused"]
    assert [node["answered"] for node in document["nodes"]] == [True]


def test_a_token_file_that_others_can_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("0123456789abcdef")
    file.chmod(0o644)
    monkeypatch.setenv("HOME", str(tmp_path))
    document = ask(capsys, *QUICK)
    assert said(document, "token-open") == [f"other users on {socket.gethostname()} can read the token in {file}"]
    assert "0123456789abcdef" not in json.dumps(document)
    file.chmod(0o600)
    assert said(ask(capsys, *QUICK), "token-open") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "1"], "--timeout is 1"),
        (["--here", "--address", "h:1"], "--here and --address together"),
        (["--adress", "h:1"], "--adress"),
        (["--address", "nowhere:at:all"], "--address"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *arguments]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and message in first
    assert second.startswith("hint: ")


def test_it_loads_no_torch_and_no_ray() -> None:
    code = f"import sys; from devkit.cli import main; main({list(QUICK)}); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint({"torch", "ray", "transformers"})


def test_the_entry_loads_none_of_it() -> None:
    code = "import sys; from devkit.cli import main; main(['doctor', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({"tree_sitter", "trainer", "devkit.doctor.run", "devkit.doctor.onnode"})
