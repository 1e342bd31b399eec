"""The sbatch script in a real bash: what reaches the nodes, in which words, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.cli import main
from devkit.errors import UsageError
from devkit.launch.slurm import SlurmOptions, script
from devkit.launch.slurm_client import SlurmJob, parse_job
from tests.launch.fake_slurm import FakeSlurm

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
AWKWARD = ("", "it's", 'a "b" $(c) `d` \\', "two\nlines", "-x", "#", "!", "*", "é ", "x=$HOME")


def options(*command: str, **more: Any) -> SlurmOptions:
    return SlurmOptions(command=command, **{"python": "python3", "nodes": 2, **more})


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm.make(tmp_path / "a 'fake' \"Slurm\"")


def test_the_command_arrives_as_it_was_given_beside_all_nodes(fake: FakeSlurm) -> None:
    done = fake.run(script(options("python", *AWKWARD, specs=("a b.py:3 if x == '1'",), post_mortem="pause")))
    assert done.returncode == 0, done.stderr
    [run] = fake.devkit("run")
    assert run.words[4:] == ("--break=a b.py:3 if x == '1'", "--post-mortem=pause", "--", "python", *AWKWARD)
    assert run.node == "n0" and run.environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    head, worker, _ = fake.devkit("debug-cluster")
    common = ("--num-cpus", "4", "--num-gpus", "3")
    assert head.words[3:] == (*START, "--dashboard-host", "0.0.0.0", *common)
    assert worker.words[3:] == (*START, "--join", "10.0.0.1:6379", *common) and worker.node == "n1"
    assert len({call.environ["RAY_AUTH_TOKEN"] for call in (run, head, worker)}) == 1
    assert head.environ["RAY_AUTH_MODE"] == "token" and len(head.environ["RAY_AUTH_TOKEN"]) == 64
    assert all({"--overlap", "--export=ALL", "--nodes=1", "--ntasks=1"} <= set(c.words) for c in fake.calls("srun"))
    assert (fake.folder / "ended.n0").exists() and (fake.folder / "ended.n1").exists()
    assert not list((fake.folder / ".cache/devkit/slurm").iterdir())


START = ("debug-cluster", "--block", "--json", "--timeout", "300")


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(st.tuples(st.from_regex("[A-Z]{2,5}", fullmatch=True), WORDS)))
def test_any_word_and_any_value_survives_the_script(command: list[str], variables: list[tuple[str, str]]) -> None:
    known = {name: value for name, value in variables if name not in ("IFS", "PATH", "HOME", "CMD")}
    text = script(options(*command, variables=tuple(f"{name}={value}" for name, value in known.items())))
    beginning = text[: text.index("# ---- from here on")]
    show = 'printf "%s\\0" "${CMD[@]}"' + "".join(f' "${name}"' for name in known)
    done = subprocess.run(["bash"], input=f"{beginning}\n{show}".encode(), capture_output=True)
    assert done.stderr == b"" and done.stdout.decode().split("\0")[:-1] == [*command, *known.values()]


@settings(max_examples=40, deadline=None)
@given(WORDS)
def test_an_sbatch_line_stays_one_line_or_is_refused(name: str) -> None:
    try:
        text = script(options("x", job_name=name))
    except UsageError:
        return
    lines = [line for line in text.split("\n") if line.startswith("#SBATCH")]
    assert len(lines) == 3 + bool(name)
    assert text.split("\n")[1 : 1 + len(lines)] == lines


def test_docker_gets_the_devices_the_variables_by_name_and_the_folders(fake: FakeSlurm) -> None:
    more = {"container": "docker", "image": "my/img:1", "mounts": ("/data:/d x",), "variables": ("MY=1 2", "OTHER")}
    done = fake.run(script(options("train", "a b", **more, container_options=("--memory=8g",))), NCCL_DEBUG="INFO")
    assert done.returncode == 0, done.stderr
    head = next(call for call in fake.calls("docker") if call.words[0] == "run")
    here = str(fake.folder)
    at = head.words.index("my/img:1")
    assert head.words[at:] == ("my/img:1", "-P", "-m", "devkit", *fake.devkit("debug-cluster")[0].words[3:])
    before = head.words[:at]
    assert before[before.index("--gpus") + 1] == '"device=0,4,5"'
    assert [before[i + 1] for i, word in enumerate(before) if word == "-v"] == [f"{here}:{here}", "/data:/d x"]
    passed = {before[i + 1] for i, word in enumerate(before) if word == "-e"}
    assert {"RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "NCCL_DEBUG", "MY", "OTHER"} <= passed
    assert not any("=" in name for name in passed) and "CUDA_VISIBLE_DEVICES" not in passed
    assert {"--network=host", "--ipc=host", "--memory=8g", "--entrypoint=python3", "--rm"} <= set(before)
    assert head.environ["RAY_AUTH_TOKEN"] not in " ".join(head.words) and head.environ["MY"] == "1 2"
    [inside] = [call for call in fake.calls("docker") if call.words[0] == "exec" and "run" in call.words]
    assert inside.words[-3:] == ("--", "train", "a b") and "devkit-7" in inside.words
    assert [call.words for call in fake.calls("docker")][-1][:2] == ("rm", "-f")


def test_podman_names_each_device(fake: FakeSlurm) -> None:
    assert fake.run(script(options("x", container="podman", image="i"))).returncode == 0
    words = next(call.words for call in fake.calls("podman") if call.words[0] == "run")
    assert [word for word in words if word.startswith("--device=nvidia")] == [
        f"--device=nvidia.com/gpu={number}" for number in (0, 4, 5)
    ]


def test_enroot_imports_an_image_once_and_starts_beside_it(fake: FakeSlurm, tmp_path: Path) -> None:
    """An archive that another user has put where one would be, by the job's number, is not taken for ours."""
    planted = tmp_path / "devkit-7.sqsh"
    planted.write_text("evil")
    text = script(options("x y", container="enroot", image="docker://ubuntu", mounts=("/data:/d",)))
    assert fake.run(text, nodes="n0", TMPDIR=str(tmp_path)).returncode == 0
    calls = [call.words for call in fake.calls("enroot")]
    archive = calls[0][2]
    assert re.fullmatch(re.escape(f"{tmp_path}/devkit-7.") + r"\w{6}/image\.sqsh", archive)
    assert calls[0] == ("import", "--output", archive, "docker://ubuntu")
    assert calls[1] == ("create", "--force", "--name", "devkit-7", archive)
    assert list(tmp_path.glob("devkit-7*")) == [planted]
    starts = [call for call in calls if call[0] == "start"]
    assert starts[0][-11:-9] != starts[-1] and starts[-1][-5:] == ("-m", "devkit", "run", "--", "x y")
    assert all({"/tmp:/tmp", "/data:/d", "RAY_AUTH_TOKEN"} <= set(call) for call in starts)
    assert calls[-1][:2] == ("remove", "--force")


def test_pyxis_is_words_of_srun(fake: FakeSlurm) -> None:
    text = script(options("x", container="pyxis", image="nvcr.io#a/b:1", mounts=("/data:/d",)))
    assert fake.run(text).returncode == 0
    steps = [call.words for call in fake.calls("srun") if "--job-name=start_node" in call.words]
    here = str(fake.folder)
    for words in steps:
        assert {"--container-image=nvcr.io#a/b:1", "--container-name=devkit-7"} <= set(words)
        assert f"--container-mounts={here}:{here},/tmp:/tmp,/data:/d" in words
    assert len(steps) == 2 and fake.devkit("run")


def test_rocm_leaves_one_variable_for_the_devices_and_what_the_user_has_set(fake: FakeSlurm) -> None:
    assert fake.run(script(options("x", rocm=True)), NCCL_PROTO="LL").returncode == 0
    for call in [*fake.devkit("debug-cluster"), *fake.devkit("run")]:
        devices = {name: value for name, value in call.environ.items() if name.endswith("_VISIBLE_DEVICES")}
        assert devices == {"HIP_VISIBLE_DEVICES": "0,1,2"}
        assert call.environ["NCCL_PROTO"] == "LL" and call.environ["HSA_NO_SCRATCH_RECLAIM"] == "1"
    assert fake.run(script(options("x", rocm=True, container="docker", image="i"))).returncode == 0
    words = next(call.words for call in fake.calls("docker") if call.words[0] == "run")
    assert {"--device=/dev/kfd", "--device=/dev/dri", "HIP_VISIBLE_DEVICES=0,4,5"} <= set(words)
    assert "--gpus" not in words and "HSA_NO_SCRATCH_RECLAIM" in words and "GPU_MAX_HW_QUEUES" in words


def test_without_rocm_the_devices_stay_as_slurm_has_set_them(fake: FakeSlurm) -> None:
    assert fake.run(script(options("x"))).returncode == 0
    environ = fake.devkit("debug-cluster")[0].environ
    assert environ["ROCR_VISIBLE_DEVICES"] == environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert "HSA_NO_SCRATCH_RECLAIM" not in environ


def test_the_exit_code_of_the_command_is_that_of_the_job_and_the_logs_stay(fake: FakeSlurm) -> None:
    done = fake.run(script(options("x")), CODE="9")
    assert done.returncode == 9
    assert "devkit: logs of the nodes: " in done.stderr
    kept = {path.name for path in (fake.folder / ".cache/devkit/slurm/7").iterdir()}
    assert {"n0.log", "n1.log"} <= kept and not {"token", "env"} & kept


def test_a_node_that_fails_ends_the_job_at_once_with_its_words(fake: FakeSlurm) -> None:
    done = fake.run(script(options("x")), nodes="n0 n1 n2", FAILS="n1")
    assert done.returncode == 1
    assert (
        "error: no Ray on node n1 (Slurm: idle; its last output: error: no module named devkit)\nhint: " in done.stderr
    )
    assert not fake.devkit("run") and (fake.folder / "ended.n0").exists()


def test_a_node_that_is_late_is_named_with_the_others_up(fake: FakeSlurm) -> None:
    done = fake.run(script(options("x", timeout=5)), nodes="n0 n1 n2", SLEEPS="n2")
    assert done.returncode == 4
    assert "error: after 5 s 1 of 3 nodes are missing: n2 (Slurm: idle; its last output: nothing)\n" in done.stderr
    assert not fake.devkit("run") and (fake.folder / "ended.n1").exists()


def test_outside_of_a_job_it_says_so(fake: FakeSlurm) -> None:
    done = fake.run(script(options("x")), SLURM_JOB_ID="")
    assert done.returncode == 2 and done.stderr.startswith("error: not running in a Slurm job")


def test_two_at_a_time_in_one_job_keep_apart(fake: FakeSlurm) -> None:
    (fake.folder / ".cache/devkit/slurm/7").mkdir(parents=True)
    assert fake.run(script(options("x", container="docker", image="i"))).returncode == 0
    assert any("devkit-7.2" in call.words for call in fake.calls("docker"))


def test_its_lines_for_sbatch_are_those_of_the_options() -> None:
    text = script(
        options("x", nodes=3, gpus="a100:8", cpus=28, memory="200G", time="1-0", partition="p", sbatch=("--qos=a b",))
    )
    assert [line for line in text.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=devkit",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gres=gpu:a100:8",
        "#SBATCH --cpus-per-task=28",
        "#SBATCH --mem=200G",
        "#SBATCH --time=1-0",
        "#SBATCH --partition=p",
        "#SBATCH --output=slurm-%j.out",
        '#SBATCH "--qos=a b"',
    ]
    assert text.startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 0}, "--nodes is 0"),
        ({"gpus": "many"}, "--gpus is 'many'"),
        ({"container": "lxc", "image": "i"}, "--container is 'lxc'"),
        ({"container": "docker"}, "has no image"),
        ({"image": "i"}, "need a container"),
        ({"container": "docker", "image": "-v"}, "--image is '-v'"),
        ({"container": "docker", "image": "i", "mounts": ("data",)}, "--mount is 'data'"),
        ({"sbatch": ("--nodes=3",)}, "--nodes is not for --sbatch"),
        ({"sbatch": ("--qos=a\n#SBATCH --nodes=9",)}, "does not fit on one line"),
        ({"sbatch": ("high",)}, "not an sbatch option"),
        ({"variables": ("1X=2",)}, "not a variable name"),
        ({"variables": ("RAY_AUTH_TOKEN=x",)}, "each job creates its own token"),
        ({"post_mortem": "x"}, "--post-mortem is 'x'"),
        ({"command": ("a\0b",)}, "NUL"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", "\\(")) as caught:
        script(SlurmOptions(**{"command": ("x",), **wrong}))
    assert caught.value.hint


def test_the_script_is_sound_bash_and_lint_finds_nothing_in_it(tmp_path: Path) -> None:
    make: Callable[[], str] = lambda: script(options("python3", "train.py"))  # noqa: E731
    done = subprocess.run(["bash", "-n"], input=make(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    from devkit.lint.read import Wish, sources
    from devkit.lint.run import lint

    path = tmp_path / "job.sh"
    path.write_text(make())
    assert lint(sources((str(path),), (), None), Wish(None, None)).exit_code == 0


def test_as_json_it_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also in an allocation: shown, not run
    assert main(["launch", "slurm", "--json", "--nodes", "3", "--python", "p", "--", "a b"]) == 0
    assert json.loads(capsys.readouterr().out) == {"script": script(options("a b", nodes=3, python="p"))}
    assert main(["launch", "dstack", "--json", "--", "a b"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "task"
    assert main(["launch", "kuberay", "--json", "--image", "i", "--", "a b"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["entrypoint"] == "'a b'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--here", "--submit"], "error: --here needs a running job\n"),
        (["--here"], "error: --here was given, but SLURM_JOB_ID is not set\n"),
        (
            ["--output", "/no/such/folder/x"],
            "error: --output /no/such/folder/x cannot be written: No such file or directory\n",
        ),
    ],
)
def test_ways_that_do_not_go_together(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["launch", "slurm", *words, "--", "true"]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_without_slurm_it_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "slurm", "--submit", "--", "true"]) == 3
    assert "error: sbatch is not installed on this machine\nhint: " in capsys.readouterr().err


SHOWN = """JobId=7 JobName=x JobState=FAILED Reason=y Comment=devkit /wrong
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:15
   NodeList=gpu[1-2]
   BatchHost=gpu1
   Comment=devkit /home/a b/.cache/devkit/slurm/7 \n   StdErr=/x/err
   StdOut=/x y/slurm-7.out
"""


def test_a_job_is_read_by_its_lines_not_by_its_name() -> None:
    assert parse_job(SHOWN) == SlurmJob(
        *("7", "TIMEOUT", "TimeLimit", 3, 15, "gpu[1-2]", "/x y/slurm-7.out", "/home/a b/.cache/devkit/slurm/7")
    )
