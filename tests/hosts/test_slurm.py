"""`devkit launch slurm` on a real Slurm over virtual hosts: what the script does there, not what it looks like."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import hosts, slurm
from tests.hosts.hosts import Host, Lan
from tests.pace import stretched

pytestmark = pytest.mark.timeout(600)
DEADLINE = stretched(240.0)  # seconds until a cluster that comes up on a busy machine has to be there
PROGRAM = """
import ray

@ray.remote(num_cpus=1, num_gpus=8)
class Worker:
    def step(self, words):
        half = len(words)  # @stop
        return ray.util.get_node_ip_address()

ray.init()
print("nodes", len([node for node in ray.nodes() if node["Alive"]]))
words = __import__("sys").argv[1:]
workers = [Worker.remote() for _ in range(3)]
print("ran on", *sorted(ray.get([worker.step.remote(words) for worker in workers])))
raise SystemExit(7)
"""
STOP = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# @stop" in line)
LAUNCHER = """
import json, os, sys
from devkit.launch.slurm import SlurmOptions
from devkit.launch.kuberay_cluster import NODES
from devkit.launch.slurm_cluster import SlurmLauncher
launcher = SlurmLauncher(SlurmOptions(nodes=2, cpus=2, timeout=200))
record = launcher.up(lambda line: print(line, file=sys.stderr), 210)
ran = [launcher.exec(node, ["sh", "-c", 'hostname; echo "$RAY_ADDRESS"; cat; exit 3'], stdin="in", timeout=30)
       for node in launcher.nodes()]
asked = launcher.exec(launcher.nodes()[0], [sys.executable, "-P", "-c", NODES], timeout=60)
down = launcher.down(60)
print(json.dumps([record.to_json(), [node.to_json() for node in launcher.nodes()],
                  [[each.code, each.out] for each in ran], [each.to_json() for each in down], json.loads(asked.out)]))
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_slurm() -> None:
    if slurm.problem():
        pytest.skip(slurm.problem())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all hosts see."""
    found = tmp_path_factory.mktemp("a shared folder")
    (found / "train.py").write_text(PROGRAM)
    return found


@pytest.fixture(scope="module")
def lan(folder: Path) -> Iterator[Lan]:
    with hosts.up(3, share=[folder]) as made, slurm.up(made):
        yield made


def devkit(host: Host, folder: Path, *arguments: str, before: tuple[str, ...] = (), code: int = 0) -> Any:
    """A devkit command on a host, in the shared folder."""
    words = ["env", "-C", str(folder), *before, sys.executable, "-P", "-m", "devkit", *arguments]
    done = host.run(*words, check=False, timeout=DEADLINE)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done


def eventually(look: Callable[[], Any], what: str, log: Callable[[], str] = lambda: "") -> Any:
    end = time.monotonic() + DEADLINE
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not happen\n{log()}"
        time.sleep(0.2)
    return found


def test_a_job_that_stops_at_a_breakpoint_is_seen_from_the_allocation_and_its_failure_from_outside(
    lan: Lan, folder: Path
) -> None:
    words = ["it's", 'a "word"', "$HOME", "two\nlines"]
    options = ["--nodes", "3", "--cpus", "2", "--gpus", "8", "--break", f"train.py:{STOP}", "--job-name", "my job"]
    command = [sys.executable, "-P", "-m", "devkit", "launch", "slurm", "--submit", *options]
    command += ["--output", "my job.sh", "--", sys.executable, "train.py", *words]
    process = lan[0].popen(
        "env", "-C", str(folder), *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        beside = ["srun", "--jobid=1", "--overlap", "-w", "h0", "--quiet", "bash", "-c"]
        note = eventually(
            lambda: re.search(r"Comment=devkit (\S+)", lan[0].run("scontrol", "show", "job", "1", check=False).stdout),
            "the cluster",
            lambda: (folder / "slurm-1.out").read_text(),
        )[1]

        def ask(words: str) -> Any:
            done = lan[0].run(*beside, f". {note}/env && {words}", check=False)
            return json.loads(done.stdout) if done.returncode == 0 else None

        stops = eventually(lambda: (found := ask("devkit ps --json")) and len(found["stops"]) == 3 and found, "stops")
        assert {(stop["line"], stop["role"]) for stop in stops["stops"]} == {(STOP, "Worker")}
        assert {stop["node_ip"] for stop in stops["stops"]} == {host.ip for host in lan}
        [group] = ask("devkit eval --json words")["groups"]
        assert group["value"] == repr(words)
        token = lan[0].run("cat", f"{note}/token").stdout
        assert re.fullmatch("[0-9a-f]{64}", token)
        assert lan[0].run("stat", "-c", "%a", f"{note}/token", note).stdout.split() == ["600", "700"]
        seen = [words for host in lan for words in host.processes().values()]
        assert len(seen) > 20 and not any(token in words for words in seen)
        assert token not in (folder / "my job.sh").read_text()
        assert ask("devkit continue --all --json")
        out, err = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    assert "nodes 3\n" in out and f"ran on {' '.join(host.ip for host in lan)}\n" in out
    assert "the command ended with exit code 7" in out
    assert "error: job 1: FAILED, exit code 7\n" in err
    assert "my job" in lan[0].run("scontrol", "show", "job", "1").stdout
    for host in lan:
        assert not [words for words in host.processes().values() if "raylet" in words or "gcs_server" in words]
    # The head has ended in order: Ray's note of a cluster that is no more is gone, too.
    assert lan[0].run("ls", "/tmp/ray/ray_current_cluster", check=False).returncode
    assert lan[0].run("ls", note).stdout.split().count("token") == 0


def test_the_node_that_fails_is_named(lan: Lan, folder: Path) -> None:
    for host in (lan[0], lan[2]):
        host.write("/opt/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n', "755")
    done = devkit(
        lan[0],
        folder,
        *("launch", "slurm", "--here", "--python", "/opt/python", "--", "true"),
        before=("salloc", "--quiet", "--nodes=3", "--cpus-per-task=2"),
        code=1,
    )
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: no Ray")]
    assert error.startswith("error: no Ray on node h1 (Slurm: ") and "/opt/python" in error
    assert "hint: its full log: " in done.stderr


def test_the_node_that_does_not_come_up_is_named_at_the_deadline(lan: Lan, folder: Path) -> None:
    lan[0].write("/opt/asleep", "#!/bin/sh\necho waiting for a disk >&2\nexec sleep 1000\n", "755")
    options = ("--python", "/opt/asleep", "--timeout", "3", "--nodes", "2", "--", "true")
    done = devkit(lan[0], folder, "launch", "slurm", "--submit", *options, code=4)
    assert "after 3 s 1 of 2 nodes are missing: h0 (Slurm: " in done.stdout
    assert "its last output: waiting for a disk" in done.stdout
    assert re.search(r"error: job \d+: FAILED, exit code 4\n", done.stderr)


def test_a_job_that_waits_for_nodes_says_why(lan: Lan, folder: Path) -> None:
    lan[0].run("scontrol", "update", "nodename=h[0-2]", "state=drain", "reason=test")
    try:
        options = ("--queue-timeout", "1", "--nodes", "3", "--", "true")
        done = devkit(lan[0], folder, "launch", "slurm", "--submit", *options, code=4)
    finally:
        lan[0].run("scontrol", "update", "nodename=h[0-2]", "state=resume")
    assert re.search(r"error: job \d+ still waits for its nodes after 1 s: (Resources|.*Node)", done.stderr)
    assert re.search(r"hint: it stays in the queue; remove it with scancel \d+", done.stderr)
    lan[0].run("scancel", "--user=root")


def test_a_cluster_alone_is_one_of_all_launchers(lan: Lan, folder: Path) -> None:
    done = lan[0].run("env", "-C", str(folder), sys.executable, "-P", "-c", LAUNCHER, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    record, nodes, ran, down, asked = json.loads(done.stdout.splitlines()[-1])
    assert record["debug"] == {"mode": "distributed", "post_mortem": True} and record["auth"]["mode"] == "token"
    assert [(node["alive"], node["cpus"]) for node in record["nodes"]] == [(True, 2.0)] * 2
    assert [(node["role"], node["name"], node["ip"]) for node in nodes] == [
        ("head", "h0", lan[0].ip),
        ("worker", "h1", lan[1].ip),
    ]
    assert {node["node_id"] for node in nodes} == {node["node_id"] for node in record["nodes"]}
    # What another launcher asks a head by, here with a real Ray.
    assert sorted(asked, key=lambda node: not node["head"]) == record["nodes"]
    # Each host has a home of its own here, and what a second shell needs is on the head.
    assert ran[0] == [3, f"h0\n{lan[0].ip}:6379\nin"]
    assert down == [{"node": name, "processes": 1, "problem": ""} for name in ("h0", "h1")]
    assert not [words for host in lan for words in host.processes().values() if "gcs_server" in words]


def test_an_unknown_option_of_sbatch_is_told_in_two_lines(lan: Lan, folder: Path) -> None:
    done = devkit(lan[0], folder, "launch", "slurm", "--submit", "--sbatch=--no-such", "--", "true", code=1)
    assert done.stderr.startswith("error: sbatch: unrecognized option '--no-such'")
    assert done.stderr.count("\n") == 2
