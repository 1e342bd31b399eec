"""`python -m trainer.replay CAPSULE [--stage NAME]`: a step's stages done again in one CPU process, and compared.

Each stage starts from what the run saw, not from the replay's own results before it: the one that is off is the one
that changed. Exit code 1 if one is.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from trainer import own_files
from trainer.commands import Parser, number, outcome, output
from trainer.findings import STAGES, Finding, table, to_json

TRUST = "--trust-remote-code"


def replay(
    path: Path,
    stages: Sequence[str] = (),
    tolerance: float | None = None,
    checkpoint: Path | None = None,
    *,
    trust_remote_code: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Finding]:
    """The comparisons of the `stages`, all by default, as they are made. Raises CapsuleError, CheckpointError.

    `tolerance` replaces the limits of what models compute; `checkpoint` says where the weights are, for a capsule
    without them. What a capsule says of `trust_remote_code` does not count: it is off unless it is asked for here.
    """
    from trainer.capsules import Capsule  # torch
    from trainer.restaging import Restaging  # transformers

    with (
        closing(Capsule(path)) as capsule,
        tempfile.TemporaryDirectory(prefix="replay-", dir=own_files.temporary()) as folder,
        ExitStack() as stack,
    ):
        if capsule.trusts_code and not trust_remote_code:
            note(f"the capsule asks for trust_remote_code; its models are loaded without their own code ({TRUST})")
            capsule.distrust()
        yield from Restaging(capsule, Path(folder), stack, tolerance, checkpoint).run(stages or tuple(STAGES))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m trainer.replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("capsule", type=Path, help="a step_N.capsule of trainer.capsule_dir")
    parser.add_argument(
        "--stage", action="append", choices=STAGES, metavar="NAME", help=f"may be repeated: {', '.join(STAGES)}"
    )
    parser.add_argument("--tolerance", type=number("--tolerance", 0.0), help="tolerance for what a model computes")
    parser.add_argument(
        "--checkpoint", type=Path, help="the global_step_N before the step, if the capsule holds no weights"
    )
    parser.add_argument(
        TRUST, action="store_true", help="run code that comes with the capsule's models, if the capsule asks for it"
    )
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 all the same, 1 something is off or the capsule cannot be read."""
    words = sys.argv[1:] if argv is None else argv
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words)


def command(options: argparse.Namespace) -> int:
    findings = list(
        replay(
            *(options.capsule, options.stage or (), options.tolerance, options.checkpoint),
            trust_remote_code=options.trust_remote_code,
            note=lambda text: print(f"note: {text}", file=sys.stderr),
        )
    )
    with output():
        if options.json:
            print(json.dumps({"findings": [to_json(each) for each in findings]}, indent=2))
        else:
            print("\n".join(table(findings)))
    return _verdict(findings)


def _verdict(findings: Sequence[Finding]) -> int:
    """Says what is wrong, if anything is; gives the exit code."""
    off = [each for each in findings if each.verdict == "OFF"]
    if off:
        names = ", ".join(dict.fromkeys(each.stage for each in off))
        print(f"error: the replay differs from the run in {names}\nhint: {_hint(off)}", file=sys.stderr)
        return 1
    if all(each.verdict == "skipped" for each in findings):
        print(
            "error: nothing could be compared\nhint: see why in the table; --checkpoint gives weights", file=sys.stderr
        )
        return 1
    return 0


def _hint(off: Sequence[Finding]) -> str:
    if any(each.stage == "weights" for each in off):
        return "the models are not those of the step: give its --checkpoint"
    return "the code of the first of them, its data in the capsule, or the machine that ran it has changed"


if __name__ == "__main__":
    sys.exit(main())
