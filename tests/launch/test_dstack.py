"""The dstack file: by dstack's own models, and its commands in a real sh on each node of a task."""

from __future__ import annotations

import json
import lzma
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from devkit.cli import main
from devkit.errors import UsageError
from devkit.launch.dstack import AWAIT_HEAD, DstackOptions, configuration, program
from devkit.launch.files import as_yaml

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10).filter(lambda word: "${{" not in word)
AWKWARD = ("", "it's", 'a "b" $(c) `d` \\', "two\nlines", "-x", "#", "é ", "| tee log")
# A Python that has dstack, which is no dependency of this project: 268 MB. It asks dstack's own models.
DSTACK = os.environ.get("DEVKIT_DSTACK_PYTHON", "")
ASK = """
import sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
print(type(parse_apply_configuration(yaml.safe_load(sys.stdin))).__name__)
"""
FULL = DstackOptions(
    command=("python3", "train.py"),
    gpus="80GB:8",
    image="verl",
    shared_memory="128GB",
    variables=("WANDB_API_KEY", "A=b c"),
    volumes=("/checkpoints:/checkpoints", "data:/data"),
    setup=("pip install -e .",),
    specs=("train.py:3 if x",),
)


@pytest.mark.skipif(not DSTACK, reason="DEVKIT_DSTACK_PYTHON names no Python with dstack[server]==0.22.5")
@pytest.mark.parametrize("options", [DstackOptions(), FULL, DstackOptions(command=AWKWARD, nodes=1)])
def test_dstack_itself_takes_it(options: DstackOptions) -> None:
    done = subprocess.run([DSTACK, "-c", ASK], input=as_yaml(configuration(options)), capture_output=True, text=True)
    assert done.stdout == "TaskConfiguration\n", done.stderr


@pytest.mark.parametrize("options", [DstackOptions(), FULL, DstackOptions(command=AWKWARD, nodes=1)])
def test_it_passes_the_schema_that_dstack_makes_of_its_models(options: DstackOptions) -> None:
    made = configuration(options)
    assert yaml.safe_load(as_yaml(made)) == made
    assert refused(made) == []
    assert refused({**made, "nodez": 2}) and refused({**made, "type": "tusk"}) and refused({**made, "gpus": 8})


def refused(document: dict[str, Any]) -> list[str]:
    schema = json.loads(lzma.decompress(Path(__file__).with_name("dstack").joinpath("task.json.xz").read_bytes()))
    return [error.message for error in Draft202012Validator(schema).iter_errors(document)]


def test_the_token_is_named_and_never_held() -> None:
    made = configuration(FULL)
    assert {"RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN", "RAY_DEBUG=1", "RAY_DEBUG_POST_MORTEM=1"} <= set(made["env"])
    assert made["env"][-2:] == ["WANDB_API_KEY", "A=b c"]


class Node:
    """One node of a task: `ray` and `python3` note their words; what the task's commands do is real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("ray", "python3"):
            stub = folder / "bin" / name
            stub.write_text(
                f'#!/bin/bash\nprintf "%s\\0" {name} "$@" >> "{folder}/said"; printf "\\1" >> "{folder}/said"\n'
            )
            stub.chmod(0o755)

    def run(self, rank: int, options: DstackOptions) -> tuple[int, list[tuple[str, ...]]]:
        environ = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "DSTACK_NODE_RANK": str(rank),
            "DSTACK_NODES_NUM": str(options.nodes),
            "DSTACK_MASTER_NODE_IP": "10.0.0.1",
            "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2",
        }
        done = subprocess.run(["sh", "-c", program(options)], env=environ, cwd=self.folder, timeout=30)
        calls = (self.folder / "said").read_text().split("\1")[:-1]
        return done.returncode, [tuple(call.split("\0")[:-1]) for call in calls]


def test_the_head_starts_waits_and_runs_the_command_as_it_was_given(tmp_path: Path) -> None:
    code, calls = Node(tmp_path).run(0, DstackOptions(command=("python3", *AWKWARD), timeout=90))
    start, wait, command = calls
    assert code == 0 and command == ("python3", *AWKWARD)
    assert start[:3] == ("ray", "start", "--head") and "--node-ip-address=10.0.0.1" in start
    assert wait[-3:] == ("10.0.0.1:6379", "2", "90")


def test_a_worker_waits_for_the_head_and_stays(tmp_path: Path) -> None:
    code, calls = Node(tmp_path).run(1, DstackOptions(command=("true",), timeout=90))
    wait, start = calls
    assert code == 0 and wait[-3:] == ("10.0.0.1", "6379", "90")
    assert start == ("ray", "start", "--block", "--address=10.0.0.1:6379", "--node-ip-address=10.0.0.2")


def test_the_exit_code_is_that_of_the_command_and_a_failure_before_ends_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.run(0, DstackOptions(command=("sh", "-c", "exit 7")))[0] == 7
    (tmp_path / "bin/ray").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "said").write_text("")
    assert node.run(0, DstackOptions(command=("python3", "never"))) == (5, [])


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_any_command_survives_the_yaml_and_the_shell(command: list[str]) -> None:
    made = yaml.safe_load(as_yaml(configuration(DstackOptions(command=tuple(command)))))
    last = made["commands"][-1].rstrip("\n").rpartition("\nexec ")[2]
    assert shlex.split(last) == command


def test_a_head_that_does_not_answer_is_named_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert subprocess.run([sys.executable, "-c", AWAIT_HEAD, "127.0.0.1", port, "5"]).returncode == 0
    done = subprocess.run([sys.executable, "-c", AWAIT_HEAD, "127.0.0.1", port, "0"], capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.startswith(f"error: after 0 s no Ray answers at the head, 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "A b"}, "--name is 'A b'"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"shared_memory": "lots"}, "--shared-memory is 'lots'"),
        ({"variables": ("1A=b",)}, "--env is '1A=b'"),
        ({"variables": ("RAY_AUTH_TOKEN=x",)}, "it is already passed by name"),
        ({"volumes": ("data",)}, "--volume is 'data'"),
        ({"post_mortem": "x"}, "--post-mortem is 'x'"),
        ({"command": ("${{ secrets.a }}",)}, "contains \\$\\{\\{"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        configuration(DstackOptions(**wrong))
    assert caught.value.hint


def test_lint_finds_no_error_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.dstack.yml"
    command = ("python3", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2", "trainer.resume_mode=disable")
    assert main(["launch", "dstack", "--output", str(path), "--", *command]) == 0
    assert "dstack apply -f" in capsys.readouterr().err
    main(["lint", "--json", str(path)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert not [found for found in findings if found["rule"] in ("argument-after-pipe", "not-parsed")]
