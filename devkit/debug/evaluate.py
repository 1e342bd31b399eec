"""`devkit eval`: expressions on many stopped ranks, equal values put together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from devkit import console
from devkit.debug.grouping import Group, differing, group, odd
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, count, name_members
from devkit.debug.protocols import Hub
from devkit.debug.targets import ALL, ask_what_became_of, select
from devkit.errors import DevkitError, UsageError
from devkit.palette import CAUTION, GOOD

if TYPE_CHECKING:
    from rich.text import Text

    from devkit.debug.documents import EvalDocument, FurtherEval
    from devkit.debug.inworker.documents import EvalResult

TIMEOUT = 10.0


class Outcome(NamedTuple):
    """What an expression gave on one rank: a value, or else an error."""

    value: str
    error: str | None


def main(
    *expressions: str,
    target: str = ALL,
    address: str | None = None,
    job: str | None = None,
    json: bool = False,
    timeout: float = TIMEOUT,
) -> int:
    """Evaluate each on the stops that `target` means; 1 when one of them failed on every stop."""
    from devkit.debug.client import connect

    for expression in expressions:
        check_expression(expression)
    with connect(address) as hub:
        return run(hub, *expressions, target=target, job=job, json=json, timeout=timeout)


def run(
    hub: Hub,
    *expressions: str,
    target: str = ALL,
    job: str | None = None,
    json: bool = False,
    timeout: float = TIMEOUT,
) -> int:
    named = target.strip() not in ("", ALL)
    stops = stops_of(hub, job, named=named)
    stops = stops if named or job else going_on(hub, stops)
    ask_what_became_of(hub, stops, target.split(","))
    wanted = select(stops, target)
    warn_of_jobs(wanted)
    every = target == ALL and job is None
    answers: list[tuple[str, list[EvalResult]]] = []  # one may be asked twice
    for expression in expressions:
        results = results_of(hub, expression, wanted, every=every, timeout=timeout)
        answers.append((expression, results))
        if not json:
            shown = page(results)
            text = shown if len(expressions) == 1 else _headed(expression, shown)
            console.result().print(console.AsItIs(text), soft_wrap=True)
    if json:
        console.emit(record_of(answers))
    return 1 if any(all(one["error"] is not None for one in results) for _, results in answers) else 0


def results_of(
    hub: Hub, expression: str, wanted: Sequence[StopRecord], *, every: bool, timeout: float = TIMEOUT
) -> list[EvalResult]:
    """One result for each of these stops; `every`: they are all that there are."""
    # All are asked for as such: one that goes on in this moment is then missing, and not an unknown id.
    ids = None if every else [stop.id for stop in wanted]
    answer = hub.call("eval", expression=expression, ids=ids, timeout=timeout)
    meant = {stop.id for stop in wanted}
    results: list[EvalResult] = [each for each in answer["results"] if each["id"] in meant]
    return results + missing(wanted, results)


def _how_to_stop(armed: Sequence[str]) -> str:
    """
    >>> _how_to_stop(["job.py:3"])
    'job.py:3 is armed; devkit ps --watch shows when it is hit'
    """
    if not armed:
        return "pause ranks with devkit break FILE:LINE; devkit ps lists them"
    more = f" and {len(armed) - 1} more are" if len(armed) > 1 else " is"
    return f"{armed[0]}{more} armed; devkit ps --watch shows when it is hit"


def stops_of(hub: Hub, job: str | None = None, *, named: bool = False) -> list[StopRecord]:
    """All stops, or those of a job. Raises DevkitError when nothing is stopped, but if one is named: that is wrong."""
    document = hub.call("ps")
    stops = [StopRecord.from_json(stop) for stop in document["stops"]]
    if not stops and named:
        return []
    if not stops:
        raise DevkitError(
            "nothing is stopped", hint=_how_to_stop([str(each["spec"]) for each in document.get("breakpoints", ())])
        )
    found = [stop for stop in stops if job in (None, stop.job_id)]
    if not found:
        raise UsageError(f"nothing is stopped in job {job}", hint=f"stopped: {', '.join(jobs_of(stops))}")
    return found


def going_on(hub: Hub, stops: Sequence[StopRecord]) -> list[StopRecord]:
    """Without those of jobs that have ended, such as of a detached actor. Raises DevkitError where no other is left."""
    over: set[str] = set()
    with suppress(DevkitError):  # a hub of an older devkit does not know
        over = set(hub.call("ends").get("over", ()))
    left_out = [stop for stop in stops if stop.job_id in over]
    if not left_out:
        return list(stops)
    jobs = ", ".join(jobs_of(left_out))
    if len(left_out) == len(stops):
        raise DevkitError(f"nothing is stopped but of a job that has ended: {jobs}", hint="--job JOB means that one")
    line = f"{count(len(left_out), 'stop')} of a job that has ended left out; --job means it: {jobs}"
    console.talk().print(line, style=CAUTION)
    return [stop for stop in stops if stop.job_id not in over]


def jobs_of(stops: Sequence[StopRecord]) -> list[str]:
    return sorted({stop.job_id for stop in stops})


def warn_of_jobs(stops: Sequence[StopRecord]) -> None:
    """Ranks of several jobs stand side by side under the same numbers."""
    jobs = jobs_of(stops)
    if len(jobs) > 1:
        console.talk().print(
            f"these are ranks of {len(jobs)} jobs; choose with --job: {', '.join(jobs)}", style=CAUTION
        )


def check_expression(expression: str) -> None:
    """Raises UsageError for what no rank could evaluate."""
    try:
        compile(expression.strip(), "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        hint = f"{reason}; for statements use devkit attach"
        raise UsageError(f"not an expression: {expression}", hint=hint) from error


def missing(wanted: Sequence[StopRecord], results: Sequence[EvalResult]) -> list[EvalResult]:
    """A result for each stop that the hub didn't answer for: it ended in between."""
    answered = {result["id"] for result in results}
    return [
        {"id": stop.id, "role": stop.role, "rank": stop.rank, "value": "", "error": "no longer stopped"}
        for stop in wanted
        if stop.id not in answered
    ]


def groups_of(results: Sequence[EvalResult]) -> tuple[Group[Outcome], ...]:
    """Equal outcomes, the commonest first. An error is an outcome too."""
    return group((Who.of(one), Outcome(one["value"] or "", one["error"])) for one in results)


def record(results: Sequence[EvalResult]) -> EvalDocument:
    """The document of `--json`."""
    groups = groups_of(results)
    valued = [one for one in groups if one.key.error is None]
    return {
        "results": list(results),
        "groups": [
            {"value": one.key.value, "ranks": one.ranks, "ids": [who.id for who in one.members]} for one in valued
        ],
        "odd": sorted({who.rank for who in odd(groups) if who.rank is not None}),
    }


def record_of(answers: Sequence[tuple[str, Sequence[EvalResult]]]) -> EvalDocument:
    """The document of the first expression, with those of the others in it."""
    (_, first), *others = answers
    document = record(first)
    if others:
        document["further"] = [_further(expression, record(results)) for expression, results in others]
    return document


def _further(expression: str, one: EvalDocument) -> FurtherEval:
    return {"expression": expression, "results": one["results"], "groups": one["groups"], "odd": one["odd"]}


def _headed(expression: str, shown: Text) -> Text:
    from rich.text import Text

    lines = [Text.assemble("  ", line) for line in shown.split("\n")]
    return Text("\n").join([Text(expression, style="bold"), *lines])


def page(results: Sequence[EvalResult]) -> Text:
    """Each value once, with the ranks that have it; those that differ from the rest stand out."""
    from rich.text import Text

    groups = groups_of(results)
    everyone = [Who.of(result) for result in results]
    different = set(odd(groups))
    names = [name_members(one.members, everyone) for one in groups]
    lines = []
    for one, name in zip(groups, names, strict=True):
        failed = one.key.error is not None
        style = "red" if failed else f"bold {CAUTION}" if different.intersection(one.members) else GOOD
        said = f"error: {one.key.error}" if failed else one.key.value
        lines.append(Text.assemble((name, style), *_said(said, max(map(len, names)) - len(name))))
    if different:
        lines.append(Text(differing(different, everyone), style=f"bold {CAUTION}"))
    return Text("\n").join(lines)


def _said(text: str, padding: int) -> tuple[str, ...]:
    """A value of one line beside the name, a longer one below it."""
    if "\n" not in text:
        return (" " * padding, "  ", text)
    return ("\n", "\n".join(f"    {line}" for line in text.splitlines()))
