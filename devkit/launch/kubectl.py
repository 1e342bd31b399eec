"""The user's kubectl, with a deadline for each call: its context, its credentials and its settings are the way in."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from devkit.errors import DeadlineError, DevkitError, UnreachableError
from devkit.launch.base import Ran

CALL_S = 30.0  # for one call


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, namespace: str = "", context: str = "") -> None:
        self._words = ["kubectl", f"--request-timeout={CALL_S:g}s"]
        self._words += [f"--namespace={namespace}"] if namespace else []
        self._words += [f"--context={context}"] if context else []

    def get(self, *what: str) -> Any:
        """The object, or the list of them. None: there is no such object."""
        said = self.call("get", *what, "--ignore-not-found", "--output=json")
        return json.loads(said) if said.strip() else None

    def create(self, document: Any) -> None:
        """An object that is not to be there yet; it goes through stdin."""
        self.call("create", "--filename=-", stdin=json.dumps(document))

    def apply(self, document: Any) -> None:
        self.call("apply", "--filename=-", stdin=json.dumps(document))

    def delete(self, kind: str, name: str, timeout: float) -> None:
        """Returns when it is gone."""
        self.call("delete", kind, name, "--ignore-not-found", f"--timeout={timeout:.0f}s", timeout=timeout + 5)

    def exec(self, pod: str, command: Sequence[str], *, stdin: str = "", timeout: float) -> Ran:
        """A command in the pod's first container, to its end. Raises DeadlineError after `timeout` seconds."""
        words = [*self._words, "exec", *(["--stdin"] if stdin else []), pod, "--", *command]
        try:
            done = _run(words, stdin, timeout)
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"{command[0]} in {pod} did not end within {timeout:g} s", hint=f"kubectl describe pod {pod}"
            ) from None
        return Ran(pod, done.returncode, done.stdout, done.stderr)

    def call(self, *words: str, stdin: str = "", timeout: float = CALL_S) -> str:
        """What kubectl prints. Raises UnreachableError if no API server answers, else DevkitError with its words."""
        try:
            done = _run([*self._words, *words], stdin, timeout)
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"kubectl {words[0]} did not answer within {timeout:g} s", hint=_HINT) from None
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split()).removeprefix("error: ") or f"exit code {done.returncode}"
        if any(sign in said for sign in _NO_SERVER):
            raise UnreachableError(f"kubectl {words[0]}: {said}", hint=_HINT)
        raise DevkitError(f"kubectl {words[0]}: {said}", hint=_hint(said))


_HINT = "check the cluster with kubectl cluster-info; choose another with --context"
_NO_SERVER = ("refused", "no such host", "i/o timeout", "Unable to connect", "context deadline", "TLS handshake")


def _hint(said: str) -> str:
    if "no matches for kind" in said:
        return "the KubeRay operator is not installed: its definitions of RayCluster and RayJob are missing"
    if "AlreadyExists" in said:
        return "remove the old one with kubectl delete, or choose another --name"
    if "Forbidden" in said or "forbidden" in said:
        return "see what you are allowed to do with kubectl auth can-i --list"
    return "without --apply, devkit launch kuberay prints what it would apply"


def _run(words: Sequence[str], stdin: str, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout)
    except FileNotFoundError:
        raise UnreachableError(
            "kubectl is not installed on this machine",
            hint="install it, or print the manifest without --apply for a machine that has it",
        ) from None
