"""Rules about containers and downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devkit.lint.launch import Launch, option
from devkit.lint.records import Finding, Severity
from devkit.lint.values import Argument

_BLOB = re.compile(r"https?://github\.com/[^/\s]+/[^/\s]+/blob/\S+")
_FETCHERS = ("curl", "wget")


def check(launch: Launch) -> Iterator[Finding]:
    for _, _, words in launch.commands:
        start = _run_at(words)
        if start is not None:
            yield from _container(launch, words[start:])
        yield from _downloads(words)
        yield from _commas(words)


def _run_at(words: tuple[Argument, ...]) -> int | None:
    """Where `docker run` or `podman run` begins."""
    for i, word in enumerate(words[:-1]):
        if word.text.rpartition("/")[2] in ("docker", "podman") and words[i + 1].text == "run":
            return i
    return None


def _container(launch: Launch, words: tuple[Argument, ...]) -> Iterator[Finding]:
    on_gpus = any(w.text.startswith(("--gpus", "--device=nvidia", "/dev/kfd", "--device=/dev/kfd")) for w in words)
    if not on_gpus:
        return
    network, ipc, shm = option(words, "--network", "--net"), option(words, "--ipc"), option(words, "--shm-size")
    ports = next((w for w in words if re.match(r"(-p|--publish|-P)(=|$|\d)", w.text)), None)
    if (network is None or network.text == "bridge") and (launch.nodes > 1 or ports is not None):
        yield _network(launch, words, ports)
    if (ipc is None or ipc.text != "host") and shm is None:
        message = "the container has 64 MB of shared memory"
        why = "NCCL, data loaders and Ray's object store need gigabytes of it"
        yield Finding("container-shm", words[1].span, message, why, "add --ipc=host or --shm-size=64g")
    elif ipc is not None and ipc.text == "host" and shm is not None:
        message = f"--shm-size={shm.text} has no effect with --ipc=host"
        yield Finding(
            "shm-size-ignored", shm.span, message, "the host's /dev/shm is used as it is", "remove one of them"
        )


def _network(launch: Launch, words: tuple[Argument, ...], ports: Argument | None) -> Finding:
    severity: Severity = "error" if launch.nodes > 1 else "warning"
    message = "the container is on its own network" + (", with only some ports published" if ports else "")
    why = "Ray and NCCL use many ports and advertise addresses that other nodes can't reach"
    hint = "use --network host" + (f" in place of {ports.text}" if ports else "")
    return Finding("container-network", (ports or words[1]).span, message, why, hint, severity)


def _downloads(words: tuple[Argument, ...]) -> Iterator[Finding]:
    if not any(word.text in _FETCHERS for word in words[:2]):
        return
    for word in words:
        match = _BLOB.fullmatch(word.text)
        if match:
            message = "this is GitHub's page about the file, not the file"
            why = "the download is HTML, which a shell rejects at its first line"
            raw = word.text.replace("github.com", "raw.githubusercontent.com", 1).replace("/blob/", "/", 1)
            yield Finding("web-page-download", word.span, message, why, f"write {raw}")


def _commas(words: tuple[Argument, ...]) -> Iterator[Finding]:
    texts = [word.text for word in words]
    if "install" not in texts[:4] or not any(re.fullmatch(r"pip[\d.]*", text) for text in texts[:3]):
        return
    for word in words:
        if re.fullmatch(r"[\w.\[\]-]+,", word.text):
            message = f"pip takes {word.text} including the comma as a package name"
            hint = f"write {word.text.rstrip(',')}, without the comma"
            yield Finding("comma-argument", word.span, message, "pip stops: invalid requirement", hint)
