"""What Ray was asked for and has not given, beside what the nodes have: can it ever be had? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from devkit.hang import circles, words
from devkit.hang.facts import Holder, NodeFacts, Pending, Sample
from devkit.hang.holders import Waits
from devkit.hang.records import Culprit, Verdict

SPREAD = ("STRICT_SPREAD", "3")
PACK = ("STRICT_PACK", "2")
SMALLEST = 1e-9
HOLDERS_SHOWN = 8


def verdict(
    first: Sample,
    now: Sample,
    evidence: tuple[str, ...],
    decided: bool = True,
    asked: Collection[tuple[str, str]] = (),
    idle: Collection[str] = (),
    waits: Callable[[Sequence[Holder]], Waits | None] = lambda _: None,
) -> Verdict | None:
    """The first thing that is pending in both samples; one that can never be had before one that may be.

    `asked`: the name of a call, and who waits for it. `idle`: the ids of actors that have nothing to do. `waits`: what
    the tasks among some holders wait for, as `holders.waits` has it.
    """
    earlier = {each.id for each in first.pending}
    both = [each for each in now.pending if each.id in earlier]
    if not both:
        return None
    never = [(each, why) for each in both if (why := cannot(each, now.nodes))]
    what = Culprit("", None, "", 0, "", 0, "")
    if never:
        each, why = never[0]
        others = f"; {len(both) - 1} more are queued behind it" if len(both) > 1 else ""
        text = (
            f"{title(each)} can never be scheduled on these nodes: it requests {asks(each.bundles)}, and {why}{others}"
        )
        return Verdict("resource", text, what, None, (*notes(now), *evidence))
    if inside := next((each for each in both if each.inside and not _has_room(each)), None):
        return Verdict("resource", _no_room(inside, asked), what, None, (*_in_room(inside), *evidence), decided)
    starved = [each for each in both if not each.inside and not is_free(each, now.nodes)]
    if not starved:
        return _starting(both, first, now, evidence, decided)
    known = ((each, circles.held(each, now)) for each in starved)
    each, circle = next((pair for pair in known if pair[1]), (starved[0], None))
    wanted = f"it requests {asks(each.bundles)}, and {free(now.nodes, add(each.bundles))}"
    if circle:
        text = f"deadlock over resources: {title(each)} waits: {wanted}; {circle.text}"
        lines = tuple(_holds(_lending(holder)) for holder in circle.holders[:HOLDERS_SHOWN])
        return Verdict("deadlock", text, circle.culprit, None, (*lines, *notes(now), *evidence), decided)
    return _in_use(starved, now, evidence, decided, idle, waits)


def _lending(holder: Holder) -> Holder:
    """One that waits for a result: Ray lends the CPUs of a task to others meanwhile."""
    if holder.kind != "task":
        return holder
    return replace(holder, resources={name: value for name, value in holder.resources.items() if name != "CPU"})


def _in_use(
    starved: Sequence[Pending],
    now: Sample,
    evidence: tuple[str, ...],
    decided: bool,
    idle: Collection[str],
    waits: Callable[[Sequence[Holder]], Waits | None],
) -> Verdict:
    """What a holder itself has started comes first: others only stand in the same queue.

    Of tasks that wait, what they wait for is what is to be told, and that others wait behind them comes of it.
    """
    tasks = {holder.task: holder for holder in now.holders if holder.task}
    each = next((each for each in starved if (own := tasks.get(each.parent)) and _wants(each, own)), starved[0])
    text = f"{title(each)} waits for resources that are in use: it requests {asks(each.bundles)}, and "
    text += free(now.nodes, add(each.bundles))
    held = [holder for holder in now.holders if _wants(each, holder)]
    starter = tasks.get(each.parent)
    own = starter if starter in held else None
    others = len(held) - 1
    kinds = _kinds(held, idle, {each.actor_id: each.pid for each in now.processes})
    if own:
        more = f", and {others} more hold{'s' * (others == 1)} some, too" if others else ""
        text += f"; the {own.kind} {own.name}, which has started it, holds {amount(own.resources)}{more}"
    elif held:
        text += f"; {'; '.join(kinds[:HEADED])}{f'; {len(kinds) - HEADED} more kinds' if len(kinds) > HEADED else ''}"
    lines = (*kinds[:HOLDERS_SHOWN], *((LENT,) if own and own.resources.get("CPU") else ()))
    what = Culprit("", None, "", 0, "", 0, "")
    waiting = waits(held) if not own else None
    if waiting is not None and waiting.end is not None:
        text = f"no progress: {waiting.said}; what these tasks hold, others wait for: {text}"
        blamed = words.culprit(waiting.end)
        return Verdict("stuck", text, blamed, None, (*lines, *notes(now), *evidence), decided)
    text += f"; of these tasks, {waiting.said}" if waiting is not None else ""
    return Verdict("resource", text, what, None, (*lines, *notes(now), *evidence), decided)


def _kinds(held: Sequence[Holder], idle: Collection[str], pids: Mapping[str, int]) -> list[str]:
    """Holders that are alike in one part of a sentence, with what those do that have nothing to do."""
    alike: dict[tuple[str, bool], list[Holder]] = {}
    for each in held:
        alike.setdefault((_holds(each), each.place in idle), []).append(each)
    return [_kind(same, rests, pids) for (_, rests), same in alike.items()]


def _kind(same: Sequence[Holder], rests: bool, pids: Mapping[str, int]) -> str:
    one, many = same[0], len(same) > 1
    known = [str(pids[each.place]) for each in same if each.place in pids]
    who = f" (pid{'s' * many} {', '.join(known)})" if rests and len(known) == len(same) <= HOLDERS_SHOWN else ""
    how = "idle " if rests else ""
    if not many:
        return f"the {how}{_holds(one, who).removeprefix('the ')}"
    of = f"{one.job_id}, which has ended, still" if one.ended else one.job_id
    inside = ", in which no actor and no task is," if one.empty else ""
    return f"{len(same)} {how}{one.kind}s {one.name}{who} of job {of}{inside} hold {amount(one.resources)} each"


HEADED = 3  # kinds of holders in a sentence
LENT = "a task lends its CPUs to others while it waits in ray.get or ray.wait, and not while it awaits a result"


def _starting(
    both: Iterable[Pending], first: Sample, now: Sample, evidence: tuple[str, ...], decided: bool
) -> Verdict | None:
    """What nothing keeps from starting, and has no process yet: an actor that has one is in its `__init__`."""
    begun = {each.actor_id for each in now.processes}
    names = ", ".join(sorted({f"{each.kind} {each.name}".strip() for each in both if each.id not in begun}))
    what = Culprit("", None, "", 0, "", 0, "")
    if not names:
        return None
    if not decided:
        text = f"no hang: resources are free, and Ray is starting {names}"
        return Verdict("moves", text, what, None, evidence, decided)
    said = [f"the raylet of {node.ip} wrote: {node.said[-1]}" for node in now.nodes if node.said]
    text = f"no progress: resources are free, and Ray has been starting {names} for {now.time - first.time:.0f} s, "
    text += f"but no process for it comes up; {said[0] if said else _UNSEEN}"
    return Verdict("stuck", text, what, None, (*said, *evidence))


_UNSEEN = (
    "a runtime_env that is being installed takes time, and a scheduling strategy may want a node that is not there"
)


def _has_room(each: Pending) -> bool:
    """Whether its placement group has free what it asks for."""
    free = each.inside.free if each.inside else {}
    return all(_fits(bundle, free) for bundle in each.bundles)


def _in_room(each: Pending) -> Iterator[str]:
    counted = Counter((name, amount(own)) for name, own in (each.inside.held if each.inside else ()))
    for (name, own), number in counted.most_common(HOLDERS_SHOWN):
        who = f"the {name} holds {own}" if number == 1 else f"{number} x {name} hold {own} each"
        yield f"{who} of the placement group"


def _no_room(each: Pending, asked: Collection[tuple[str, str]]) -> str:
    assert each.inside is not None
    room, wanted = each.inside, add(each.bundles)
    free = ", ".join(f"{room.free.get(name, 0.0):g} of {room.total.get(name, 0.0):g} {name}" for name in wanted)
    counted = Counter(name for name, _ in room.held).most_common(HOLDERS_SHOWN)
    names = [f"the {name}" if number == 1 else f"{number} x {name}" for name, number in counted]
    what = "the rest" if any(room.free.get(name, 0.0) for name in wanted) else "all of it"
    who = f"; {' and '.join(names)} hold{'s' if len(room.held) == 1 else ''} {what}" if names else ""
    text = f"{title(each)} waits for room in the placement group {room.group}: it requests {asks(each.bundles)}"
    own = next((name for name, _ in room.held if (each.name, name.removeprefix("actor ")) in asked), "")
    why = f"; the {own} waits for it in that very group, {_CAPTURED}" if own else ""
    return f"{text}, and {free} are free{who}{why}"


_CAPTURED = "where with placement_group_capture_child_tasks its tasks go, too"


def _wants(each: Pending, holder: Holder) -> bool:
    """Whether somebody waits for what it holds."""
    return any(bundle.get(name) for name in holder.resources for bundle in each.bundles)


def _holds(holder: Holder, who: str = "") -> str:
    """
    >>> _holds(Holder("Keeper", "01000000", True, {"GPU": 1.0}))
    'the actor Keeper of job 01000000, which has ended, still holds 1 GPU'
    """
    of = f"{holder.job_id}, which has ended, still" if holder.ended else holder.job_id
    inside = ", in which no actor and no task is," if holder.empty else ""
    return f"the {holder.kind} {holder.name}{who} of job {of}{inside} holds {amount(holder.resources)}"


def notes(now: Sample) -> Iterator[str]:
    """A line for each kind of thing that is pending, and one for what the nodes have."""
    kinds: dict[str, int] = {}
    for each in now.pending:
        why = cannot(each, now.nodes)
        line = f"pending {each.kind}{f' {each.name}' if each.name else ''}: requests {asks(each.bundles)}"
        line += f"; impossible: {why}" if why else ""
        kinds[line] = kinds.get(line, 0) + 1
    yield from (f"{line}{f' ({count} times)' if count > 1 else ''}" for line, count in kinds.items())
    if now.pending:
        yield from (f"node {node.ip} has {amount(node.total)}" for node in now.nodes)


def title(each: Pending) -> str:
    """
    >>> title(Pending("actor", "Worker", "0a", ()))
    'the actor Worker'
    """
    return f"the {each.kind} {each.name or each.id[:12]}"


def cannot(each: Pending, nodes: Iterable[NodeFacts]) -> str:
    """Why this can never be granted by these nodes; empty: it can, when enough is free.

    >>> small = [NodeFacts("a", "10.0.0.1", {"CPU": 8.0}), NodeFacts("b", "10.0.0.2", {"CPU": 8.0})]
    >>> cannot(Pending("task", "f", "t", ({"CPU": 9.0},)), small)
    'no node has more than 8 CPU'
    >>> cannot(Pending("placement group", "", "p", ({"CPU": 5.0}, {"CPU": 5.0}), "STRICT_PACK"), small)
    'all of it has to be on one node, but no node has more than 8 CPU'
    >>> cannot(Pending("placement group", "", "p", ({"CPU": 5.0},) * 2), small)
    ''
    """
    nodes = list(nodes)
    if not nodes:
        return ""
    for bundle in each.bundles:
        if not any(_fits(bundle, node.total) for node in nodes):
            return _too_much(bundle, nodes)
    if each.strategy in SPREAD and len(each.bundles) > len(nodes):
        return f"each of the {len(each.bundles)} bundles needs its own node, but there are {len(nodes)} nodes"
    whole = add(each.bundles)
    if each.strategy in PACK and not any(_fits(whole, node.total) for node in nodes):
        return f"all of it has to be on one node, but {_too_much(whole, nodes)}"
    cluster = add(node.total for node in nodes)
    short = [name for name, wanted in whole.items() if wanted > cluster.get(name, 0) + SMALLEST]
    if short:
        return f"all nodes together have {amount({name: cluster.get(name, 0) for name in short})}"
    return "" if _can_be_placed(each, nodes) else "its bundles do not fit on the nodes together"


def is_free(each: Pending, nodes: Iterable[NodeFacts]) -> bool:
    """Whether it fits into what the nodes have free; true where that is not known.

    >>> half = [NodeFacts(ip, ip, {"CPU": 2.0}, {"CPU": free}) for ip, free in (("a", 2.0), ("b", 2.0), ("c", 0.0))]
    >>> is_free(Pending("placement group", "", "p", ({"CPU": 2.0},) * 2), half)
    True
    >>> is_free(Pending("placement group", "", "p", ({"CPU": 2.0},) * 3), half)
    False
    """
    left = [replace(node, total=node.free) for node in nodes if node.free is not None]
    return not cannot(each, left)


def free(nodes: Iterable[NodeFacts], wanted: Iterable[str] = ()) -> str:
    """What is free of what there is of CPUs, GPUs and what is wanted."""
    nodes = list(nodes)
    whole = add(node.total for node in nodes)
    left = add(node.free for node in nodes if node.free is not None)
    names = [name for name in dict.fromkeys(("CPU", "GPU", *wanted)) if whole.get(name) and name in left]
    names = [name for name in names if not name.startswith(("node:", "object_store", "memory"))]
    told = [f"{left[name]:g} of {whole[name]:g} {name}" for name in names]
    return f"{', '.join(told)} are free" if told else f"the cluster has {has(nodes)}"


def _can_be_placed(each: Pending, nodes: list[NodeFacts]) -> bool:
    """First fit, the largest bundles first: a good guess, never a proof, so only whole cores and devices count."""
    free = [dict(node.total) for node in nodes]
    used: set[int] = set()
    for bundle in sorted(each.bundles, key=lambda one: -sum(one.values())):
        choices = [
            at
            for at, rest in enumerate(free)
            if _fits(bundle, rest) and (each.strategy not in SPREAD or at not in used)
        ]
        if not choices:
            return len(each.bundles) > 1 and len({tuple(sorted(one.items())) for one in each.bundles}) > 1
        at = choices[0]
        used.add(at)
        for name, wanted in bundle.items():
            free[at][name] = free[at].get(name, 0) - wanted
    return True


def _too_much(bundle: Mapping[str, float], nodes: list[NodeFacts]) -> str:
    short = [
        name for name, wanted in bundle.items() if all(node.total.get(name, 0) + SMALLEST < wanted for node in nodes)
    ]
    names = short or list(bundle)
    most = {name: max(node.total.get(name, 0) for node in nodes) for name in names}
    none = [name for name in names if not most[name]]
    if none:
        return f"no node has any {none[0]}"
    return f"no {'single ' if not short else ''}node has {'more than ' if short else ''}{amount(most)}"


def _fits(bundle: Mapping[str, float], total: Mapping[str, float]) -> bool:
    return all(wanted <= total.get(name, 0) + SMALLEST for name, wanted in bundle.items())


def add(bundles: Iterable[Mapping[str, float]]) -> dict[str, float]:
    whole: dict[str, float] = {}
    for bundle in bundles:
        for name, value in bundle.items():
            whole[name] = whole.get(name, 0) + value
    return whole


def has(nodes: Iterable[NodeFacts]) -> str:
    return amount(add(node.total for node in nodes)) or "nothing"


def asks(bundles: Iterable[Mapping[str, float]]) -> str:
    """
    >>> asks([{"CPU": 1.0}, {"CPU": 1.0}, {"GPU": 4.0}])
    '2 x (1 CPU) and (4 GPU)'
    """
    counted: dict[str, int] = {}
    for bundle in bundles:
        text = amount(bundle) or "nothing"
        counted[text] = counted.get(text, 0) + 1
    if list(counted.values()) == [1]:
        return next(iter(counted))
    return " and ".join(f"{f'{count} x ' if count > 1 else ''}({text})" for text, count in counted.items())


def amount(resources: Mapping[str, float]) -> str:
    """Without what Ray counts for itself: memory, and a resource for each node's name."""
    shown = {name: value for name, value in resources.items() if not name.startswith(("node:", "object_store"))}
    return ", ".join(
        f"{value / 2**30:.1f} GiB of memory" if name == "memory" else f"{value:g} {name}"
        for name, value in shown.items()
    )
