"""`--bundle FILE`: one archive to attach to a bug report. What goes in is redacted first, whatever it is.

report.txt            the first error, and what followed
first_error.json      the same as a record
job.json              the job as Ray has it
versions.json         of Ray on the cluster, and of what is installed here
cluster.json          the nodes and what they have
tables/*.json         tasks that failed, actors and workers that died
logs/<node>/<file>    around each error, and the end of each log
crashes/<id>.json     devkit's snapshots
stacks.json           of all processes, while the job lives
"""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.debug.inworker import private
from devkit.errors import DevkitError, UsageError
from devkit.logs import redact
from devkit.logs.collect import Left, LogFile
from devkit.logs.order import FirstError

AROUND = 200  # lines before and after an error
TAIL = 300  # lines of the end of each log
PACKAGES = ("ray", "torch", "transformers", "sglang", "vllm", "verl", "debugpy", "numpy", "ray-devkit")
ENDINGS = (".tar.gz", ".tgz", ".zip")


def check(path: Path) -> None:
    """Raises `UsageError` for a name that no archive can have."""
    if not str(path).endswith(ENDINGS):
        raise UsageError(f"--bundle {path} is not an archive name", hint=f"it ends in {', '.join(ENDINGS)}")


def write(path: Path, left: Left, found: FirstError, page: str, record: Any, ray: str, stacks: Any = None) -> None:
    """Makes the archive, whole or not at all. Raises `DevkitError` if it cannot be written."""
    documents: dict[str, Any] = {
        "first_error.json": record,
        "job.json": asdict(left.job),
        "versions.json": versions(ray),
        "cluster.json": [asdict(node) for node in left.nodes],
        "tables/tasks.json": [asdict(row) for row in left.tasks],
        "tables/actors.json": [asdict(row) for row in left.actors],
        "tables/workers.json": [asdict(row) for row in left.workers],
        **{f"crashes/{_plain(str(each['id']))}.json": each for each in left.crashes},
        **({"stacks.json": stacks} if stacks else {}),
    }
    content = {"report.txt": redact.text(page)}
    content |= {name: json.dumps(redact.document(value), indent=1) for name, value in documents.items()}
    content |= {name: redact.text(text) for name, text in _logs(left, found)}
    packed = _pack({name: text.encode() for name, text in content.items()}, str(path).endswith(".zip"))
    try:
        private.write(path, packed, own=0, make=False)
    except OSError as error:
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint="choose another file with --bundle") from None


def _logs(left: Left, found: FirstError) -> Iterator[tuple[str, str]]:
    """The parts of each log that tell: around its errors, and its end. Empty logs are left out."""
    for file in left.files:
        lines = file.text.splitlines()
        if not lines:
            continue
        numbers = [event.order for event in left.events if event.where.startswith(f"{file.name}:")]
        kept = _parts(len(lines), numbers[:20])
        yield f"logs/{_plain(_node(file))}/{_plain(file.name)}", "\n".join(_cut(lines, kept)) + "\n"


def _parts(size: int, errors: Sequence[int]) -> list[range]:
    """
    >>> _parts(5000, [1000])
    [range(800, 1200), range(4700, 5000)]
    >>> _parts(400, [10])
    [range(0, 400)]
    """
    wanted = [range(max(0, at - AROUND), min(size, at + AROUND)) for at in sorted(errors)]
    merged: list[range] = []
    for part in [*wanted, range(max(0, size - TAIL), size)]:
        if merged and part.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(part.stop, merged[-1].stop))
        else:
            merged.append(part)
    return merged


def _cut(lines: Sequence[str], parts: Sequence[range]) -> Iterator[str]:
    end = 0
    for part in parts:
        if part.start > end:
            yield f"... {part.start - end} lines omitted ..."
        yield from lines[part.start : part.stop]
        end = part.stop


def _node(file: LogFile) -> str:
    return f"{file.node_ip}-{file.node_id[:8]}"


def _plain(name: str) -> str:
    """What a server calls a file, as a name that leads nowhere where the archive is unpacked.

    >>> _plain("worker-ab-01-7.err"), _plain("../../x"), _plain("/etc/x"), _plain("..")
    ('worker-ab-01-7.err', '_.._x', '_etc_x', '_')
    """
    return re.sub(r"[^\w.+=@-]", "_", name).lstrip(".") or "_"


def versions(ray: str) -> Mapping[str, str]:
    """Of the cluster's Ray, and of what is installed beside devkit."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"ray on the cluster": ray, "python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _pack(content: Mapping[str, bytes], as_zip: bool) -> bytes:
    buffer = io.BytesIO()
    if as_zip:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sorted(content.items()):
                archive.writestr(name, data)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
