"""The loss scale of fp16 training: small gradients are multiplied out of fp16's underflow, and divided again in fp32.

Micikevicius et al. 2018, "Mixed precision training", section 3.2; the constants are those of `torch.amp.GradScaler`.
Whether a gradient overflowed is asked of its norm over all ranks, so every rank decides alike without another message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.errors import TrainerError

FIRST_SCALE = 2.0**16
GROWTH_STEPS = 2000  # steps in a row without overflow, until the scale is doubled
LARGEST_SCALE = 2.0**24  # fp32 holds whole numbers up to here; a loss of 1 needs no more


@dataclass(frozen=True)
class LossScale:
    """A power of two, so that scaling and unscaling lose no bit."""

    scale: float = FIRST_SCALE
    good_steps: int = 0  # since the scale changed last

    def after(self, *, finite: bool) -> LossScale:
        """For the next step: halved after an overflow, doubled after GROWTH_STEPS steps without one.

        Raises TrainerError when a scale of 1 overflows: then no scale helps.

        >>> LossScale(8.0, good_steps=5).after(finite=False)
        LossScale(scale=4.0, good_steps=0)
        """
        if finite and self.good_steps + 1 < GROWTH_STEPS:
            return replace(self, good_steps=self.good_steps + 1)
        if finite:
            return LossScale(min(self.scale * 2, LARGEST_SCALE))
        if self.scale <= 1:
            raise TrainerError(
                "the gradient is not finite in fp16, although the loss scale has gone down to 1",
                hint="compute in bf16 or fp32 with fsdp_config.dtype, or look for NaN in rewards and advantages",
            )
        return LossScale(self.scale / 2)
