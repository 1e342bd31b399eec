"""Files and folders that another user has put where ours would be: none is written over, none is believed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.debug import hub_file, processes, runs, state
from devkit.debug.address import noted_address, resolve
from devkit.debug.dap_exchange import Exchange
from devkit.debug.inworker import PROTOCOL, crash_files, hub_actor, private
from devkit.debug.inworker.hub_place import signed
from devkit.debug.inworker.records import CrashRecord
from devkit.debug.inworker.relay import Relay
from devkit.errors import DevkitError, UnreachableError
from tests.security.users import MALLORY, ROOT, needs_users, program
from trainer.address import running_cluster

pytestmark = needs_users

DOCUMENT = {"id": "c1", "time": 1.0}

HUB = {"hub_id": "h", "host": "127.0.0.1", "port": 1, "node_id": "n"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """As Ray makes its folders: everybody may write, and replace what others have written."""
    folder = tmp_path / "logs"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    path = tmp_path / "treasure"
    path.write_text("mine")
    path.chmod(0o600)
    return path


def hers(path: Path, *, folder: bool = True) -> Path:
    """Made by the other user, with rights for everybody."""
    if folder:
        path.mkdir()
        path.chmod(0o777)
    os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
    return path


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return hers(path, folder=False)


# ---- the helper


def test_a_folder_is_made_for_its_owner_alone_and_found_again(tmp_path: Path) -> None:
    made = private.folder(tmp_path / "a" / "b" / "c", own=2)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent)] == [0o700, 0o700]
    private.write(made / "f", "one", own=2)
    private.write(made / "f", b"two", own=2)
    assert private.read(made / "f", own=2) == b"two" and private.names(made) == ["f"]
    assert stat.S_IMODE((made / "f").stat().st_mode) == 0o600
    private.remove(made / "f")
    private.remove(made / "f")
    assert private.names(made) == [] == private.names(made / "none")


def test_a_folder_of_another_user_is_refused_and_nothing_is_put_into_it(logs: Path) -> None:
    theirs = hers(logs / "devkit")
    for refused in (
        lambda: private.write(theirs / "hub.json", "x"),
        lambda: private.create(theirs / "relay"),
        lambda: private.folder(theirs / "crashes", own=2),
        lambda: private.names(theirs),
    ):
        with pytest.raises(PermissionError, match="another user's"):
            refused()
    assert list(theirs.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for mode in (0o770, 0o707, 0o777 | stat.S_ISVTX):
        mine.chmod(mode)
        with pytest.raises(PermissionError):
            private.write(mine / "f", "x")
    mine.chmod(0o755)  # it may be one that the user had, and chose
    private.write(mine / "f", "x")


def test_a_link_in_place_of_a_folder_or_a_file_is_not_followed(logs: Path, tmp_path: Path, treasure: Path) -> None:
    mine = private.folder(tmp_path / "mine")
    link(logs / "devkit", mine)
    with pytest.raises(PermissionError):
        private.write(logs / "devkit" / "f", "x")
    link(mine / "f", treasure)
    with pytest.raises(PermissionError):
        private.read(mine / "f")
    with pytest.raises(FileExistsError):
        private.create(mine / "f")
    private.write(mine / "f", "new")
    assert treasure.read_text() == "mine" and (mine / "f").read_text() == "new" and not (mine / "f").is_symlink()


def test_neither_a_pipe_nor_anothers_file_is_read(tmp_path: Path) -> None:
    mine = private.folder(tmp_path / "mine")
    os.mkfifo(mine / "pipe")
    (mine / "file").write_text("{}")
    hers(mine / "file", folder=False)
    for name in ("pipe", "file"):
        with pytest.raises(PermissionError):
            private.read(mine / name)


def test_what_was_looked_at_is_what_is_written_to(logs: Path) -> None:
    """The folder is taken away between the look and the write, as everybody may who may write to the one above."""
    with private.opened(logs / "devkit", make=True) as at:
        (logs / "devkit").rename(logs / "taken")
        hers(logs / "devkit")
        os.close(os.open("f", os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at))
    assert (logs / "taken" / "f").exists() and not (logs / "devkit" / "f").exists()


# ---- who uses it


def planted(logs: Path, treasure: Path, name: str, count: int = 40_000) -> Path:
    """A folder of hers, with a link for each process number that a temporary file could have."""
    folder = hers(logs / "devkit")
    for number in [os.getpid(), *range(2, 50)]:
        if not (folder / f"{name}.{number}").is_symlink():
            link(folder / f"{name}.{number}", treasure)
    return folder


def test_the_hubs_file_is_not_written_through_anothers_link(logs: Path, treasure: Path) -> None:
    folder = planted(logs, treasure, "hub")
    with pytest.raises(PermissionError):
        hub_actor.announce(folder / "hub.json", {"hub_id": "x"}, "token")
    assert treasure.read_text() == "mine"


def test_a_crash_is_not_written_through_anothers_link(
    logs: Path, treasure: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = hers(hers(logs / "devkit") / "crashes")
    for name in (f".c1.{os.getpid()}", "c1.json"):
        link(folder / name, treasure)
    assert crash_files.store(DOCUMENT, folder) is None
    assert "can't be stored" in capfd.readouterr().err
    assert treasure.read_text() == "mine" and (folder / "c1.json").is_symlink()


def test_crashes_that_another_user_has_written_are_none(logs: Path) -> None:
    said = {"type": "ValueError", "message": "no"}
    record = CrashRecord("c1", "01", "Worker", 0, "", 7, 1.0, said, "job.py", 3, "step", None).to_json()  # type: ignore[arg-type]
    mine = logs / "devkit" / "crashes"
    assert crash_files.store(record, mine)
    assert [each.id for each in crash_files.list_folder(mine)] == ["c1"]
    hers(mine / "c1.json", folder=False)
    assert crash_files.list_folder(mine) == []
    hers(mine, folder=False)
    with pytest.raises(OSError, match="another user's"):
        crash_files.load(mine / "c1.json")


def test_the_relay_does_not_write_through_anothers_link(logs: Path, treasure: Path) -> None:
    folder = hers(logs / "devkit")
    link(folder / "relay-s1.out", treasure)
    relay = Relay(None, "0" * 32, folder, None)  # type: ignore[arg-type]  # it is asked for no more than its file
    with pytest.raises(PermissionError):
        relay._open("s1")
    assert treasure.read_text() == "mine"


def test_an_editors_wish_is_believed_from_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "exchange"
    folder.mkdir(mode=0o700)
    Exchange(folder).wish((), {"PYTHONPATH": "/evil"})
    hers(folder, folder=False)
    environ = {"DEVKIT_EDITOR": str(folder)}
    with pytest.raises(DevkitError, match="another user's"):
        Exchange.given(environ)
    assert "PYTHONPATH" not in environ


@pytest.fixture
def planted_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """devkit's folder with what devkit itself has written, all of which the other user has made hers."""
    home = tmp_path / "home"
    monkeypatch.setenv("DEVKIT_HOME", str(home))
    announced = {"gcs_address": "127.0.0.1:1", "job_id": "01", "auth": "token", "hub": HUB}
    runs.remember(announced, "http://127.0.0.1:1")
    state.see("127.0.0.1:1", state.Seen("http://127.0.0.1:1", "s"))
    assert runs.running() and state.seen("127.0.0.1:1")
    for path in (home, *home.rglob("*")):
        os.chown(path, MALLORY, MALLORY)
    return home


def test_nothing_in_a_home_that_is_another_users_is_believed_or_touched(planted_home: Path) -> None:
    before = {path: path.is_file() and path.read_text() for path in planted_home.rglob("*")}
    assert runs.running() == () and state.clusters() == () and state.seen("127.0.0.1:1") is None
    writes: tuple[Callable[[], object], ...] = (
        lambda: state.private_folder("runs"),
        lambda: runs.remember({"gcs_address": "", "job_id": "", "auth": "", "hub": HUB}, ""),
        lambda: state.write(planted_home / "seen.json", {}),
    )
    for each in writes:
        with pytest.raises(DevkitError, match="another user's") as refused:
            each()
        assert "DEVKIT_HOME" in refused.value.hint
    assert {path: path.is_file() and path.read_text() for path in planted_home.rglob("*")} == before


def test_a_file_of_another_user_among_ours_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "home"))
    state.see("a:1", state.Seen("http://evil", "s"))
    hers(tmp_path / "home" / "seen.json", folder=False)
    assert state.seen("a:1") is None
    (state.private_folder("clusters") / "c.json").write_text(json.dumps({"name": "c"}))
    link(state.private_folder("runs") / "run-1.json", tmp_path / "home" / "seen.json")
    assert runs.running() == ()


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, socket.socket]]:
    """Where `ray start` notes its address, and something that listens there."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DEVKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    file.parent.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        file.write_text(f"127.0.0.1:{server.getsockname()[1]}")
        yield file, server


def test_what_another_user_puts_where_ray_notes_its_cluster_holds_up_and_ends_nobody(
    noted: tuple[Path, socket.socket],
) -> None:
    """A pipe, whose reader would wait for ever, and a port of more digits than Python reads."""
    file, _ = noted
    file.unlink()
    os.mkfifo(file)
    hers(file, folder=False)
    assert noted_address(file.parent) is None and running_cluster() is None
    file.unlink()
    for text in ("127.0.0.1:" + "9" * 5000, "x" * 10**6):
        file.write_text(text)
        hers(file, folder=False)
        assert noted_address(file.parent) is None and running_cluster() is None
        file.chmod(0o644)
        os.chown(file, ROOT, ROOT)
        assert noted_address(file.parent) is None


def test_the_token_does_not_go_where_another_user_says_that_a_cluster_is(
    noted: tuple[Path, socket.socket], tmp_path: Path
) -> None:
    file, server = noted
    address = file.read_text()
    assert running_cluster() == address
    with server.accept()[0]:
        hers(file, folder=False)
    assert running_cluster() is None
    with pytest.raises(UnreachableError, match="is another user's"):
        resolve()
    file.unlink()
    (tmp_path / "mine").write_text(address)
    file.symlink_to(tmp_path / "mine")
    assert running_cluster() is None
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.parametrize(("uid", "is_found"), [(MALLORY, False), (ROOT, True)])
def test_a_node_that_another_user_runs_is_not_asked(uid: int, is_found: bool) -> None:
    with program("raylet.py", uid, "--gcs-address=127.0.0.1:1") as node:
        node.heard()
        assert "127.0.0.1:1" in processes.gcs_addresses()
        assert ("127.0.0.1:1" in processes.gcs_addresses(owners=(ROOT,))) == is_found


def test_a_unix_socket_knows_who_has_come(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"dks{os.getpid()}"  # others can't enter pytest's own
    folder.mkdir()
    folder.chmod(0o777)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "s"))
            (folder / "s").chmod(0o777)
            server.listen()
            for uid in (MALLORY, ROOT):
                with program("caller.py", uid, folder / "s") as caller:
                    with server.accept()[0] as accepted:
                        assert private.is_same_user(accepted) == (uid == ROOT)
                    assert caller.heard() == ""
    finally:
        shutil.rmtree(folder)


def test_temporary_folders_are_made_where_nobody_can_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode, is_used in ((0o777, False), (0o770, False), (0o1777, True), (0o755, True)):
        tmp_path.chmod(mode)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert (private.temporary() == str(tmp_path)) == is_used, oct(mode)
    os.chown(tmp_path, MALLORY, MALLORY)
    assert private.temporary() == "/tmp"


class Head:
    """A dashboard that serves the head's logs."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    def nodes(self, *_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id="n")]

    def list_logs(self, _node: str, glob: str) -> dict[str, list[str]]:
        return {"other": [str(path.relative_to(self._logs)) for path in self._logs.glob(glob)]}

    def log_file(self, _node: str, name: str) -> bytes:
        return (self._logs / name).read_bytes()


PLACE = {"hub_id": "h", "host": "10.0.0.5", "port": 7, "node_id": "n", "protocol": PROTOCOL}


@pytest.mark.parametrize("token", ["the token", ""], ids=["token", "none"])
def test_the_hub_is_where_its_own_file_says(logs: Path, token: str) -> None:
    hub_actor.announce(logs / "devkit" / "hub.json", PLACE, token)
    assert hub_file.find(Head(logs), token) == hub_file.HubPlace("h", "10.0.0.5", 7, "n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**PLACE, "host": "10.6.6.6"}),
        json.dumps({**PLACE, "mac": "ä"}),
        json.dumps(signed(PLACE, "her token")),
        json.dumps({**signed(PLACE, "the token"), "port": 8}),
        json.dumps({**PLACE, "mac": None, "protocol": None}),
        "",
        "[]",
        "[" * 100_000,
    ],
    ids=["unsigned", "no mac", "her own", "changed", "null", "empty", "array", "deep"],
)
def test_what_another_user_says_of_the_hub_is_believed_by_nobody(logs: Path, text: str) -> None:
    theirs = hers(logs / "devkit")
    (theirs / "hub.json").write_text(text)
    with pytest.raises(DevkitError) as refused:
        hub_file.find(Head(logs), "the token")  # type: ignore[arg-type]
    assert "was not written with this token" in str(refused.value) or "version None" in str(refused.value)
