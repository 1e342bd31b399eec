"""What the tests of the launchers have in common: devkit on a host, and waits that end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tests.hosts.hosts import Host, Lan
from tests.pace import stretched

PYTHON = sys.executable
UP_S = stretched(240.0)  # for a cluster, on a machine where much else runs
OWN = ("sshd", "ssh-agent")  # what a host without a cluster runs
Found = TypeVar("Found")


def patience(seconds: float) -> float:
    """A deadline that is meant to pass, for what takes a quiet machine `seconds`: longer where much else runs."""
    return min(120.0, seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def devkit(
    host: Host, *words: str, code: int | None = 0, env: Mapping[str, str] | None = None, timeout: float = UP_S + 60
) -> subprocess.CompletedProcess[str]:
    """`devkit ...` there, to its end; `code` is the exit code that it has to have."""
    done = host.run(PYTHON, "-m", "devkit", *words, check=False, env=env, timeout=timeout)
    assert code in (None, done.returncode), f"{words} gave {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def document(host: Host, *words: str, code: int | None = 0, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The one document of `devkit ... --json` there."""
    found: dict[str, Any] = json.loads(devkit(host, *words, "--json", code=code, env=env).stdout)
    return found


def eventually(look: Callable[[], Found], what: str, seconds: float = UP_S) -> Found:
    """What `look` gives, once it is something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"no {what} after {seconds:g} s"
        time.sleep(0.2)
    return found


def on_all(lan: Lan, command: Sequence[str], environs: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The documents of a command that runs on all hosts at once, each with an environment of its own."""
    begun = [
        host.popen(*command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for host, environ in zip(lan, environs, strict=True)
    ]
    documents = []
    for each in begun:
        with each:
            out, said = each.communicate(timeout=UP_S + 60)
        assert each.returncode == 0, said
        documents.append(json.loads(out))
    return documents


def left_on(host: Host) -> list[str]:
    """The command lines of what runs there and is not sshd."""
    return [words for words in host.processes().values() if not any(name in words for name in OWN)]


def environment_of(host: Host, program: str) -> dict[str, str]:
    """The environment of the first process there whose program has that name."""
    [pid, *_] = host.run("sh", "-c", f"grep -l '^{program}$' /proc/[0-9]*/comm").stdout.split()
    words = host.run("cat", pid.replace("/comm", "/environ")).stdout.split("\0")
    return dict(word.partition("=")[::2] for word in words if word)
