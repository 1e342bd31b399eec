"""Ray's token: where it is looked for, in Ray's own order, and how a first one is made. It is never printed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from devkit.errors import DevkitError, UnreachableError, UsageError

AuthMode = Literal["token", "disabled"]

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"


@dataclass(frozen=True)
class Token:
    """A token and where it comes from.

    >>> Token("s3cret", "RAY_AUTH_TOKEN")
    Token(source='RAY_AUTH_TOKEN')
    """

    value: str = field(repr=False)
    source: str  # the variable, or the path of the file


def token_file() -> Path:
    """Where Ray keeps the token of this user."""
    return Path.home() / ".ray" / "auth_token"


def find_token(environ: Mapping[str, str] | None = None) -> Token | None:
    """The token that Ray would use here: of the variable, else of the named file, else of the user's file.

    Raises UnreachableError if RAY_AUTH_TOKEN_PATH names a file that holds none, as Ray does.

    >>> find_token({"RAY_AUTH_TOKEN": " abc\\n"}).value
    'abc'
    """
    environ = os.environ if environ is None else environ
    if value := environ.get(TOKEN, "").strip():
        return Token(value, TOKEN)
    if named := environ.get(TOKEN_PATH, ""):
        value = _read(Path(named))
        if not value:
            raise UnreachableError(
                f"{TOKEN_PATH} names {named}, which is unreadable or empty",
                hint=f"put the cluster's token into that file, or set {TOKEN}",
            )
        return Token(value, named)
    path = token_file()
    value = _read(path)
    return Token(value, str(path)) if value else None


def ensure_token(environ: Mapping[str, str] | None = None) -> tuple[Token, bool]:
    """The token of this user, and whether it was made just now, in Ray's own file."""
    keep_private()
    if found := find_token(environ):
        return found, False
    path = token_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it is empty, or a link to nowhere
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        pass  # another devkit or Ray made one at the same moment
    except OSError as error:
        raise DevkitError(
            f"cannot write {path}: {error.strerror}", hint=f"set {TOKEN} to a secret of your own"
        ) from None
    found = find_token(environ)
    if found is None:
        raise DevkitError(f"{path} became empty while it was being written", hint="start again")
    return found, True


def keep_private() -> None:
    """Takes from other users what Ray gives them: it makes its token file readable by everybody on the machine."""
    path = token_file()
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077:
            path.chmod(0o600)


def auth_mode(wanted: str | None, environ: Mapping[str, str]) -> AuthMode:
    """What a new cluster asks of its clients: the option, else what the environment says, else a token.

    >>> auth_mode(None, {"RAY_AUTH_MODE": "disabled"}), auth_mode("token", {"RAY_AUTH_MODE": "disabled"})
    ('disabled', 'token')
    """
    named = wanted or environ.get(MODE) or "token"
    match named.lower():
        case "token":
            return "token"
        case "disabled":
            return "disabled"
    where = "--auth" if wanted else MODE
    raise UsageError(f"{where} is {named!r}", hint=f"{where} is 'token' or 'disabled'")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
