"""`devkit debug-cluster --hosts` from a laptop, to three real sshd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.debug.cluster_records import DebugCluster
from tests import documents
from tests.hosts import hosts, ssh
from tests.hosts.hosts import Host, Lan
from tests.hosts.launching import PYTHON, UP_S, devkit, document, environment_of, eventually, left_on

PROGRAMS = Path(__file__).parent / "programs"
HOSTS = "h0,h1,h2"
UP = ("debug-cluster", "--hosts", HOSTS, "--num-cpus", "2", "--timeout", f"{UP_S:g}")
pytestmark = pytest.mark.timeout(2 * UP_S + 120)


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    """Three hosts with sshd, and the laptop."""
    with hosts.up(4) as made, ssh.sshd(made, on=range(3)):
        yield made


@pytest.fixture
def laptop(lan: Lan) -> Host:
    host: Host = lan[3]
    return host


def refused(laptop: Host, *words: str, code: int) -> str:
    """The error and the hint of a launch that cannot be."""
    done = devkit(laptop, "debug-cluster", "--timeout", "60", *words, code=code)
    said = done.stderr.splitlines()
    assert said[-2].startswith("error: ") and said[-1].startswith("hint: "), done.stderr
    return f"{said[-2]}\n{said[-1]}"


def test_what_is_not_the_same_there_is_told_with_both_versions(lan: Lan, laptop: Host) -> None:
    plain = f'#!/bin/sh\nexec {PYTHON} "$@"\n'
    older = f'#!/bin/sh\nexport PYTHONPATH=/opt/old:$PYTHONPATH\nexec {PYTHON} "$@"\n'
    bare = f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.base_prefix}/bin/python3 "$@"\n'
    lan[1].write("/opt/old/ray-2.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ray\nVersion: 2.1.0\n")
    for host, script in zip(lan, (plain, older, bare), strict=False):
        host.write("/opt/python", script, mode="755")
    said = refused(laptop, "--hosts", HOSTS, "--python", "/opt/python", code=1)
    from ray import __version__ as ours

    assert f"h1 has ray 2.1.0, here is {ours}" in said and "h2 has no devkit" in said and "h2 has no Ray" in said
    assert "h0" not in said
    assert [left_on(host) for host in lan] == [[]] * 4


def test_an_interpreter_that_is_not_there(laptop: Host) -> None:
    said = refused(laptop, "--hosts", HOSTS, "--python", "/opt/none/python", code=1)
    assert "h0 has no /opt/none/python" in said and "h2 has no /opt/none/python" in said and "--python" in said


def test_a_host_that_cannot_be_reached_or_lets_nobody_in(lan: Lan, laptop: Host) -> None:
    assert "no ssh to elsewhere: " in refused(laptop, "--hosts", "h0,elsewhere", code=3)
    lan[1].run("mv", "/root/.ssh/authorized_keys", "/root/.ssh/off")
    said = refused(laptop, "--hosts", HOSTS, code=3)
    lan[1].run("mv", "/root/.ssh/off", "/root/.ssh/authorized_keys")
    assert "no ssh to h1: " in said and "Permission denied" in said and "ssh-copy-id h1" in said
    laptop.run("mv", "/root/.ssh/known_hosts", "/root/.ssh/off")
    said = refused(laptop, "--hosts", "h2", code=3)
    laptop.run("mv", "/root/.ssh/off", "/root/.ssh/known_hosts")
    assert "Host key verification failed" in said and "run `ssh h2` once" in said
    assert [left_on(host) for host in lan] == [[]] * 4


def test_one_machine_under_two_names(laptop: Host) -> None:
    assert "h0 and 10.77.0.1 are the same machine, 10.77.0.1" in refused(laptop, "--hosts", "h0,10.77.0.1", code=2)


FAILS_THERE = """
import json
from devkit.debug.ray_start import ClusterOptions
from devkit.errors import DevkitError
from devkit.launch.ssh import SshLauncher

launcher = SshLauncher(("h0",), None, ClusterOptions(ray_arguments=("--bogus",), auth="token"))
try:
    launcher.up(lambda note: None, 60)
except DevkitError as error:
    said = error.message
words = ["sh", "-c", "cat; command -v ray; echo ${RAY_AUTH_TOKEN:+a token}; env | grep -c ^SSH_; exit 3"]
ran = launcher.exec(launcher.nodes()[0], words, stdin="from here\\n", timeout=30)
print(json.dumps([said, ran.code, ran.out.splitlines()]))
"""


def test_what_fails_on_a_host_is_told_and_exec_has_the_environment_of_its_ray(lan: Lan, laptop: Host) -> None:
    said, code, out = json.loads(laptop.run(PYTHON, "-c", FAILS_THERE, timeout=UP_S).stdout)
    assert said.startswith("h0: `ray start` failed: Error: No such option '--bogus'")
    assert (code, out) == (3, ["from here", str(Path(PYTHON).with_name("ray")), "a token", "0"])
    assert left_on(lan[0]) == []


REMEMBERS = """
import sys, time
from devkit.debug import launched
from devkit.debug.launched import Launched, LaunchedHost

hosts = tuple(LaunchedHost(name, role, ip, "part", "/logs") for name, role, ip in
              (("h0", "head", "10.77.0.1"), ("h2", "worker", "10.77.0.3")))
launched.save(Launched("ssh-h0", "ssh", "10.77.0.1:6379", "http://10.77.0.1:8265", "distributed", "disabled",
                       sys.executable, hosts, time.time()))
"""


def test_a_cluster_that_has_ended_by_itself_is_told_and_can_be_forgotten(lan: Lan, laptop: Host) -> None:
    laptop.run(PYTHON, "-c", REMEMBERS)
    lan[0].write("/root/json.py", "raise SystemExit('the home folder is no place for modules')")
    [shown] = document(laptop, "debug-cluster", "status", code=1)["clusters"]
    lan[0].run("rm", "/root/json.py")
    ended = "what was started there has exited"
    assert shown["problem"] == f"h0: {ended}; h2: {ended}" and shown["nodes"] == []
    assert [host["problem"] for host in shown["hosts"]] == [ended, ended]
    assert devkit(laptop, "ps", code=3).stderr.startswith("error: no Ray cluster found"), "it is not taken for one"

    lan[2].run("sh", "-c", "kill $(cat /run/sshd.pid)")
    [stopped] = document(laptop, "debug-cluster", "stop", code=1)["stopped"]
    assert stopped["problem"].startswith("h2: no ssh to h2: ") and stopped["processes"] == 0
    assert document(laptop, "debug-cluster", "status", code=1)["clusters"], "something may still run on h2"
    lan[2].run("/usr/sbin/sshd")
    assert document(laptop, "debug-cluster", "stop")["stopped"][0]["problem"] == ""
    assert "no cluster" in devkit(laptop, "debug-cluster", "status", code=3).stderr


LOOKS_UP = """
import time
from devkit.launch.host_work import SLOW_LOOKUP_S, Lookup

lookup = Lookup("10.77.0.1")
time.sleep(SLOW_LOOKUP_S + 0.5)
print(lookup.note())
"""


def test_a_name_server_that_does_not_answer_is_told(lan: Lan) -> None:
    assert lan[0].run(PYTHON, "-c", LOOKS_UP).stdout == "\n"
    lan[1].write("/etc/resolv.conf", "nameserver 10.77.0.200\n")  # nobody has that address
    said = lan[1].run(PYTHON, "-c", LOOKS_UP).stdout
    lan[1].write("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    assert said.startswith("reverse DNS: looking up the name of 10.77.0.1 ")


@pytest.mark.ray
def test_a_cluster_through_ssh_is_like_any_other(lan: Lan, laptop: Host) -> None:
    record = document(laptop, *UP)
    documents.check(record, DebugCluster)
    assert [(node["ip"], node["alive"], node["head"]) for node in record["nodes"]] == [
        ("10.77.0.1", True, True),
        *((host.ip, True, False) for host in sorted(lan[1:3], key=lambda host: _id_of(record, host))),
    ]
    assert [(host["name"], host["role"], host["ip"]) for host in record["hosts"]] == [
        ("h0", "head", "10.77.0.1"),
        ("h1", "worker", "10.77.0.2"),
        ("h2", "worker", "10.77.0.3"),
    ]
    assert record["debug"] == {"mode": "distributed", "post_mortem": True} and record["gcs_address"] == "10.77.0.1:6379"

    token = laptop.run("cat", "/root/.ray/auth_token").stdout
    for host in lan[:3]:
        found = environment_of(host, "raylet")
        flags = {name: found.get(name) for name in ("RAY_DEBUG", "RAY_DEBUG_POST_MORTEM", "RAY_AUTH_MODE")}
        assert flags == {"RAY_DEBUG": "1", "RAY_DEBUG_POST_MORTEM": "1", "RAY_AUTH_MODE": "token"}
        assert found["RAY_AUTH_TOKEN"] == token and not any(name.startswith("SSH_") for name in found)
        assert found["PATH"].startswith(str(Path(PYTHON).parent))
        assert not any(token in words for words in host.processes().values())
        assert host.run("ls", "/root/.ray", check=False).returncode, "a token file would change other Rays there"

    marked = (PROGRAMS / "ranks.py").read_text().splitlines()
    line = next(number for number, text in enumerate(marked, 1) if "# @return" in text)
    job = laptop.popen(
        *(PYTHON, "-m", "devkit", "submit", "--working-dir", str(PROGRAMS), "--break", f"ranks.py:{line} @Rank[2]"),
        *("--", "python", "ranks.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with job:
        [stop] = eventually(lambda: document(laptop, "ps", code=None).get("stops", []), "stop")
        assert (stop["role"], stop["rank"], stop["line"]) == ("Rank", 2, line)
        assert stop["node_ip"] != "10.77.0.1" or record["nodes"][0]["ip"] == "10.77.0.1"
        assert document(laptop, "eval", "doubled")["results"][0]["value"] == "40"
        said = laptop.run(PYTHON, "-m", "devkit", "attach", stop["id"], stdin="p doubled + 2\nquit\n", timeout=UP_S)
        assert "42" in said.stdout.split(), said
        devkit(laptop, "continue", "--all")
        out, _ = job.communicate(timeout=UP_S)
        assert job.returncode == 0 and "got [40, 41, 42]" in out, out

    [shown] = document(laptop, "debug-cluster", "status")["clusters"]
    assert shown["problem"] == "" and len(shown["nodes"]) == 3 and shown["name"] == record["name"]
    lan[1].run("sh", "-c", "kill -9 $(grep -l '^raylet$' /proc/[0-9]*/comm | cut -d/ -f3)")
    [shown] = eventually(
        lambda: [
            each for each in document(laptop, "debug-cluster", "status", code=None)["clusters"] if each["problem"]
        ],
        "problem of h1",
    )
    assert shown["problem"].startswith("h1: ") and [bool(host["problem"]) for host in shown["hosts"]] == [0, 1, 0]

    [stopped] = document(laptop, "debug-cluster", "stop")["stopped"]
    assert stopped["name"] == record["name"] and stopped["problem"] == "" and stopped["processes"] > 10
    assert [left_on(host) for host in lan] == [[]] * 4
    assert devkit(laptop, "debug-cluster", "status", code=3).stderr.startswith("error: no cluster")


def _id_of(record: dict[str, object], host: Host) -> str:
    nodes = record["nodes"]
    assert isinstance(nodes, list)
    return next(str(node["node_id"]) for node in nodes if node["ip"] == host.ip)


@pytest.mark.ray
def test_a_host_that_cannot_reach_the_head_is_named_and_nothing_is_left(lan: Lan, laptop: Host) -> None:
    lan.partition(0, 2)
    done = devkit(laptop, *UP[:-1], "20", code=None)
    lan.heal(0, 2)
    assert done.returncode == 4, done.stderr
    error = done.stderr.splitlines()[-2]
    assert "h2: the head is not up after " in error and "no Ray answers at 10.77.0.1:6379: no answer" in error
    assert "h0: the cluster is not up" in error
    assert [left_on(host) for host in lan] == [[]] * 4


@pytest.mark.ray
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_launch_that_is_broken_off_leaves_nothing(lan: Lan, laptop: Host, end: signal.Signals) -> None:
    command = laptop.popen(PYTHON, "-m", "devkit", *UP, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with command:
        eventually(lambda: [words for words in left_on(lan[0]) if "gcs_server" in words], "GCS")
        [pid, *_] = [pid for pid, words in laptop.processes().items() if "devkit debug-cluster" in words]
        laptop.run("kill", f"-{end.value}", str(pid))
        _, said = command.communicate(timeout=UP_S)
    if end == signal.SIGINT:
        assert command.returncode == 130 and "error: interrupted" in said
    eventually(lambda: not any(left_on(host) for host in lan), "end of what was started")
