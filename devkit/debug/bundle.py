"""The part of devkit that travels: `inworker/` as a folder that any Python can import, and as a zip file for workers.

    BUNDLE/devkit_inworker/          the package
    BUNDLE/site/sitecustomize.py     what Python runs at its start when BUNDLE/site is on PYTHONPATH
    BUNDLE/bundle.zip                both

It is made once per version of its content, under devkit's own folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

from devkit.debug.inworker import boot, private
from devkit.debug.inworker.settings import Settings
from devkit.errors import DevkitError

PACKAGE = "devkit_inworker"
SOURCE = Path(__file__).with_name("inworker")
SITE = "site/sitecustomize.py"
DIGEST_LENGTH = 16

# It stands before any other `sitecustomize`, so it runs the one that Python would have found without it.
SITECUSTOMIZE = """\
import importlib.util
import os
import sys


def start(folder):
    spec = importlib.util.spec_from_file_location(
        "devkit_inworker",
        os.path.join(folder, "devkit_inworker", "__init__.py"),
        submodule_search_locations=[os.path.join(folder, "devkit_inworker")],
    )
    sys.modules["devkit_inworker"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from devkit_inworker import later

    later.start_in_process()


def run_next(here):
    entries = [os.path.abspath(entry) for entry in sys.path]
    for entry in entries[entries.index(here) + 1 :] if here in entries else []:
        path = os.path.join(entry, "sitecustomize.py")
        if os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("sitecustomize", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


HERE = os.path.dirname(os.path.abspath(__file__))
try:
    if os.environ.get("DEVKIT_SETTINGS") and "devkit_inworker" not in sys.modules:
        start(os.path.dirname(HERE))
except Exception as error:
    print(f"devkit: the debugger could not start: {type(error).__name__}: {error}", file=sys.stderr)
run_next(HERE)
"""


def files() -> dict[str, bytes]:
    """Path in the bundle -> content."""
    package = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted(SOURCE.glob("*.py"))}
    return {**package, SITE: SITECUSTOMIZE.encode()}


def pack(content: dict[str, bytes]) -> bytes:
    """The same content gives the same bytes: no times in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(content.items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def digest(content: dict[str, bytes]) -> str:
    hashed = hashlib.sha256()
    for name, data in sorted(content.items()):
        hashed.update(f"{name} {len(data)}\n".encode() + data)
    return hashed.hexdigest()[:DIGEST_LENGTH]


def environment(*, leave_to_ray: bool = False) -> dict[str, str]:
    """What the processes of a cluster need for its workers to have the debugger, whoever starts a job there.

    PYTHONPATH is to be put in front of what is there. A job that was started by `devkit run` brings its own settings.
    With `leave_to_ray`, `breakpoint()` and what fails are for Ray's older debugger; what `devkit break` sets is ours.
    """
    place = folder()
    settings = place / f"cluster-{'legacy' if leave_to_ray else 'pause'}.json"
    wanted = Settings(post_mortem="off" if leave_to_ray else "pause", leave_to_ray=leave_to_ray)
    private.write(settings, json.dumps(boot.settings_to_json(wanted)))
    return {"PYTHONPATH": str(place / "site"), boot.SETTINGS: str(settings), boot.IN_CLUSTER: "1"}


def folder() -> Path:
    """The bundle's folder, written if this version is not there yet. Raises DevkitError where it can be nowhere."""
    content = files()
    try:
        return private.unpack(pack(content), digest(content))
    except OSError as error:
        raise DevkitError(
            f"cannot store what the workers need: {error.strerror}", hint="set DEVKIT_HOME to a folder that you own"
        ) from None
