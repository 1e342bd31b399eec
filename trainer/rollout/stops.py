"""Where generation ends at a text: with the token that completes it, which is kept whole.

    sampled   ...  "</"  "search"  ">\\n"        ends here: the line break in the tag's last token stays sampled

The ids are the first n of which `text in decode(ids[:n])` holds: nothing is cut, and nothing is encoded again. An
engine that knows stop texts itself gives the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Decode = Callable[[Sequence[int]], str]  # token ids to text, special tokens included


class Stops:
    """Follows `count` rows token by token."""

    def __init__(self, texts: Sequence[str], decode: Decode, count: int) -> None:
        self._texts, self._decode = tuple(texts), decode
        self._reach = max(len(text.encode()) for text in texts)  # a token has at least a byte of its text
        self._last = frozenset(text[-1] for text in texts)
        self._may_end: dict[int, bool] = {}
        self._said: list[list[int]] = [[] for _ in range(count)]

    def after(self, token_B: Tensor, alive_B: Tensor) -> Tensor:
        """Takes the next token of each row that is `alive_B`; says which of these now end with a text, [B] bool."""
        ends = [
            alive and self._ends(row, token)
            for row, (token, alive) in enumerate(zip(token_B.tolist(), alive_B.tolist(), strict=True))
        ]
        return torch.tensor(ends, dtype=torch.bool, device=token_B.device)

    def _ends(self, row: int, token: int) -> bool:
        said = self._said[row]
        said.append(token)
        if token not in self._may_end:
            text = self._decode([token])
            self._may_end[token] = not text.isascii() or not self._last.isdisjoint(text)
        if not self._may_end[token]:
            return False
        text = self._decode(said[-self._reach :])
        return any(stop in text for stop in self._texts)
