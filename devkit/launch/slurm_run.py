"""`devkit launch slurm` at work: writes the script, runs it in the allocation that is there, or submits and follows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from devkit import console
from devkit.errors import DeadlineError, DevkitError, FailedError, UnreachableError, UsageError
from devkit.launch import slurm_client
from devkit.launch.files import say, write
from devkit.launch.slurm import SlurmOptions, script
from devkit.launch.slurm_client import SlurmJob
from devkit.launch.slurm_cluster import SlurmLauncher

POLL_S = 1.0  # between two looks at the job and its log
SILENCE_S = 60.0  # that slurmctld may not answer, once a job is followed
DEADLINE_CODE = 4
HINTS = {
    "TIMEOUT": "it ran out of time: request more with --time",
    "OUT_OF_MEMORY": "request more with --memory",
    "CANCELLED": "it was cancelled",
    "NODE_FAIL": "a node failed; sinfo -R says why",
}


@dataclass(frozen=True)
class SlurmAction:
    """What is to be done with the script."""

    output: str = ""  # FILE, or - for stdout
    submit: bool = False
    follow: bool = True
    here: bool = False
    queue_timeout: float = 0.0  # seconds that the job may wait for its nodes; 0: as long as it takes
    json: bool = False


def main(options: SlurmOptions, action: SlurmAction, environ: Mapping[str, str] = os.environ) -> int:
    """0: written, or the job has succeeded; 1: it has failed. Raises DeadlineError for a node that is missing."""
    text = script(options)
    inside = environ.get("SLURM_JOB_ID", "")
    if action.here and (action.submit or action.output):
        raise UsageError("--here needs a running job", hint="remove --submit and --output")
    if action.here and not inside:
        raise UsageError(
            "--here was given, but SLURM_JOB_ID is not set", hint="use salloc for an allocation, or --submit for a job"
        )
    if action.output:
        write(text, action.output, executable=True)
    if action.submit:
        return _submit(options, text, action)
    if inside and not action.output and not action.json:
        say(f"running in job {inside}, on all of its nodes")
        _become(text)
    if not action.output and action.json:
        console.emit({"script": text})
    elif not action.output:
        write(text, "-")
    return 0


def _become(text: str) -> None:
    """The script in place of this process: its signals and its exit code are those of the command."""
    sys.stderr.flush()
    os.execvp("bash", ["bash", "-c", text, "devkit-launch-slurm"])


def _submit(options: SlurmOptions, text: str, action: SlurmAction) -> int:
    if not options.command and action.follow:
        return _up(options, action)
    job_id = slurm_client.submit(text)
    say(f"submitted job {job_id}")
    if not action.follow:
        if action.json:
            console.emit(slurm_client.job(job_id).to_json())
        return 0
    out = sys.stderr if action.json else sys.stdout
    try:
        ended = Follower(job_id, out.buffer, action.queue_timeout).to_the_end()
    except KeyboardInterrupt:
        say(f"job {job_id} continues; end it with scancel {job_id}")
        raise
    return _end(ended, action.json)


def _up(options: SlurmOptions, action: SlurmAction) -> int:
    """A cluster without a command: its record, once it is up; the job stays."""
    launcher = SlurmLauncher(options)
    started = launcher.up(say, options.timeout + action.queue_timeout)
    if action.json:
        console.emit(started.to_json())
        return 0
    out = console.result()
    out.print(f"job        {launcher.job_id}", soft_wrap=True)
    for node in launcher.nodes():
        out.print(f"{node.role:10} {node.name} {node.ip}", soft_wrap=True)
    out.print(f"look       {launcher.how_to_look()}", soft_wrap=True)
    out.print(f"stop       scancel {launcher.job_id}", soft_wrap=True)
    return 0


class Follower:
    """A job on its way, and its log as it grows."""

    def __init__(self, job_id: str, out: BinaryIO, queue_timeout: float = 0.0) -> None:
        self._job_id, self._out = job_id, out
        self._queue_timeout = queue_timeout
        self._begun = time.monotonic()
        self._told = ""
        self._read = 0  # bytes of the log

    def to_the_end(self) -> SlurmJob:
        """The job, once it has ended; what it printed has been passed on by then."""
        answered = time.monotonic()
        while True:
            try:
                job = slurm_client.job(self._job_id)
                answered = time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered > SILENCE_S:
                    raise
                time.sleep(POLL_S)
                continue
            self._pass_on(job.log)
            if job.ended:
                return job
            self._tell(job)
            time.sleep(POLL_S)

    def _tell(self, job: SlurmJob) -> None:
        told = f"job {job.job_id}: {job.state}" + (f" ({job.reason})" if job.state == "PENDING" else f" on {job.nodes}")
        if told != self._told:
            say(told)
            self._told = told
        if job.state == "PENDING" and self._queue_timeout and time.monotonic() - self._begun > self._queue_timeout:
            raise DeadlineError(
                f"job {job.job_id} still waits for its nodes after {self._queue_timeout:g} s: {job.reason}",
                hint=f"it stays in the queue; remove it with scancel {job.job_id}",
            )

    def _pass_on(self, log: str) -> None:
        with suppress(OSError), open(log, "rb") as file:  # it is not there before the job starts, or not at all here
            file.seek(self._read)
            while piece := file.read(1 << 16):
                self._read += len(piece)
                self._out.write(piece)
            self._out.flush()


def _end(job: SlurmJob, json: bool) -> int:
    if job.state == "COMPLETED":
        if json:
            console.emit(job.to_json())
        return 0
    raise _failure(job)


def _failure(job: SlurmJob) -> DevkitError:
    how = f"exit code {job.exit_code}" + (f", signal {job.signal}" if job.signal else "")
    message, hint = f"job {job.job_id}: {job.state}, {how}", HINTS.get(job.state, f"its log is {job.log}")
    if job.state == "FAILED" and job.exit_code == DEADLINE_CODE:  # of the script: it has said which node is missing
        return DeadlineError(message, hint=hint)
    return FailedError(message, hint=hint, facts=job.to_json())
