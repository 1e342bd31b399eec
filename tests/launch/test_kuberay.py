"""Manifests by KubeRay's own definitions, and what real kubectl and a server make of them."""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.cli import main
from devkit.errors import UsageError
from devkit.launch.files import as_yaml
from devkit.launch.kuberay import KubeRayOptions, manifest
from devkit.launch.kuberay_cluster import KubeRayLauncher
from tests.launch import crds
from tests.launch.fake_kube import FakeKube, kubeconfig, pod_state, serving
from tests.pace import stretched

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)


def options(**more: Any) -> KubeRayOptions:
    return KubeRayOptions(**{"image": "rayproject/ray:2.52.0", "ray_version": "2.52.0", **more})


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    groups = [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


@pytest.mark.parametrize("command", [(), ("python3", "train.py")])
@pytest.mark.parametrize("more", [{}, {"nodes": 1}, {"gpus": 8, "rocm": True, "claims": ("data:/data",)}])
def test_a_manifest_passes_the_real_definition(command: tuple[str, ...], more: dict[str, Any]) -> None:
    made = manifest(options(command=command, variables=("A=b",), namespace="n", **more))
    assert crds.problems(made) == []
    assert yaml.safe_load(as_yaml(made)) == made


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "headGroupSpec", "rayStartParam"), {}, "'rayStartParam' was unexpected"),
        (("spec", "workerGroupSpecs", 0, "replicas"), "one", "is not of type 'integer'"),
        (("spec", "authOptions", "mode"), "tokens", "is not one of"),
    ],
)
def test_the_definitions_refuse_what_is_wrong(path: tuple[Any, ...], value: Any, said: str) -> None:
    made = manifest(options())
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert any(said in problem for problem in crds.problems(made))


def test_every_node_has_the_flags_and_the_token_by_reference() -> None:
    made = manifest(options(nodes=3, gpus=8, variables=("NCCL_DEBUG=INFO", "PS1=$(id)")))
    assert len(containers(made)) == 2 and made["spec"]["workerGroupSpecs"][0]["replicas"] == 2
    for container in containers(made):
        environ = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}
        reference = {"secretKeyRef": {"name": "devkit-token", "key": "auth_token"}}
        assert (environ["RAY_AUTH_MODE"], environ["RAY_AUTH_TOKEN"]) == ("token", reference)
        assert environ["RAY_DEBUG"] == environ["RAY_DEBUG_POST_MORTEM"] == "1"
        assert environ["NCCL_DEBUG"] == "INFO" and environ["PS1"] == "$$(id)"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert made["spec"]["authOptions"] == {"mode": "token", "secretName": "devkit-token"}


@settings(max_examples=50, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), st.dictionaries(st.from_regex("[A-Z]{1,4}", fullmatch=True), WORDS))
def test_the_command_and_the_values_survive_yaml_and_the_shell(command: list[str], variables: dict[str, str]) -> None:
    given = tuple(f"{name}={value}" for name, value in variables.items())
    made = yaml.safe_load(as_yaml(manifest(options(command=tuple(command), variables=given))))
    assert shlex.split(made["spec"]["entrypoint"]) == command
    environ = {entry["name"]: entry.get("value") for entry in containers(made)[0]["env"]}
    assert {name: environ[name].replace("$$(", "$(") for name in variables} == {
        name: value.replace("$$(", "$(") for name, value in variables.items()
    }


def test_breakpoints_need_devkit_in_the_image_and_nothing_else_does() -> None:
    assert manifest(options(command=("python3", "a b.py")))["spec"]["entrypoint"] == "python3 'a b.py'"
    made = manifest(options(command=("python3", "t.py"), specs=("t.py:3 if x",), post_mortem="pause"))
    words = shlex.split(made["spec"]["entrypoint"])
    assert words[3:] == ["devkit", "run", "--break=t.py:3 if x", "--post-mortem=pause", "--", "python3", "t.py"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"image": ""}, "missing option --image"),
        ({"name": "My_Job"}, "--name is 'My_Job'"),
        ({"name": "a" * 48}, "--name is"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"memory": "16 GB"}, "--memory is '16 GB'"),
        ({"ray_version": "2.49.1"}, "Ray 2.49.1 does not support tokens"),
        ({"ray_version": "nightly"}, "--ray-version is 'nightly'"),
        ({"variables": ("A",)}, "--env is 'A'"),
        ({"variables": ("RAY_AUTH_TOKEN=x",)}, "the token is in a Secret"),
        ({"claims": ("data",)}, "--claim is 'data'"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        manifest(options(**wrong))
    assert caught.value.hint


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    (tmp_path / "bin").mkdir()
    with serving(FakeKube(tmp_path / "bin")) as fake:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, fake.url)))
        monkeypatch.setenv("HOME", str(tmp_path))  # kubectl's cache of what the server can
        rays = [
            {"node_id": f"{number:056x}", "ip": f"10.1.0.{number + 1}", "alive": True, "cpus": 4.0, "gpus": 0.0}
            | {"head": number == 0}
            for number in range(2)
        ]
        stand_in = tmp_path / "bin" / "python3"
        stand_in.write_text(f"#!/bin/sh\necho '{json.dumps(rays)}'\n")
        stand_in.chmod(0o755)
        yield fake


IMAGE = ("--image", "rayproject/ray:2.52.0", "--ray-version", "2.52.0")


def test_apply_makes_the_token_once_and_gives_the_record(kube: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["auth"] == {"mode": "token", "source": "secret/devkit-token"}
    assert record["debug"] == {"mode": "distributed", "post_mortem": True}
    assert [node["ip"] for node in record["nodes"]] == ["10.1.0.1", "10.1.0.2"]
    token = base64.b64decode(kube.tables["secrets"]["devkit-token"]["data"]["auth_token"]).decode()
    assert len(token) == 64 and token not in out + err
    assert all("/namespaces/training/" in path for _, path in kube.requests)
    assert any("fieldValidation=Strict" in path for method, path in kube.requests if method == "POST")

    assert main(["launch", "kuberay", *IMAGE, "--apply"]) == 0
    out, _ = capsys.readouterr()
    assert base64.b64decode(kube.tables["secrets"]["devkit-token"]["data"]["auth_token"]).decode() == token
    assert "kubectl port-forward svc/devkit-head-svc 8265" in out
    shown = subprocess.run(
        [
            "bash",
            "-c",
            next(line for line in out.splitlines() if "RAY_AUTH_TOKEN" in line) + '; echo "$RAY_AUTH_TOKEN"',
        ],
        capture_output=True,
        text=True,
    )
    assert shown.stdout.strip() == token


def test_the_launcher_runs_commands_in_pods_and_ends_what_it_made(kube: FakeKube) -> None:
    launcher = KubeRayLauncher(options())
    launcher.up(lambda line: None, 30)
    head, worker = launcher.nodes()
    assert (head.role, head.ip, worker.role, worker.name) == ("head", "10.1.0.1", "worker", "devkit-workers-worker-0")
    ran = launcher.exec(
        worker, ["sh", "-c", 'cat; echo "$POD $1" >&2; exit 3', "sh", "a 'b'"], stdin="in", timeout=stretched(20)
    )
    assert (ran.code, ran.out) == (3, "in") and ran.err.startswith(f"{worker.name} a 'b'\n")
    assert [down.node for down in launcher.down(20)] == [head.name, worker.name]
    assert kube.names("rayclusters") == kube.names("pods") == [] and kube.names("secrets") == ["devkit-token"]


def test_what_is_missing_at_the_deadline_is_named_and_nothing_is_left(
    kube: FakeKube, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    kube.fate = lambda pod: (
        pod_state(phase="Pending", message=message) if "worker" in pod["metadata"]["name"] else pod_state()
    )
    assert main(["launch", "kuberay", *IMAGE, "--gpus", "8", "--apply", "--timeout", "1"]) == 4
    err = capsys.readouterr().err
    assert f"error: after 1 s 1 of 2 nodes are missing: devkit-workers-worker-0 ({message})\n" in err
    assert "hint: kubectl describe pods -l ray.io/cluster=devkit\n" in err
    assert kube.names("rayclusters") == []


def test_an_image_that_cannot_be_had_ends_the_wait_at_once(kube: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found: no/such:1"}}
    kube.fate = lambda pod: pod_state(ready=False, phase="Pending", state=waiting)
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--timeout", "300"]) == 1
    assert "devkit-head-aaaaa (ErrImagePull: not found: no/such:1)\n" in capsys.readouterr().err


def test_what_the_server_refuses_is_told_in_two_lines(kube: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    kube.tables["rayjobs"] = {"devkit": {"metadata": {"name": "devkit"}}}
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--", "true"]) == 1
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: kubectl create: ") and "AlreadyExists" in error
    assert hint.startswith("hint: remove the old one with kubectl delete")


@pytest.mark.parametrize(("end", "code"), [("SUCCEEDED", 0), ("FAILED", 1)])
def test_a_job_is_followed_to_its_end(kube: FakeKube, capsys: pytest.CaptureFixture[str], end: str, code: int) -> None:
    deployment = "Complete" if end == "SUCCEEDED" else "Failed"
    kube.job_states = [
        {"jobDeploymentStatus": "Initializing"},
        {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "jobId": "devkit-x"},
        {"jobDeploymentStatus": deployment, "jobStatus": end, "jobId": "devkit-x", "message": "exit code\n7"},
    ]
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--json", "--", "python3", "t.py"]) == code
    record = json.loads(capsys.readouterr().out)
    assert (record["status"], record["submission_id"]) == (end, "devkit-x")
    assert ("exit code 7" in record.get("error", "")) == bool(code)


def test_a_job_whose_nodes_do_not_come_says_so(kube: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    kube.job_states = [{"jobDeploymentStatus": "Initializing", "rayClusterName": "devkit-abc"}]
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--timeout", "1", "--", "true"]) == 4
    assert "the job has not started; missing: a pod that the operator has not created yet" in capsys.readouterr().err


def test_a_named_secret_has_to_be_there(kube: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "kuberay", *IMAGE, "--apply", "--token-secret", "mine"]) == 1
    assert "error: the Secret mine is not there\n" in capsys.readouterr().err
    assert kube.names("rayclusters") == []


def test_no_server_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://127.0.0.1:9")))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["launch", "kuberay", *IMAGE, "--apply"]) == 3
    assert "hint: check the cluster with kubectl cluster-info" in capsys.readouterr().err
