"""`python -m trainer.export CHECKPOINT --output DIR`: a checkpoint's actor as safetensors that transformers loads.

One process, no GPU and no cluster, whatever number of ranks wrote the checkpoint. Adapters are merged into the weights,
and lie beside them in `lora_adapter`, as peft loads them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.commands import Parser, outcome, output
from trainer.config.lora import CONFIG, WEIGHTS
from trainer.errors import CheckpointError


def export(folder: Path, output: Path, note: Callable[[str], None] = lambda text: None) -> int:
    """Writes the model of `folder` (a global_step_N) into `output`; gives the number of parameters.

    Raises CheckpointError if `folder` is no checkpoint or is damaged, or `output` is not empty.
    """
    identity, shards = folder / "actor" / "huggingface", folder / "actor"
    if not (identity / "config.json").is_file() or not (shards / ".metadata").is_file():
        raise CheckpointError(f"{folder} is not a checkpoint of this trainer", hint="give a global_step_N folder")
    if not identity.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{identity} leads out of {folder}", hint="give a folder that holds all of its files")
    if output.exists() and any(output.iterdir()):
        raise CheckpointError(f"{output} is not empty", hint="give a new folder as --output")
    from trainer.learner import lora_files
    from trainer.learner.checkpoint import read_model, write_safetensors
    from trainer.resuming import require_whole

    require_whole(folder, note)
    tensors = read_model(shards)
    beside = output.with_name(output.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        shutil.copytree(identity, beside, ignore=_not_to_copy)
        write_safetensors(tensors, beside)
        _copy_adapter(shards / lora_files.FOLDER, beside / lora_files.FOLDER)
        if output.exists():
            output.rmdir()
        beside.rename(output)
    except OSError as error:
        raise CheckpointError(f"cannot write {output}: {error.strerror or error}", hint="free space") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sum(tensor.numel() for tensor in tensors.values())


def _copy_adapter(folder: Path, to: Path) -> None:
    """Of a run with LoRA, in peft's layout; files alone, no links."""
    for name in (CONFIG, WEIGHTS):
        if (folder / name).is_file() and not folder.is_symlink() and not (folder / name).is_symlink():
            to.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, to / name)


def _not_to_copy(folder: str, names: list[str]) -> set[str]:
    """Weights, which are made anew; and links: where they lead is no part of the checkpoint."""
    weights = shutil.ignore_patterns("*.safetensors*")(folder, names)
    return weights | {name for name in names if (Path(folder) / name).is_symlink()}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 written, 1 it could not be, 2 wrong command."""
    return outcome(lambda: command(argv), verbose="--verbose" in (sys.argv[1:] if argv is None else argv))


def command(argv: Sequence[str] | None) -> int:
    parser = Parser(prog="python -m trainer.export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="a global_step_N folder")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    options = parser.parse_args(argv)
    parameters = export(
        *(options.checkpoint.expanduser(), options.output.expanduser()),
        note=lambda text: print(f"note: {text}", file=sys.stderr),
    )
    with output():
        print(f"{options.output}: {parameters:,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
