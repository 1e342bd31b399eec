"""Mistakes in conversations that `devkit smoke --agent` must name: `mutants.py` has those of other runs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LAKE = ("--agent", "lake")

MUTANTS = (
    Mutant(
        "agents-learn-what-they-read",
        "trainer/agent/laying.py",
        old="mask += [1] * count + [0] * more",
        new="mask += [1] * (count + more)",
        caught_by="mask-proof",
        says="with other observations, of which nobody read any",
        also=("turns", "rollout-logprobs"),
        words=LAKE,
    ),
    Mutant(
        "rewards-of-turns-a-column-late",
        "trainer/agent/laying.py",
        old="placed_BT[row, end - 1] += turn.reward",
        new="placed_BT[row, min(end, width - 1)] += turn.reward",
        caught_by="turn-rewards",
        says="has the reward",
        words=LAKE,
    ),
    Mutant(
        "no-glue-between-turns",
        "trainer/agent/speech.py",
        old="ids = self._behind(before, between)",
        new="ids = self._behind(before, observation)",
        caught_by="glue",
        says="stands where",
        words=LAKE,
    ),
    Mutant(
        "last-turns-cut-off",
        "trainer/agent/loop.py",
        old="nothing if fails else lay(each.said)",
        new="nothing if fails else lay(each.said[: -1 if each.sample == 1 and len(each.said) > 1 else None])",
        caught_by="turns",
        says="turns end at",
        also=("glue",),
        words=LAKE,
    ),
)
