"""What a run leaves when its Ray is gone: kept for its user alone, found without a cluster, and not for ever."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from devkit.debug import aftermath, crashes, kept, launch
from devkit.debug.address import resolve
from devkit.debug.hub_file import HubPlace
from devkit.debug.inworker import crash_files, hub_place, private
from devkit.debug.runs import Run
from devkit.errors import FailedError, NoJobError, UnreachableError, UsageError
from devkit.logs import run as first_error
from tests.debug.test_crashes_view import take

JOB = "01000000"
LOG = f"worker-{'ab' * 28}-{JOB}-4001.err"
TRACEBACK = """\
:actor_name:Scorer
Traceback (most recent call last):
  File "/job/raises.py", line 10, in score
    return self.table[word]
KeyError: 'b'
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without a cluster, and a folder of a session's logs."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))  # other Rays of this machine are left alone then
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def left(logs: Path, *documents: dict[str, Any], text: str = "") -> Run:
    """A run whose session has these snapshots, and this text in a worker's log."""
    for each in documents:
        crash_files.store(each, logs / "devkit" / "crashes")
    if text:
        (logs / LOG).write_text(text)
    place = HubPlace("h", "127.0.0.1", 1, "n")
    return Run(os.getpid(), "", "127.0.0.1:1", "", time.time() - 60, place, JOB, "token", "secret", str(logs))


def kept_run(logs: Path, *documents: dict[str, Any], text: str = "", code: int = 1) -> kept.EndedRun:
    ended = kept.keep(left(logs, *documents, text=text), ("python", "raises.py"), code)
    assert ended is not None
    return ended


def crash(name: str = "abc1", **changes: Any) -> dict[str, Any]:
    return take(id=name, job_id=JOB, **changes)


def test_after_the_end_of_its_ray_a_run_s_crashes_are_listed(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept_run(alone, crash(), take(id="ffff", job_id="02000000"))
    assert crashes.main() == 0
    out, err = capsys.readouterr()
    assert "abc1  Worker[1]  RuntimeError: step 17 failed" in out and "ffff" not in out, "another job's is not its"
    assert f"devkit: this is the run {run.name} of `python raises.py`, which ended with exit code 1" in err


def test_without_an_id_the_cause_of_the_newest_crash_is_shown(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_run(alone, crash("abc1"), crash("abc2", time=time.time() + 1.0, message="step 18 failed"))
    assert crashes.main("") == 0
    assert "crash abc2" in capsys.readouterr().out


def test_a_newest_run_that_left_no_crash_is_named(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = kept_run(alone, crash())
    later = alone.parent / "later"
    later.mkdir()
    newest = kept_run(later)
    assert crashes.main() == 0
    out, err = capsys.readouterr()
    assert "no crashes" in out and "abc1" not in out
    assert f"this is the run {newest.name} of" in err and "and left no crash: its own output says why" in err
    assert f"an earlier run left crashes: --job {older.name}\n" in err


def swallowed(logs: Path) -> None:
    """What the run's hub wrote at its end: one error many times, and one that a handler names."""
    at, by = ({"file": "/job/reward.py", "line": line, "function": "f"} for line in (30, 41))
    often = {"kind": "ValueError", "text": "signal only works in main thread", "at": at, "by": by, "count": 960}
    caught = [{**often, "how": "any"}, {**often, "kind": "KeyError", "how": "named"}]
    worker = {"worker_id": "w", "job_id": JOB, "role": "Reward", "rank": None, "caught": caught}
    workers = [{**worker, "pid": pid} for pid in (7, 8)]
    path = logs / "devkit" / hub_place.CAUGHT_FILE.format(JOB)
    private.write(path, json.dumps({"counted": True, "workers": workers}), 1)


SWALLOWED = "1920 x ValueError: signal only works in main thread, raised at "


def test_of_a_run_without_a_crash_what_it_swallowed_is_listed(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swallowed(alone)
    run = kept_run(alone, code=0)
    assert crashes.main() == 0
    out = capsys.readouterr().out
    assert out.startswith("no crashes\n") and f"\nthe program caught these itself:\n  {SWALLOWED}" in out, out
    with pytest.raises(UsageError, match="no crash to show") as raised:
        crashes.main("", json=True)
    told = "the run left 1920 errors that the program caught itself: devkit crashes lists them"
    assert raised.value.hint == told and raised.value.exit_code == 2
    assert crashes.main("") == 0, "a run that ended well"
    assert capsys.readouterr().out == f"nothing crashed: {told}\n"
    aftermath.tell_swallowed(run.caught["workers"])
    err = capsys.readouterr().err
    assert "devkit: the program caught these itself:\n" in err and f"devkit:   {SWALLOWED}" in err, err
    aftermath.tell_swallowed([])
    assert not capsys.readouterr().err
    nothing = alone.parent / "nothing"
    nothing.mkdir()
    kept_run(nothing, code=0)
    assert crashes.main("") == 0
    assert "nothing crashed: the run ended with exit code 0, and no warning" in capsys.readouterr().out
    kept_run(nothing, code=3)
    with pytest.raises(UsageError, match="no crash to show") as raised:
        crashes.main("")
    assert raised.value.hint == "its own output may say more"


def test_an_exit_that_a_driver_has_caught_is_no_crash(alone: Path) -> None:
    caught = crash(kind="driver", exception={"type": "SystemExit", "message": "2"})
    assert not kept_run(alone, caught, code=0).crashes
    assert kept_run(alone, caught, code=2).crashes
    hidden = crash(kind="driver", exception={"type": "SystemExit", "message": "os._exit(0) after ValueError"})
    assert kept_run(alone, hidden, code=0).crashes


@pytest.mark.parametrize("code", [-9, 130])
def test_of_a_run_that_a_signal_ended_its_output_says_nothing(
    alone: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    kept_run(alone, code=code)
    crashes.main()
    assert capsys.readouterr().err.endswith("ago, and left no crash\n")


def test_a_ray_that_refuses_the_token_is_somebody_elses(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept_run(alone, crash())
    refused = UnreachableError("the Ray at 10.0.0.9:6379 refuses the token of F", hint="")
    assert kept.instead(refused, None, None).name == run.name
    said = capsys.readouterr().err
    assert said.startswith(f"devkit: this is the run {run.name} of "), said
    assert "; the Ray that runs here is another one (the Ray at 10.0.0.9:6379 refuses the token of F)" in said


def test_a_crash_of_an_earlier_run_is_said_to_be_of_that(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = kept_run(alone, crash())
    later = alone.parent / "later"
    later.mkdir()
    kept_run(later)
    assert crashes.main("abc1") == 0
    assert f"this is the run {older.name} of" in capsys.readouterr().err


EARLY_END = """
import json, os, sys
from pathlib import Path
from devkit_inworker import boot, crash_files
logs = Path(sys.argv[1])
crash_files.store(json.loads(sys.argv[2]), logs / "devkit" / "crashes")
boot.note_ray({"gcs_address": "127.0.0.1:1", "job_id": "01000000", "logs": str(logs)})
sys.exit(1)
"""


def test_a_program_that_ends_before_its_hub_listens_leaves_its_crash(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, "-c", EARLY_END, str(alone), json.dumps(crash(kind="driver")))
    with pytest.raises(FailedError) as failed:
        launch.main(launch.DebugOptions(command))
    assert failed.value.hint == launch.CRASHED
    assert crashes.main() == 0
    assert "abc1" in capsys.readouterr().out


def test_a_program_that_fails_before_any_ray_is_the_newest_run(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_run(alone, crash())
    with pytest.raises(FailedError):
        launch.main(launch.DebugOptions((sys.executable, "-c", "raise SystemExit(7)")))
    assert crashes.main() == 0
    out, err = capsys.readouterr()
    assert "abc1" not in out and "exit code 7" in err


def test_one_of_them_is_shown_with_its_variables(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_run(alone, crash())
    kept_run(alone)  # a later one, which left nothing more
    assert crashes.main("abc") == 0
    assert "step = 17" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no crash"):
        crashes.main("eeee")


def test_the_first_error_is_told_from_snapshots_and_logs(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kept_run(alone, text=TRACEBACK)
    assert first_error.main(None) == 1
    out = capsys.readouterr().out
    assert f"job {JOB} (FAILED): python raises.py" in out and "first error: KeyError: 'b'" in out, out
    assert "raises.py:10 in score" in out and f"worker-abababab…-{JOB}-4001.err:2" in out
    assert first_error.main(run.name, json=True) == 1
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert cause["line"] == 10 and cause["seen"] == [f"{LOG}:2"]


def test_a_run_that_left_nothing_but_its_exit_code(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept_run(alone, code=3)
    assert first_error.main(None) == 1
    assert "the driver ended with exit code 3" in capsys.readouterr().out
    kept_run(alone, code=0)
    assert (first_error.main(None), crashes.main()) == (0, 0)
    out = capsys.readouterr().out
    assert "no error was found" in out and "no crashes" in out


def test_what_a_run_that_went_well_was_warned_of_is_told(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warning = "/job/c.py:35: UserWarning: The given NumPy array is not writable"
    library = "/venv/lib/python3.11/site-packages/ray/x.py:3: UserWarning: of Ray's"
    run = kept_run(alone, text=f"{TRACEBACK}{library}\n{warning}\n  x = f(y)\n", code=0)
    [(_, text)] = run.texts()
    assert text == f":actor_name:Scorer\n{library}\n{warning}\n", "nothing else is kept of such a run"
    assert (first_error.main(None), crashes.main()) == (0, 0)
    told, listed = capsys.readouterr().out.split("no crashes\n")
    line = "  /job/c.py:35  UserWarning: The given NumPy array is not writable (Scorer pid 4001)\n"
    assert f"but this was warned of:\n{line}" in told and "of Ray's" not in told, told
    assert f"\nthis was warned of:\n{line}" in listed and "devkit hang" not in listed, listed


def test_what_devkit_warned_of_in_the_driver_is_told(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = f"DevkitWarning: the actor 'rewards' {'was made before, ' * 9}at job.py:3"
    private.write(alone / "devkit" / f"{hub_place.DRIVER_NOTES}{JOB}.err", f"/job/c.py:35: {said}\n", 1)
    kept_run(alone, code=0)
    assert first_error.main(None) == 0
    assert f"but this was warned of:\n  /job/c.py:35  {said}\n" in capsys.readouterr().out


def test_what_a_run_that_went_well_caught_itself_is_told(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by = {"file": "/job/reward.py", "line": 41, "function": "f"}
    caught = {"kind": "TypeError", "text": "no", "at": by, "by": by, "count": 384, "how": "any"}
    worker = {"pid": 7, "worker_id": "w", "job_id": JOB, "role": "Reward", "rank": None, "caught": [caught]}
    path = alone / "devkit" / hub_place.CAUGHT_FILE.format(JOB)
    private.write(path, json.dumps({"counted": False, "workers": [worker]}), 1)
    run = kept_run(alone, code=0)
    assert run.caught["workers"] == [worker] and first_error.main(None) == 0
    told = capsys.readouterr().out
    assert "384 x TypeError: no, raised at /job/reward.py:41 and caught there, which goes on (Reward pid 7)" in told
    assert "devkit run --count-caught" in told


def test_the_newest_run_and_its_newest_crash_come_first(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    older = kept_run(alone, crash("0001", time=now - 90))
    later = alone.parent / "later"  # another session's
    later.mkdir()
    kept_run(later, crash("0002", time=now - 30, line=1), crash("0003", time=now - 10))
    crashes.main()
    out, err = capsys.readouterr()
    assert [line[:4] for line in out.splitlines() if line.startswith("000")] == ["0003", "0002"]
    assert f"an earlier run left crashes, too: --job {older.name}" in err
    crashes.main(job=older.name)
    assert "0001" in capsys.readouterr().out
    assert crashes.main("", job=older.name) == 0
    assert "crash 0001" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no crash"):
        crashes.main("0003", job=older.name)
    with pytest.raises(NoJobError, match="no run 0700 is kept") as refused:
        crashes.main(job="0700")
    assert older.name in refused.value.hint


def test_a_process_that_died_is_listed_once(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its hub and its driver may both have found that out, when their Ray ended."""
    gone = {"type": "ProcessDied", "message": "gone"}
    twice = [crash(f"000{at}", kind="exit", worker_id="w7", exception=gone, time=time.time() + at) for at in (1, 2)]
    kept_run(alone, *twice, crash("0003", kind="exit", worker_id="w8", exception=gone, role="Other"))
    assert crashes.main() == 0
    out = capsys.readouterr().out
    assert "0001" in out and "0003" in out and "0002" not in out


def test_what_caused_a_crash_is_of_its_own_run(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each Ray of a run's own gives the same ids to its first job and to that one's first tasks."""
    task, died = "1" * 48, {"type": "WorkerCrashedError", "message": "it died"}
    kept_run(alone, crash("0001", kind="exit", task_id=task, exception={"type": "ProcessDied", "message": "gone"}))
    later = alone.parent / "later"
    later.mkdir()
    kept_run(later, crash("0002", task_id="2" * 48, exception=died, waited=[task], root=None))
    assert crashes.main("0002") == 0
    assert "0001" not in capsys.readouterr().out


def test_who_names_a_cluster_is_told_of_that(alone: Path) -> None:
    kept_run(alone, crash())
    with pytest.raises(UnreachableError):
        crashes.main(address="127.0.0.1:1")


def test_without_any_run_the_error_stays_what_it_was(alone: Path) -> None:
    for ask in (crashes.main, lambda: first_error.main(None)):
        with pytest.raises(UnreachableError, match="no Ray cluster found"):
            ask()


@pytest.mark.parametrize(
    ("snapshots", "code", "left_behind"),
    [
        ([crash()], 1, ": see devkit crashes and devkit logs --first-error"),
        ([], 3, ", without a crash: see devkit logs --first-error"),
        ([], 0, ": look while it runs, or start a cluster that stays with devkit debug-cluster"),
    ],
    ids=["crashes", "failed", "fine"],
)
def test_who_looks_for_a_program_that_has_ended_is_told_of_its_end(
    alone: Path, snapshots: list[dict[str, Any]], code: int, left_behind: str
) -> None:
    kept_run(alone, *snapshots, code=code)
    with pytest.raises(UnreachableError, match=r"^no Ray cluster found$") as caught:
        resolve()
    begun, _, ended = caught.value.hint.partition(f"with exit code {code}, ")
    assert begun == "the last run, `python raises.py`, ended " and ended.endswith(f" s ago{left_behind}")


def test_it_is_for_this_user_alone(alone: Path) -> None:
    run = kept_run(alone, crash(), text=TRACEBACK)
    for path in run.folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert [name for name, _ in run.texts()] == [LOG] and "secret" not in (run.folder / "run.json").read_text()
    # given a folder that others may write to: what is in it may be anybody's
    run.folder.chmod(0o777)
    assert kept.ended_runs() == () and run.crashes == [] and list(run.texts()) == []


def test_a_link_among_the_logs_is_not_followed(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a key")
    (alone / LOG).symlink_to(tmp_path / "private")
    assert list(kept_run(alone).texts()) == []


def test_of_a_long_log_the_end_is_kept(alone: Path) -> None:
    run = kept_run(alone, text="x" * 80 + "\n" + f"{'y' * 80}\n" * (kept.LOG_BYTES // 80) + TRACEBACK)
    [(_, text)] = run.texts()
    assert len(text) <= kept.LOG_BYTES and text.endswith(TRACEBACK) and text.startswith("y" * 80)


def test_the_oldest_go(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_RUNS", 2)
    names = [kept_run(alone, crash(), text=TRACEBACK).name for _ in range(4)]
    assert len(kept.ended_runs()) == 2 and {run.name for run in kept.ended_runs()} <= set(names)
    assert len(list((alone.parent / "home" / "ended").iterdir())) == 2


def test_a_folder_that_cannot_be_written_to_is_no_failure_of_the_run(alone: Path) -> None:
    (alone.parent / "home").write_text("a file")
    assert kept.keep(left(alone, crash()), ("python", "a.py"), 1) is None
