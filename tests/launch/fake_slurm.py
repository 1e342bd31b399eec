"""Slurm's commands, the container runtimes and devkit as a few lines of bash each, beside which a job's script runs.

For what a real Slurm is too slow to ask, or has no plugin for. Each command notes its words, one file per call; srun
runs what it is given on this machine, with the variables that Slurm's GPU plugin sets.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NOTE = """
d=$(mktemp -d "$FAKE/calls/$(date +%s%N).XXXXXX")
printf '%s\\0' "${0##*/}" "$@" > "$d/words"
env -0 > "$d/env"
"""
COMMANDS = {
    "scontrol": 'case "$*" in "show hostnames"*) printf "%s\\n" $NODES ;; esac',
    "sinfo": "echo idle",
    "squeue": 'cd "$FAKE/steps" && for s in *; do echo "$s $(sed -n 2p "$s")"; done',
    "scancel": 'kill -TERM "$(head -n 1 "$FAKE/steps/${!#}")"',
    "srun": """
        while [[ $1 == -* ]]; do
            case $1 in --nodelist=*) export SLURMD_NODENAME=${1#*=} ;; --job-name=*) name=${1#*=} ;; esac
            shift
        done
        [ -z "${name-}" ] || printf '%s\\n' $$ "$name" > "$FAKE/steps/$$"
        export SLURM_CPUS_ON_NODE=4 SLURM_GPUS_ON_NODE=3 SLURM_STEP_GPUS=0,4-5
        export CUDA_VISIBLE_DEVICES=0,1,2 ROCR_VISIBLE_DEVICES=0,1,2
        exec "$@"
    """,
    "docker": """
        command=$1; shift
        while :; do
            case $1 in
                --entrypoint=*) entrypoint=${1#*=}; shift ;;
                --gpus | --name | -e | -w | -v) shift 2 ;;
                -*) shift ;;
                *) break ;;
            esac
        done
        shift
        case $command in run) exec "$entrypoint" "$@" ;; exec) exec "$@" ;; esac
    """,
    "enroot": """
        [ "$1" != import ] || touch "$3"
        [ "$1" = start ] || exit 0
        shift
        while :; do case $1 in --mount | --env) shift 2 ;; -*) shift ;; *) break ;; esac; done
        shift
        exec "$@"
    """,
    # -P -m devkit VERB ...
    "python3": """
        shift 3
        [ "$1" = run ] && exit "${CODE-0}"
        case "$SLURMD_NODENAME" in "${FAILS-}") echo 'error: no module named devkit' >&2; exit 1 ;; esac
        case "$SLURMD_NODENAME" in "${SLEEPS-}") exec sleep 60 ;; esac
        echo '{"gcs_address": "10.0.0.1:6379", "dashboard_url": "http://10.0.0.1:8265", "nodes": []}'
        [ "$2" = --block ] || exit 0
        trap 'touch "$FAKE/ended.$SLURMD_NODENAME"; exit 0' TERM
        while :; do sleep 0.02; done
    """,
}


@dataclass(frozen=True)
class Call:
    """A command that the script ran."""

    words: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def node(self) -> str:
        return self.environ.get("SLURMD_NODENAME", "")


@dataclass(frozen=True)
class FakeSlurm:
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FakeSlurm:
        (folder / "bin").mkdir(parents=True)
        for name, body in {**COMMANDS, "podman": COMMANDS["docker"]}.items():
            program = folder / "bin" / name
            program.write_text(f"#!/bin/bash\n{NOTE}{body}\n")
            program.chmod(0o755)
        return cls(folder)

    def run(self, script: str, nodes: str = "n0 n1", **variables: str) -> subprocess.CompletedProcess[str]:
        """The script in a job on these nodes; `calls` then has what it ran."""
        for name in ("calls", "steps"):
            subprocess.run(["rm", "-rf", self.folder / name], check=True)
            (self.folder / name).mkdir()
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        environ = {
            **kept,
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "FAKE": str(self.folder),
            "NODES": nodes,
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[0-9]",
            **variables,
        }
        return subprocess.run(
            ["bash", "-c", script, "job.sh"],
            env=environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, program: str) -> list[Call]:
        """In the order in which they began."""
        found = []
        for folder in sorted((self.folder / "calls").iterdir()):
            words = tuple((folder / "words").read_text().split("\0")[:-1])
            if words[0] == program:
                variables = (folder / "env").read_text().split("\0")[:-1]
                found.append(Call(words[1:], dict(line.partition("=")[::2] for line in variables)))
        return found

    def devkit(self, verb: str) -> list[Call]:
        """Calls of `devkit VERB`."""
        return [call for call in self.calls("python3") if call.words[3:4] == (verb,)]
