"""`devkit smoke --tiny`: a tiny model through the full run's own trainer, with checks that name what is broken."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from devkit.console import emit, talk
from devkit.debug.inworker import private
from devkit.errors import DeadlineError, UsageError
from devkit.logs import redact
from devkit.records import SmokeRecord
from devkit.signals import deferred, interrupting, undisturbed, unswallowed
from devkit.smoke.cluster import SmokeCluster
from devkit.smoke.enough import require_rows
from devkit.smoke.last_words import last_words
from devkit.smoke.options import AGENTS, SmokeOptions
from devkit.smoke.report import write_junit, write_report
from devkit.smoke.results import CAUSES_FIRST, OF_AGENTS, FirstFailure, Results
from devkit.smoke.shrink import Plan, make_plan
from devkit.smoke.view import SmokeView, make_view
from devkit.smoke.warm_process import WarmProcess
from trainer.errors import ConfigError, TrainerError, WorkerDied

if TYPE_CHECKING:  # it imports torch
    from devkit.smoke.agent_stages import AgentStages
    from devkit.smoke.stages import Stages

MIN_SECONDS = 0.001  # what is left of a time that is over; 0 would be none


def main(options: SmokeOptions) -> int:
    """0 if every check passed, 1 if one failed. Raises ConfigErrors or DataError for a command that cannot run."""
    started = time.perf_counter()
    _require_fitting(options)
    if options.command:
        options = _of_script(options)
    plan = _plan(options)
    folder = Path(tempfile.mkdtemp(prefix="devkit-smoke-", dir=private.temporary()))
    try:
        with make_view(json=options.json, log=folder / "stderr.log") as view, interrupting():
            _announce(plan, view, verbose=options.verbose)
            clock = Clock(view)
            with _deadline(options.timeout, clock):
                record = _run(options, plan, clock, folder, started)
            record = _artifacts(options, record, folder)
            view.finish(record)
    finally:
        if options.keep:  # an interrupted run's, too
            talk().print(f"kept: {folder}", style="dim", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        emit(record.to_json())
    return 0 if record.verdict == "pass" else 1


def _plan(options: SmokeOptions) -> Plan:
    if options.agent is None:
        plan = make_plan(options.overrides, options.dialect, options.rollout)
        require_rows(plan)
        return plan
    from devkit.smoke import conversing  # torch, which every other test loads while Ray starts

    return conversing.make_plan(options.agent, options.overrides, options.dialect)


def _require_fitting(options: SmokeOptions) -> None:
    """Before a launch script is run. Raises UsageError for an `--agent` that is none, or that is not alone."""
    if options.agent is None:
        return
    if options.agent not in AGENTS:
        raise UsageError(f"--agent {options.agent} is not one of {', '.join(AGENTS)}", hint="devkit smoke --agent lake")
    if options.rollout != "hf" or options.command:
        what = "a launch script" if options.command else f"--rollout {options.rollout}"
        raise UsageError(f"--agent plays its own run, and not {what}", hint=f"devkit smoke --agent {options.agent}")


def _of_script(options: SmokeOptions) -> SmokeOptions:
    """Takes the overrides from the script, and goes to where it would have trained."""
    from devkit.smoke.script import capture
    from trainer.main_ppo import parse

    began = time.perf_counter()
    found = capture(options.command, options.timeout)
    left = options.timeout and max(options.timeout - (time.perf_counter() - began), MIN_SECONDS)
    given = parse(found.arguments)
    options = replace(options, junit=_from_here(options.junit), report=_from_here(options.report))
    os.chdir(found.folder)  # its paths are meant from there, as is a module of its own
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys((*found.python_path, str(found.folder))))
    command = redact.text(shlex.join(options.command))
    talk().print(f"devkit smoke: {command} starts a trainer in {found.folder}", soft_wrap=True)
    overrides = (*given.overrides, *options.overrides)
    return replace(options, overrides=overrides, dialect=options.dialect or given.dialect, timeout=left)


def _from_here(path: Path | None) -> Path | None:
    return path.absolute() if path else None


def _run(options: SmokeOptions, plan: Plan, clock: Clock, folder: Path, started: float) -> SmokeRecord:
    """All stages. Whatever happens, no process that was started is left behind."""
    results = Results(fail_fast=options.fail_fast, names=CAUSES_FIRST if options.agent is None else OF_AGENTS)
    with ExitStack() as endings:
        with deferred():  # an interruption waits until what is made here is sure to be ended
            cluster = SmokeCluster(plan.nodes, plan.ranks_per_node)
            # torch makes it wherever it is loaded, and leaves it; one that the user chose stays.
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torchinductor"))
            warm = WarmProcess(folder / "warm.log")
            endings.callback(_end, cluster, warm, clock)
            # An exception out of a signal handler in the midst of an import can leave the import lock taken.
            importlib.import_module("ray._private.node")
        with clock("start"), ThreadPoolExecutor(1) as other:
            module = "devkit.smoke.stages" if options.agent is None else "devkit.smoke.agent_stages"
            loading = other.submit(importlib.import_module, module)  # torch, while Ray's nodes start
            # Here and not in the other thread: Ray's processes end when the thread that started them does.
            cluster.start(warm.socket)
            loaded, given = loading.result(), (plan, results, clock.view, folder, cluster, warm, clock, options.seed)
            stages = loaded.Stages(*given) if options.agent is None else loaded.AgentStages(options.agent, *given)
            endings.callback(stages.close)
        _carry_out(stages, results, folder)
    results.complete("not reached: the test ended before it")
    for result in results.all:
        clock.view.check(result)
    seconds = time.perf_counter() - started
    return record_of(stages.plan, SmokeRecord(seconds, clock.seconds, results.all, tuple(stages.steps)))


def record_of(plan: Plan, found: SmokeRecord) -> SmokeRecord:
    """With what was kept of the full run and what was cut, without secrets: a command may have some."""
    kept = redact.document(dict(plan.kept))
    return replace(found, kept=kept, cut=tuple(replace(each, full=redact.document(each.full)) for each in plan.cut))


def _end(cluster: SmokeCluster, warm: WarmProcess, clock: Clock) -> None:
    with undisturbed(), clock("clean-up"), closing(warm):
        cluster.stop()


def _carry_out(stages: Stages | AgentStages, results: Results, folder: Path) -> None:
    """Every stage, unless one ends the run. A trainer that fails is a finding; a command that is wrong is an error."""
    for stage in stages.all:
        try:
            stage()
        except FirstFailure:
            return
        except TrainerError as error:
            if error.exit_code == ConfigError.exit_code:
                raise
            trace = getattr(error, "trace", "") or f"{error}\n"
            words = last_words(stages.cluster.folder) if isinstance(error, WorkerDied) else ""
            text = redact.text(trace + words)
            (folder / "failure.log").write_text(text, encoding="utf-8", errors="replace")
            results.failed("run", f"the trainer failed in {stage.__name__}: {error}")
            return


class Clock:
    """Times the phases and shows them."""

    def __init__(self, view: SmokeView) -> None:
        self.view = view
        self.seconds: dict[str, float] = {}
        self.phase = "the first phase"  # the newest

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.phase = name
        self.view.phase_started(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - started
            self.view.phase_done(name, self.seconds[name])


def _announce(plan: Plan, view: SmokeView, *, verbose: bool) -> None:
    """What was kept of the full run, and what was cut; defaults that were cut are told to those who ask."""
    for warning in plan.warnings:
        view.note(warning)
    if not plan.kept and not plan.cut:  # of conversations, whose command is the test's own
        return
    if plan.like:
        view.note(f"model: the architecture of {plan.like}")
    view.note("kept: " + ", ".join(f"{key}={value}" for key, value in plan.kept.items()))
    if verbose:
        for cut in plan.cut:
            view.note(f"reduced: {cut.key} {cut.full} -> {cut.tiny}: {cut.why}")
        return
    given = [f"{cut.key} {cut.full} -> {cut.tiny}" for cut in plan.cut if cut.given]
    if given:
        view.note("reduced: " + ", ".join(given))
    view.note(f"reduced: {len(plan.cut) - len(given)} defaults (--verbose lists all of them, with the reasons)")


def _artifacts(options: SmokeOptions, record: SmokeRecord, folder: Path) -> SmokeRecord:
    if options.report:
        metrics = {f"{path.parent.name}-{path.name}": path for path in folder.glob("*/metrics.jsonl")}
        logs = {path.name: path for path in folder.glob("*.log")} | metrics
        record = write_report(record, options.report, logs=logs)
    return write_junit(record, options.junit) if options.junit else record


SOON_S, AGAIN_S = 0.05, 5.0  # when the deadline looks again


def _imports(frame: FrameType | None) -> bool:
    """Whether this thread is in the midst of an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class _TimeIsUp(BaseException):
    """The deadline, where it comes. Not an `Exception`: a module that is being imported just then may catch those."""


@contextmanager
def _deadline(seconds: float | None, clock: Clock) -> Iterator[None]:
    """Raises DeadlineError in the main thread when the time is over."""
    came_in: list[str] = []  # the phase

    def over(_number: int, frame: FrameType | None) -> None:
        if _imports(frame):  # an exception there can leave the import lock taken, and what then imports waits for ever
            return soon()
        came_in.append(clock.phase)
        raise _TimeIsUp

    def soon() -> None:
        signal.setitimer(signal.ITIMER_REAL, SOON_S, AGAIN_S)

    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    # Again and again: a library may swallow it.
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        with unswallowed(_TimeIsUp, soon):
            yield
    except (_TimeIsUp, Exception) as error:
        if not came_in:
            raise
        # Whatever it is by now: code that was interrupted by it may have raised something else.
        raise DeadlineError(
            f"the smoke test took longer than {seconds:g} s; it was in {came_in[0]}",
            hint="raise --timeout, or remove it to see how long each phase takes",
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
