"""Debian's packages that single tests need beside those of `install`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping


def problem(what: str, programs: Mapping[str, str]) -> str:
    """Why `what` cannot have these programs, by the package that brings each; empty: they are there, or are now."""
    missing = sorted({package for program, package in programs.items() if not shutil.which(program)})
    if not missing:
        return ""
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    try:
        done = subprocess.run(install, capture_output=True, text=True, env={"DEBIAN_FRONTEND": "noninteractive"})
    except OSError:
        return f"{what} needs {', '.join(missing)}"
    return f"{what} needs {', '.join(missing)}: {done.stderr.strip()[:200]}" if done.returncode else ""
