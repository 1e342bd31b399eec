"""`devkit smoke --tiny -- bash run.sh`: which trainer command a script comes to, and that nothing behind it runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.errors import DeadlineError, UsageError
from devkit.smoke import standin
from devkit.smoke.options import SmokeOptions
from devkit.smoke.run import _of_script
from devkit.smoke.script import TrainerCommand, capture
from tests.config.conftest import SEED_SCRIPTS
from tests.ends import living
from tests.pace import stretched

VERL = "verl.trainer.main_ppo"
Script = Callable[[str], TrainerCommand]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Runs a script in a folder of its own, with the Python of these tests as `python3`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # unquoted in a seed, where one with a blank is two words
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(text: str) -> TrainerCommand:
        (tmp_path / "run.sh").write_text(text)
        return capture(("bash", "run.sh"), 60.0)

    return run


@pytest.mark.parametrize(
    "line",
    [
        f"python3 -m {VERL} a=1 'b=two words'",
        f"{shlex.quote(sys.executable)} -u -X dev -m {VERL} a=1 'b=two words'",
        "python3 -m trainer.main_ppo a=1 'b=two words'",
        "python3 verl/trainer/main_ppo.py a=1 'b=two words'",
        f"exec python3 -m {VERL} a=1 'b=two words' 2>&1 | tee log",
        f"nohup python3 -m {VERL} a=1 'b=two words' > log 2>&1 &",
        f"torchrun --nproc_per_node 8 -m {VERL} a=1 'b=two words'",
        f"ray job submit --address http://h:8265 --no-wait -- python3 -m {VERL} a=1 'b=two words'",
        f"docker exec -w /w box python3 -m {VERL} a=1 'b=two words'",
        f'''srun --overlap -N1 podman exec box bash -c "python3 -m {VERL} a=1 'b=two words'"''',
        f'''ssh head "cd /tmp && python3 -m {VERL} a=1 'b=two words'"''',
        f"bash -c \"ray job submit -- bash -c 'python3 -m {VERL} a=1 b=two\\\\ words'\"",
    ],
)
def test_a_trainer_is_found_behind_whatever_starts_it(script: Script, line: str, tmp_path: Path) -> None:
    found = script(f"echo before\n{line}\nwait; echo behind >behind\n")
    assert found.arguments == ("a=1", "b=two words")
    assert not (tmp_path / "behind").exists()


def test_what_comes_before_it_runs_but_for_clusters_and_containers(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = script(
        f"""
        export N=$(python3 -c 'print(3 + 1)')
        ray stop --force; ray start --head --port 6379; docker run --rm image prepare
        mkdir data && cd data
        PYTHONPATH=/some/where python3 -m {VERL} n=$N
        """
    )
    assert found == TrainerCommand(("n=4",), tmp_path / "data", ("/some/where",))
    said = [line for line in capfd.readouterr().err.splitlines() if "skipped" in line]
    assert said == [
        "devkit smoke: skipped: ray stop --force",
        "devkit smoke: skipped: ray start --head --port 6379",
        "devkit smoke: skipped: docker run --rm image prepare",
    ]


def test_a_job_has_its_folder_and_variables(script: Script, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    options = """--working-dir code --runtime-env-json='{"env_vars": {"SIZE": "7"}}'"""
    found = script(f"""ray job submit {options} -- bash -c 'python3 -m {VERL} size=$SIZE'""")
    assert found == TrainerCommand(("size=7",), tmp_path / "code", ())


def test_the_sitecustomize_of_the_user_still_runs(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.theirs = 5\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    found = script(f"python3 -m {VERL} x=$(python3 -c 'print(theirs)')")
    assert found == TrainerCommand(("x=5",), tmp_path, (str(tmp_path / "site"),))


def test_nothing_is_left_of_the_script(script: Script, tmp_path: Path) -> None:
    script(f"sleep 500 & echo $! >pids; (trap '' TERM; sleep 500) & echo $! >>pids; python3 -m {VERL}")
    processes = [psutil.Process(pid) for pid in map(int, (tmp_path / "pids").read_text().split()) if lives(pid)]
    assert living(processes, stretched(10)) == []  # the kernel takes a moment


def test_a_script_without_a_trainer_is_named_with_its_exit_code(script: Script) -> None:
    with pytest.raises(UsageError, match=r"bash run\.sh exited with code 7 before it started a trainer") as caught:
        script("python3 -m pip --version; exit 7")
    assert VERL in caught.value.hint


def test_what_cannot_be_run_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot run ./nowhere\.sh: No such file") as caught:
        capture(("./nowhere.sh",))
    assert "bash run.sh" in caught.value.hint


def test_one_that_waits_for_a_cluster_meets_a_deadline() -> None:
    with pytest.raises(DeadlineError, match=r"did not start a trainer within 0\.5 s"):
        capture(("bash", "-c", "until ray status | grep -q 2.nodes; do sleep 0.1; done"), 0.5)


@pytest.mark.parametrize("path", SEED_SCRIPTS, ids=lambda path: path.stem)
def test_the_seeds_come_to_their_trainer(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # unquoted in a seed, where one with a blank is two words
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"])
    found = capture(("bash", str(path)), 60.0)
    assert len(found.arguments) > 10 and all("=" in word for word in found.arguments)


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)))
def test_arguments_arrive_as_they_were(words: list[str]) -> None:
    assert capture((sys.executable, "-m", VERL, *words), 60.0).arguments == tuple(words)


words = st.sampled_from(["-u", "-X", "dev", "-m", "-Im", VERL, "-c", "run.py", "a=1", "-", "--version"])


@given(st.lists(words, max_size=6))
def test_any_command_line_of_python_can_be_read(rest: list[str]) -> None:
    kind, target, behind = standin.python_target(["python3", *rest])
    assert kind in ("", "-m", "file") and bool(kind) == bool(target)
    assert behind == rest[len(rest) - len(behind) :]


def test_what_is_written_stays_where_the_command_was_given(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes to the folder where the script's trainer would have started."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("PYTHONPATH", "")  # and set by the call
    (tmp_path / "run.sh").write_text(f"cd {elsewhere}\npython3 -m trainer.main_ppo data.train_files=a\n")
    options = _of_script(SmokeOptions(command=("bash", "run.sh"), junit=Path("a.xml"), report=Path("report")))
    assert Path.cwd() == elsewhere
    assert (options.junit, options.report) == (tmp_path / "a.xml", tmp_path / "report")
