"""`python -m trainer.export CHECKPOINT --output DIR`: a checkpoint's actor as safetensors that transformers loads.

One process, no GPU and no cluster, whatever number of ranks wrote the checkpoint.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import CheckpointError, TrainerError


def export(folder: Path, output: Path) -> int:
    """Writes the model of `folder` (a global_step_N) into `output`; gives the number of parameters.

    Raises CheckpointError if `folder` is no checkpoint or `output` is not empty.
    """
    identity, shards = folder / "actor" / "huggingface", folder / "actor"
    if not (identity / "config.json").is_file() or not (shards / ".metadata").is_file():
        raise CheckpointError(f"{folder} is not a checkpoint of this trainer", hint="give a global_step_N folder")
    if output.exists() and any(output.iterdir()):
        raise CheckpointError(f"{output} is not empty", hint="give a new folder as --output")
    from trainer.learner.checkpoint import read_model, write_safetensors

    tensors = read_model(shards)
    beside = output.with_name(output.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        shutil.copytree(identity, beside, ignore=shutil.ignore_patterns("*.safetensors*"))
        write_safetensors(tensors, beside)
        if output.exists():
            output.rmdir()
        beside.rename(output)
    except OSError as error:
        raise CheckpointError(f"cannot write {output}: {error.strerror or error}", hint="free space") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sum(tensor.numel() for tensor in tensors.values())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="a global_step_N folder")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    options = parser.parse_args(argv)
    try:
        parameters = export(options.checkpoint.expanduser(), options.output.expanduser())
    except TrainerError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"{options.output}: {parameters:,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
