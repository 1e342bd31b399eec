"""Slurm's own commands, with a deadline each: submit, look, run beside a job, cancel. Their words are parsed here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from devkit.errors import DevkitError, UnreachableError

CALL_S = 30.0  # for one command; slurmctld itself gives up after 10
NOTE = "devkit "  # how the comment begins that the script gives its job once the cluster is up
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)


class RefusedError(DevkitError):
    """Slurm has understood the command and says no."""


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm knows it."""

    job_id: str
    state: str  # in Slurm's words: PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, ...
    reason: str  # why it is not running
    exit_code: int  # of the script
    signal: int  # that ended the script; 0: none
    nodes: str  # in Slurm's notation, as in gpu[1-4]
    log: str
    note: str  # the folder of the cluster on its nodes; empty until that is up

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_job(text: str) -> SlurmJob:
    """What `scontrol show job` prints. The job's name, which may hold anything, stands in the first line alone.

    >>> parse_job("JobId=7 JobName=x JobState=FAILED\\n   JobState=RUNNING Reason=None\\n   ExitCode=0:0").state
    'RUNNING'
    """
    first, _, rest = text.partition("\n")
    code, _, number = _value(rest, "ExitCode").partition(":")
    return SlurmJob(
        job_id=first.partition(" ")[0].removeprefix("JobId="),
        state=_value(rest, "JobState"),
        reason=_value(rest, "Reason"),
        exit_code=int(code or 0),
        signal=int(number or 0),
        nodes=_value(rest, "NodeList").replace("(null)", ""),
        log=_line(rest, "StdOut"),
        note=_line(rest, "Comment").removeprefix(NOTE) if _line(rest, "Comment").startswith(NOTE) else "",
    )


def _value(text: str, name: str) -> str:
    found = re.search(rf"^\s+(?:.* )?{name}=(\S*)", text, re.MULTILINE)
    return found[1] if found else ""


def _line(text: str, name: str) -> str:
    """A value that has a line of its own, and may hold blanks."""
    found = re.search(rf"^   {name}=(.*?)\s*$", text, re.MULTILINE)
    return found[1] if found else ""


def submit(script: str) -> str:
    """The number of the job."""
    return call("sbatch", "--parsable", stdin=script).strip().partition(";")[0]


def job(job_id: str) -> SlurmJob:
    """Raises RefusedError if Slurm knows no such job, or no more: it forgets one minutes after its end."""
    return parse_job(call("scontrol", "show", "job", job_id))


def cancel(job_id: str) -> None:
    call("scancel", job_id)


def hostnames(nodes: str) -> tuple[str, ...]:
    """`gpu[1-2]` as two names."""
    return tuple(call("scontrol", "show", "hostnames", nodes).split()) if nodes else ()


def beside(job_id: str, node: str) -> tuple[str, ...]:
    """The words before a command that is to run on a node of a job, beside what runs there."""
    return ("srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet")


def call(*words: str, stdin: str = "", timeout: float = CALL_S) -> str:
    """What the command prints. Raises UnreachableError if no Slurm answers, RefusedError if it says no."""
    done = run(words, stdin=stdin, timeout=timeout)
    if done.returncode == 0:
        return done.stdout
    said = " ".join(line for line in done.stderr.splitlines() if line.strip()) or f"exit code {done.returncode}"
    said = re.sub(rf"(?:\b\w+: (?:error|fatal)|\b{words[0]}): ", "", said)
    if re.search(r"unable to contact slurm|connection refused|slurm_load|resolve controller", said, re.IGNORECASE):
        raise UnreachableError(
            f"no answer from Slurm to {words[0]}: {said}", hint="check with sinfo whether slurmctld is up"
        )
    raise RefusedError(f"{words[0]}: {said}", hint="the options of the job are the #SBATCH lines of its script")


def run(words: Sequence[str], *, stdin: str = "", timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except FileNotFoundError:
        hint = "run it on a login node of the Slurm cluster; with --output FILE the script is written on any machine"
        raise UnreachableError(f"{words[0]} is not installed on this machine", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            f"{words[0]} did not answer within {timeout:g} s", hint="check with sinfo whether slurmctld is up"
        ) from None
