"""One request to many workers, and their answers together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from devkit.debug.dap_link import Link, failure
from devkit.debug.protocols import Document

Key = TypeVar("Key", bound=Hashable)


def gather(
    asked: Mapping[Key, tuple[Link | None, str, Document]],
    done: Callable[[dict[Key, Document]], None],
    seconds: float,
) -> None:
    """Calls `done` once with a response for each, in the order of `asked`; late ones are failures."""
    replies: dict[Key, Document] = {}

    def take(key: Key, reply: Document) -> None:
        replies[key] = reply
        if len(replies) == len(asked):
            done({each: replies[each] for each in asked})

    if not asked:
        done({})
    for key, (link, command, arguments) in asked.items():
        if link is None:
            take(key, failure("the worker is not connected now"))
        else:
            link.request(command, arguments, lambda reply, key=key: take(key, reply), seconds)  # type: ignore[misc]


def merged_breakpoints(bodies: Sequence[Document], count: int) -> list[Document]:
    """For each breakpoint what the first worker said that could set it, else what the first one said.

    >>> merged_breakpoints([{"breakpoints": [{"verified": False}]}, {"breakpoints": [{"verified": True, "id": 4}]}], 1)
    [{'verified': True, 'id': 4}]
    >>> merged_breakpoints([], 1)
    [{'verified': False, 'message': 'no rank is stopped yet'}]
    """
    lists = [body["breakpoints"] for body in bodies if len(body.get("breakpoints", ())) == count]
    if not lists:
        return [{"verified": False, "message": "no rank is stopped yet"}] * count
    columns = zip(*lists, strict=True)
    return [next((each for each in column if each.get("verified")), column[0]) for column in columns]
