"""`devkit lint`: sources -> launches -> findings -> a record, printed."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from devkit.console import emit, result
from devkit.errors import UsageError
from devkit.lint import (
    check_containers,
    check_environment,
    check_keys,
    check_places,
    check_search,
    check_shell,
    check_sizes,
    check_variables,
)
from devkit.lint.gpus import Gpu, gpu_named
from devkit.lint.read import LARGEST, Wish, allowed, read, sources
from devkit.lint.records import Finding, LintFinding, LintRecord, LintTarget
from devkit.lint.rules import RULES
from devkit.lint.source import Source
from devkit.lint.view import lines
from devkit.logs import redact
from trainer.config.audit import TARGETS
from trainer.config.dialects import dialect_of_version

MOST_OF_A_RULE = 200  # findings in a file
_CHECKS = (
    check_shell.check,
    check_variables.check,
    check_keys.check,
    check_sizes.check,
    check_places.check,
    check_search.check,
    check_environment.check,
    check_containers.check,
)


@dataclass(frozen=True)
class LintOptions:
    files: tuple[str, ...]
    words: tuple[str, ...]  # of a command
    target: str | None = None
    gpu: str | None = None
    json: bool = False


def main(options: LintOptions) -> int:
    """The exit code: 0 no error, 1 errors; wrong usage is raised."""
    wish = Wish(target_named(options.target), _gpu(options.gpu))
    stdin = sys.stdin.buffer.read(LARGEST + 1) if "-" in options.files else None
    record = lint(sources(options.files, options.words, stdin), wish)
    if options.json:
        emit(record.to_json())
    else:
        page = result()
        for line in lines(record, page.width if page.is_terminal else None):
            page.print(line, soft_wrap=True)
    return record.exit_code


def lint(given: Sequence[Source], wish: Wish) -> LintRecord:
    """Everything that the rules find, by file and line."""
    findings: list[LintFinding] = []
    targets: list[LintTarget] = []
    for source in given:
        launch, found = read(source, wish)
        everything = [*found, *(finding for check in _CHECKS for finding in check(launch))]
        off = allowed(source)
        told = _first_of_each([finding for finding in everything if finding.rule not in off])
        secrets = redact.hidden(source.data.decode("utf-8", "replace"))
        placed = {_placed(source, finding, secrets) for finding in told}
        findings += sorted(placed, key=lambda finding: (finding.line, finding.column, finding.rule, finding.message))
        targets += check_keys.targets(launch)
    return LintRecord(tuple(findings), tuple(targets))


def _first_of_each(found: Sequence[Finding]) -> Iterator[Finding]:
    """The findings, of each rule the first so many; and how many more there are."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in dict.fromkeys(found):
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, findings in by_rule.items():
        yield from findings[:MOST_OF_A_RULE]
        if more := findings[MOST_OF_A_RULE:]:
            message, why = (
                f"and {len(more)} more of the same kind",
                "a script with this many errors is probably something else",
            )
            yield replace(more[0], message=message, why=why, hint=f"fix those above, or allow={rule}")


def _placed(source: Source, finding: Finding, secrets: Sequence[str]) -> LintFinding:
    """`secrets` are the file's: what quotes a word of it says nothing of whose that is."""
    place = source.place(finding.span)
    line, column = _without(secrets, *source.line(place), place.column)
    return LintFinding(
        rule=finding.rule,
        severity=finding.severity or RULES[finding.rule].severity,
        file=source.name,
        line=place.line,
        column=place.column,
        width=place.width,
        source=line,
        message=_one_line(finding.message, secrets),
        why=_one_line(finding.why, secrets),
        hint=_one_line(finding.hint, secrets),
        source_column=column,
    )


def _without(secrets: Sequence[str], line: str, begins: int, column: int) -> tuple[str, int]:
    """A line as it is shown, and the column that it begins at, by which what is marked in it stands where it was."""
    shown, before = (redact.without(each, secrets) for each in (line, line[: column - begins]))
    if shown == line:
        return line, begins
    return shown, column - (len(before) if shown.startswith(before) else 0)


def _one_line(text: str, secrets: Sequence[str]) -> str:
    return redact.without(" ".join(text.split()), secrets)


def target_named(name: str | None) -> str | None:
    """`verl-0.5` is of the generation verl-0.7.

    >>> target_named("v0.3"), target_named("verl-0.8"), target_named("ours")
    ('verl-0.2', 'verl-head', 'ours')
    """
    if name is None or name in TARGETS:
        return name
    if (dialect := dialect_of_version(name)) is not None:
        return dialect
    near = difflib.get_close_matches(name, TARGETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(TARGETS)}"
    raise UsageError(f"no such version: {name}", hint=hint)


def _gpu(name: str | None) -> Gpu | None:
    if name is None:
        return None
    gpu = gpu_named(name)
    if gpu is None:
        raise UsageError(f"no such GPU: {name}", hint="give its memory in GB: --gpu 80")
    return gpu
