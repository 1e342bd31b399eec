"""What a worker loads is what its job has brought along, whatever another user has put anywhere before or after."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devkit.debug import bundle
from devkit.debug.inworker import private
from tests.security.users import MALLORY, ROOT, VICTIM, needs_users, program

pytestmark = needs_users

CONTENT = bundle.files()
BUNDLE, DIGEST = bundle.pack(CONTENT), bundle.digest(CONTENT)
EVIL = "raise SystemExit('planted code ran')"


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not: sticky, as /tmp is."""
    folder = Path("/tmp") / f"dks{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o1777)
    usual = [Path(place, f"devkit-{uid}") for place in private.TEMPORARY for uid in (ROOT, VICTIM)]
    fresh = [path for path in usual if not path.exists()]  # where it goes when all of ours is hers
    yield folder
    for path in (folder, *fresh):
        shutil.rmtree(path, ignore_errors=path != folder)


@pytest.fixture(autouse=True)
def _elsewhere(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this user's own home nor its temporary files."""
    for name in ("DEVKIT_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(top / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(top))


def home_of(top: Path, uid: int, mode: int = 0o755) -> Path:
    folder = top / "home"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, uid, uid)
    return folder


def plant(folder: Path) -> None:
    """A whole bundle of hers in the place of ours."""
    package = folder / "devkit_inworker"
    package.mkdir(parents=True)
    for name in ("__init__.py", "boot.py", "agent.py", "private.py"):
        (package / name).write_text(EVIL)
    (folder / ".complete").touch()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, MALLORY, MALLORY)
        path.chmod(0o777)


def is_alone(path: Path, uid: int) -> bool:
    """Whether nobody else could have put anything there, or can put something else in its place."""
    for each in (path, *path.parents):
        info = each.lstat()
        others = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
        if stat.S_ISLNK(info.st_mode) or info.st_uid not in (uid, ROOT) or others:
            return False
    return True


@pytest.mark.parametrize("uid", [ROOT, VICTIM], ids=["root", "user"])
def test_a_worker_loads_its_agent_from_a_folder_of_its_users_own(top: Path, uid: int) -> None:
    home = home_of(top, uid)
    with program("hooked.py", uid, top) as worker:
        seen = worker.heard()
    assert seen["file"] == str(home / ".cache/devkit/bundles" / DIGEST / "devkit_inworker/__init__.py")
    assert is_alone(Path(seen["file"]), uid)


@pytest.mark.parametrize("uid", [ROOT, VICTIM], ids=["root", "user"])
def test_planted_code_is_passed_by(top: Path, uid: int) -> None:
    """In the home, which somebody may write to; among temporary files, under the name that we would have taken."""
    home = home_of(top, uid, 0o777)
    plant(home / ".cache" / "devkit" / "bundles" / DIGEST)
    plant(top / f"devkit-{uid}" / "bundles" / DIGEST)
    with program("hooked.py", uid, top) as worker:
        seen = worker.heard()
    assert seen["digest"] == DIGEST and is_alone(Path(seen["file"]), uid)


def test_without_a_home_it_is_among_temporary_files_and_found_again(top: Path) -> None:
    for _ in range(2):
        with program("hooked.py", VICTIM, top) as worker:
            seen = worker.heard()
        assert seen["file"] == str(top / f"devkit-{VICTIM}/bundles" / DIGEST / "devkit_inworker/__init__.py")
    assert is_alone(Path(seen["file"]), VICTIM)


def test_a_home_that_a_group_may_write_to_is_not_used_for_code(top: Path) -> None:
    home = home_of(top, ROOT, 0o775)
    assert not private.unpack(BUNDLE, DIGEST).is_relative_to(home)


def test_temporary_files_where_anybody_may_replace_them_are_not_used_for_code(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod whose /tmp is a volume: no sticky bit."""
    for name, mode in (("volume", 0o777), ("sticky", 0o1777)):
        (top / name).mkdir()
        (top / name).chmod(mode)
    monkeypatch.setattr("tempfile.tempdir", str(top / "volume"))
    monkeypatch.setattr(private, "TEMPORARY", (str(top / "none"), str(top / "sticky")))
    found = private.unpack(BUNDLE, DIGEST)
    assert found == top / "sticky" / f"devkit-{ROOT}" / "bundles" / DIGEST and is_alone(found, ROOT)


def test_a_link_in_the_way_leads_nowhere(top: Path) -> None:
    home = home_of(top, ROOT)
    (top / "mallorys").mkdir()
    plant(top / "mallorys" / "bundles" / DIGEST)
    (home / ".cache").mkdir()
    (home / ".cache" / "devkit").symlink_to(top / "mallorys")
    assert is_alone(private.unpack(BUNDLE, DIGEST), ROOT)


def test_what_is_cut_off_is_made_whole_by_the_next_and_by_many_at_once(top: Path) -> None:
    home_of(top, ROOT)
    target = private.unpack(BUNDLE, DIGEST)
    (target / "devkit_inworker" / "agent.py").write_text("import")
    (target / "devkit_inworker" / "wire.py").unlink()
    (target / "bundle.zip").unlink()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: private.unpack(BUNDLE, DIGEST), range(16))) == {target}
    assert {name: (target / name).read_bytes() for name in CONTENT} == CONTENT
    assert (target / "bundle.zip").read_bytes() == BUNDLE
    assert not [path for path in target.rglob(".*") if path.is_file()]


def test_where_there_is_no_such_folder_nothing_is_loaded_and_it_is_said(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devkit.debug.inworker.private._places", lambda: iter([lambda: top / "shared" / "bundles"]))
    (top / "shared").mkdir()
    os.chown(top / "shared", MALLORY, MALLORY)
    with pytest.raises(PermissionError, match="no folder for it that is this user's alone"):
        private.unpack(BUNDLE, DIGEST)


def test_what_travels_needs_nothing_but_the_standard_library_and_no_other_module_of_ours() -> None:
    code = "import sys; exec(sys.stdin.read(), {'__name__': 'devkit_private'}); print(sorted(sys.modules))"
    source = CONTENT["devkit_inworker/private.py"].decode()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], input=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "devkit" not in done.stdout
