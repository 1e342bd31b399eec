"""Paths as the client has them, and as this process has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PathMappings:
    """Pairs of folders: the client's and ours. The first pair that fits is taken; without one a path stays as it is.

    >>> mappings = PathMappings.of([{"localRoot": "C:\\\\code", "remoteRoot": "/tmp/ray/pkg"}])
    >>> mappings.to_here("c:\\\\code\\\\a\\\\m.py"), mappings.to_client("/tmp/ray/pkg/a/m.py")
    ('/tmp/ray/pkg/a/m.py', 'C:\\\\code\\\\a\\\\m.py')
    """

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, argument: Any) -> PathMappings:
        """Reads `pathMappings` of an attach request; what isn't a pair of texts is left out."""
        pairs = []
        for each in argument if isinstance(argument, list) else []:
            local, remote = (each.get("localRoot"), each.get("remoteRoot")) if isinstance(each, dict) else (None, None)
            if isinstance(local, str) and isinstance(remote, str) and local and remote:
                pairs.append((local, remote))
        return cls(tuple(pairs))

    def to_here(self, path: str) -> str:
        return next((new for local, here in self.pairs if (new := _moved(path, local, here)) is not None), path)

    def to_client(self, path: str) -> str:
        return next((new for local, here in self.pairs if (new := _moved(path, here, local)) is not None), path)


def _moved(path: str, old: str, new: str) -> str | None:
    """The path in another folder; None if it isn't in the old one."""
    old, root = old.rstrip("/\\"), new.rstrip("/\\")
    # A Windows client says c:\ or C:\ as it likes.
    fold = str.lower if old[1:2] == ":" else str
    if fold(path) == fold(old):
        return new
    if not fold(path).startswith((fold(old) + "/", fold(old) + "\\")):
        return None
    separator = "\\" if "\\" in new or new[1:2] == ":" else "/"
    return root + path[len(old) :].replace("\\", "/").replace("/", separator)
