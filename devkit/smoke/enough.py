"""Whether the user's training files have the rows of one step of the tiny run: told before anything is started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from devkit.smoke.shrink import Plan
from trainer.errors import ConfigError

BATCH = "data.train_batch_size"


def require_rows(plan: Plan) -> None:
    """Raises ConfigError. A file that cannot be read is told by the trainer, in its own words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = plan.full.data
    needed = next((cut.tiny for cut in plan.cut if cut.key == BATCH), data.train_batch_size)
    with suppress(OSError, pa.ArrowException):
        rows = sum(pq.read_metadata(Path(file).expanduser()).num_rows for file in data.train_files)
        if 0 < rows < needed:
            raise ConfigError(
                f"data.train_files has {rows} rows, and a step of the smoke test takes {needed}",
                hint=f"give it a larger file: the command's own mini-batches and micro-batches need {needed} rows here",
            )


__all__ = ["require_rows"]
