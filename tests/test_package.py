"""The wheel: it holds everything, and works where there is no source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.pace import stretched

ROOT = Path(__file__).resolve().parent.parent
VSIX = "devkit/vscode/ray-devkit.vsix"


def run(*command: str | Path, cwd: Path) -> str:
    """The command's output; no variable of this process points it at the source tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=stretched(120),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that has the wheel, and our dependencies but not our source tree."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet", "--no-deps"]
    run(*pip, "--no-index", wheel, cwd=home)
    # A folder named in a .pth file is searched, but its own .pth files are not run: the editable install stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin"


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(("devkit/", "trainer/"))}
    source = {
        path.relative_to(ROOT).as_posix() for room in ("devkit", "trainer") for path in (ROOT / room).rglob("*.py")
    }
    built = {VSIX} if (ROOT / VSIX).exists() else set()
    assert packed == source | built | {"devkit/py.typed", "trainer/py.typed", "devkit/launch/slurm_job.sh"}


def test_a_wheel_holds_the_extension_that_was_built(tmp_path: Path) -> None:
    # given a source tree in which `make vscode` has left the extension, which git ignores
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "devkit/__init__.py", "trainer/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / VSIX).parent.mkdir()
    (tmp_path / VSIX).write_bytes(b"built")
    # when wheel and source archive are made
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", tmp_path, tmp_path, cwd=ROOT)
    # then both hold it
    [wheel], [archive] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert zipfile.ZipFile(wheel).read(VSIX) == b"built"
    with tarfile.open(archive) as source:
        assert any(name.endswith(VSIX) for name in source.getnames())


def test_the_wheel_has_bounds_from_below_only(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    needs = [line for line in archive.read(name).decode().splitlines() if line.startswith("Requires-Dist: ")]
    assert any("torch>=" in need for need in needs)
    everybodys = [need for need in needs if "extra ==" not in need]  # an extra's interfaces may change sooner
    assert [need for need in everybodys if "<" in need or "==" in need.partition(";")[0]] == []


def test_it_is_the_wheel_that_is_imported(installed: Path, tmp_path: Path) -> None:
    where = run(
        installed / "python", "-c", "import devkit, trainer; print(devkit.__file__, trainer.__file__)", cwd=tmp_path
    )
    assert all(Path(file).is_relative_to(installed.parent) for file in where.split())


def test_the_command_line_works(installed: Path, tmp_path: Path) -> None:
    assert "smoke" in run(installed / "devkit", "--help", cwd=tmp_path)
    assert run(installed / "devkit", "--version", cwd=tmp_path).startswith("devkit 0.")


def test_the_trainer_works(installed: Path, tmp_path: Path) -> None:
    assert "usage: python -m trainer.main_ppo" in run(
        installed / "python", "-m", "trainer.main_ppo", "--help", cwd=tmp_path
    )
