"""Rules about the retriever of a command that searches, as each node reaches it."""

from __future__ import annotations

from collections.abc import Iterator

from devkit.doctor.onnode.facts import RetrieverFacts
from devkit.doctor.plan import Demand
from devkit.doctor.records import Finding
from devkit.doctor.scene import Scene, told
from trainer.config.retrievers import is_loopback


def check(scene: Scene) -> Iterator[Finding]:
    for url in dict.fromkeys(demand.retriever for demand in scene.demands if demand.retriever):
        demand = next(each for each in scene.demands if each.retriever == url)
        seen = {name: each for name, facts in scene.seen for each in facts.retrievers if each.url == url}
        for name, each in seen.items():
            if each.problem:
                yield _unusable(demand, name, each)
        yield from _different(demand, {name: each for name, each in seen.items() if not each.problem})


def _unusable(demand: Demand, name: str, seen: RetrieverFacts) -> Finding:
    is_ours = "verl" not in demand.command
    if is_loopback(seen.url):
        fix = "start one on that node, too (python -m trainer.retrieval --corpus FILE)"
        fix += ", or give retriever.serve=CORPUS.jsonl, which starts them" if is_ours else ", or one URL for all"
    else:
        fix = "start it, and let it listen at an address that the nodes reach"
    why = "the run stops before its first step" if is_ours else "the first search from there fails, or never ends"
    what = f"the retriever at {seen.url} can't be used from {name}: {seen.problem}"
    return Finding("retriever", (name,), what, why, fix, (f"{demand.place}: retriever.url={seen.url}",))


def _different(demand: Demand, seen: dict[str, RetrieverFacts]) -> Iterator[Finding]:
    """Servers that say what they hold are compared by that, the others by what they find."""
    says = all(each.digest for each in seen.values())
    values: dict[str, tuple[str, ...]] = {}
    for name, each in seen.items():
        by = f", encoder {each.encoder}" if each.encoder else ""
        value = f"digest {each.digest}, {each.passages:,} passages{by}" if says else f"found {each.found}"
        values[value] = (*values.get(value, ()), name)
    if len(values) > 1:
        is_one_corpus = says and len({each.digest for each in seen.values()}) == 1
        what = f"the retrievers at {demand.retriever} {'hold' if says else 'find'} different passages"
        if is_one_corpus:
            what = f"the retrievers at {demand.retriever} find passages by different encoders"
        why = "what the model is given depends on the node where it searches"
        fix = "give all nodes the same corpus file and index, and the same encoder"
        yield Finding("retriever", tuple(seen), what, why, fix, (told(values),), None if says else "warning")
