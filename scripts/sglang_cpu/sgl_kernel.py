"""In place of SGLang's compiled kernels, which are not published for a CPU.

SGLang imports names from here while it starts, also on a CPU, and uses them in features that stay off (speculative
decoding); its layers fall back to torch where `torch.ops.sgl_kernel` lacks theirs. So any name can be imported, and
none called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name[:2] == "__":  # what Python's own machinery asks for must be missing
        raise AttributeError(name)

    def absent(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no version for a CPU")

    return absent
