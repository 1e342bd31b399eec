"""Python by a path without blanks: the same environment, through a link."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from devkit.debug import plain_python as module
from devkit.debug.plain_python import plain_python
from tests.debug.conftest import short_folder


@pytest.fixture
def spaced(tmp_path: Path) -> Path:
    made = tmp_path / "Ein Ordner, schön" / ".venv"
    venv.create(made, symlinks=True)
    return made / "bin" / "python"


def test_a_path_with_a_blank_gets_one_without_and_is_the_same_environment(
    spaced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_folder() as folder:
        monkeypatch.setattr(module.private, "temporary", lambda: str(folder))
        found = [plain_python(str(spaced)) for _ in range(2)]
        assert found[0] == found[1] and " " not in found[0] and found[0].startswith(str(folder))
        said = subprocess.run(
            [found[0], "-c", "import sys; print(sys.prefix, sys.prefix != sys.base_prefix)"],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert Path(said[0]).samefile(spaced.parent.parent) and said[1] == "True"
        shutil.rmtree(folder)
        folder.write_text("no folder")
        assert plain_python(str(spaced)) == str(spaced)
        folder.unlink()


def test_a_plain_path_is_left_alone() -> None:
    assert plain_python("/opt/venv/bin/python3.11") == "/opt/venv/bin/python3.11"
    assert plain_python(sys.executable) == sys.executable or " " in sys.executable
