"""`python -m trainer.main_agentic --config_path DIR --config_name NAME [KEY=VALUE ...]`: a YAML file of ROLL.

As `trainer.main_ppo` with the words that the file comes to; overrides are this trainer's, and count more. It may be
started on every machine, as ROLL's scripts are (`trainer/machines.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from trainer import machines, main_ppo
from trainer.commands import Parser, outcome
from trainer.config import Resolved, resolve
from trainer.config.overrides import parse as parsed
from trainer.config.problems import independent
from trainer.config.roll import translate, without
from trainer.config.roll_file import read
from trainer.config.show import print_lines

_DIALECT = "verl-head"  # whose defaults act where neither the file nor ROLL has one


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m trainer.main_agentic", description="ROLL's agentic YAML on this trainer.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="ours, for example trainer.device=cpu")
    parser.add_argument("--config_path", required=True, metavar="DIR", help="the folder of the YAML file")
    parser.add_argument("--config_name", required=True, metavar="NAME", help="its name, with or without .yaml")
    parser.add_argument("--check", action="store_true", help="report what each key becomes, every problem, and exit")
    parser.add_argument("--print-config", action="store_true", help="show each value and where it comes from, and exit")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, as that of `trainer.main_ppo`."""
    words = sys.argv[1:] if argv is None else argv
    looks = not {"--check", "--print-config"}.isdisjoint(words)
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words, long=not looks)


def command(options: argparse.Namespace) -> int:
    """Read, translate, and as `main_ppo`; on machines other than the first, wait. Raises TrainerError."""
    found = resolved(options.config_path, options.config_name, options.overrides)
    if not (options.check or options.print_config) and machines.lends_only(_note):
        return 0
    return main_ppo.carry_out(found, options)


def _note(text: str) -> None:
    print_lines([f"note: {text}"], sys.stderr)


def resolved(path: str, name: str, overrides: Sequence[str]) -> Resolved:
    """What the file and the words come to. Raises ConfigError for a file that cannot be read."""
    found = translate(read(path, name))
    own, _ = parsed(overrides)
    result = resolve([*without(found.overrides, own), *overrides], _DIALECT)
    given = {each.key for each in own}
    origins = {key: origin for key, origin in found.origins.items() if key not in given}
    problems = [each for each in found.problems if each.key not in given]
    return dataclasses.replace(
        result,
        dialect_reason=f"of {name}, a file of ROLL",
        origins={**result.origins, **origins},
        notes=(*found.notes, *result.notes),
        problems=independent([*problems, *result.problems]),
    )


if __name__ == "__main__":
    main_ppo.leave(main())
