"""`python -m trainer.main_ppo [--check | --print-config] [--dialect NAME] KEY=VALUE ...`: the command line.

Keys are verl's, overrides Hydra's. Every problem is one `error:` line and one `hint:` line on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from trainer.address import prepare_joining, prepare_own_cluster, running_cluster
from trainer.commands import Parser, outcome, output
from trainer.config import DIALECTS, Resolved, check, print_config, print_lines, report_lines, resolve, warning_lines
from trainer.config.schema import Config
from trainer.config.show import fact_lines, note_lines
from trainer.errors import ConfigError, WeightMismatch, WorkerDied


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m trainer.main_ppo", description="PPO on Ray. Keys are verl's, overrides Hydra's.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for example data.train_batch_size=64")
    parser.add_argument("--check", action="store_true", help="report every problem with the command and exit")
    parser.add_argument("--print-config", action="store_true", help="show each value and where it comes from, and exit")
    parser.add_argument(
        "--dialect", metavar="NAME", help=f"which release's meaning of the keys to use: {', '.join(DIALECTS)}"
    )
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 fine, 1 the run failed, 2 wrong command, 3 no cluster, 4 a deadline passed, 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    looks = not {"--check", "--print-config"}.isdisjoint(words)
    return outcome(lambda: command(parse(argv)), verbose="--verbose" in words, long=not looks)


def command(options: argparse.Namespace) -> int:
    """Resolve, check, and unless that was all, train."""
    return carry_out(resolve(options.overrides, options.dialect), options)


def carry_out(resolved: Resolved, options: argparse.Namespace) -> int:
    """What is asked for of a configuration: shown, checked, or trained."""
    if options.print_config:
        with output():
            print_config(resolved, sys.stdout)
        print_lines([*note_lines(resolved.notes), *warning_lines(resolved.notes)], sys.stderr)
        return 0
    report = check(resolved)
    warnings = list(warning_lines(report.notes))
    if report.ok and not options.check:
        print_lines([*warnings, *report_lines(report)], sys.stderr)
        return train(resolved.config)
    print_lines(report_lines(report), sys.stderr)
    with output():
        print_lines(fact_lines(report), sys.stdout)
        sys.stdout.flush()
    print_lines(warnings, sys.stderr)
    return 0 if report.ok else ConfigError.exit_code


def train(config: Config) -> int:
    """The run itself. Everything it started is gone when this returns or raises.

    Raises TrainerError. An end that is not the run's own fault says what the same command continues from.
    """
    if (address := running_cluster()) is None:
        prepare_own_cluster()
    else:
        prepare_joining(address)
    from trainer import whereabouts
    from trainer.launch import run_on_ray  # Ray and torch
    from trainer.leaving import Word
    from trainer.resuming import way_on

    print_lines((f"note: {line}" for line in whereabouts.ahead(config)), sys.stderr)
    word = Word(lambda: way_on(config.trainer), config.trainer.grace_period)
    try:
        with word.watching():
            run_on_ray(config)
    except KeyboardInterrupt:
        raise word.say() from None
    except Exception as error:  # whatever came of a Ray that got the same signal, and died of it
        if word.signals:
            raise word.say() from error
        if isinstance(error, (WorkerDied, WeightMismatch)):
            error.hint += f"; {way_on(config.trainer)}"
        raise
    print_lines((f"note: {line}" for line in whereabouts.there(config)), sys.stderr)
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process. After a failure without Python's tear-down, in which a half-started Ray may crash it."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
