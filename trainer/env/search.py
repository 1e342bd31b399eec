"""A conversation with a retriever, as Search-R1 leads it: queries and an answer in tags, what is found between others.

    model        <think> ... </think> <search> who wrote Faust </search>
    environment  <information>Doc 1(Title: "Faust") A tragedy by Goethe ... </information>
    model        <think> ... </think> <answer> Goethe </answer>

`search_r1/llm_agent/generation.py` of PeterGriffinJin/Search-R1: `execute_predictions`, `_passages2string`. What it
says to a model stands here word for word, for models that were trained with it. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trainer.retrieval.api import Passage
from trainer.retrieval.node import here

STOP = ("</search>", "</answer>")  # a turn ends with one of these
INVALID = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
# Counts of a trajectory, as `info` reports them; `agent/search_metrics.py` gives them Search-R1's names.
VALID, SEARCHES, FINISHED = "search/valid_actions", "search/searches", "search/finished"


class Search:
    """The question is the row's prompt; an `<answer>` ends the episode, and a reward function scores it.

    The retriever is that of the node (`retrieval.here`). The last of `turns` searches no more, since nothing would be
    read of it; None: each searches.

    >>> search = Search(turns=1)
    >>> search.reset(seed=0)
    ('', {})
    >>> search.step("<think>It is known.</think><answer>Goethe</answer>")[2]
    True
    """

    def __init__(self, turns: int | None = None) -> None:
        self._turns = turns
        self._done = self._valid = self._searches = 0
        self._finished = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Nothing is drawn: what is asked stands in the prompt."""
        self._done = self._valid = self._searches = 0
        self._finished = False
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """What is found, or what to do better; nothing behind an answer. The reward is 0.

        Raises RetrieverError, where the original ends with an error of its JSON parser or waits without end.
        """
        self._done += 1
        kind, content = action_in(action)
        self._valid += kind is not None
        self._searches += kind == "search"
        self._finished = kind == "answer"
        text = "" if self._finished else INVALID
        if kind == "search":
            text = self._found(content) if self._done != self._turns else information("")
        return text, 0.0, self._finished, False, {"metrics": self._counts()}

    def close(self) -> None: ...

    def _found(self, query: str) -> str:
        (passages,) = here().search([query])
        return information(shown(passages))

    def _counts(self) -> dict[str, float]:
        return {VALID: float(self._valid), SEARCHES: float(self._searches), FINISHED: float(self._finished)}


def action_in(text: str) -> tuple[str | None, str]:
    """The first whole tag and what is in it, `search` or `answer`; None where there is none.

    >>> action_in("<think>hm</think> <search> Faust </search>"), action_in("<search>Faust</answer>")
    (('search', 'Faust'), (None, ''))
    """
    found = _ACTION.search(text)
    return (found[1], found[2].strip()) if found else (None, "")


def shown(passages: Iterable[Passage]) -> str:
    """
    >>> shown([Passage("7", '"Faust"', "A tragedy."), Passage("9", '"Goethe"', "A poet.")])
    'Doc 1(Title: "Faust") A tragedy.\\nDoc 2(Title: "Goethe") A poet.\\n'
    """
    return "".join(f"Doc {i}(Title: {each.title}) {each.text}\n" for i, each in enumerate(passages, start=1))


def information(results: str) -> str:
    """
    >>> information("Doc 1(Title: x) y\\n")
    '\\n\\n<information>Doc 1(Title: x) y</information>\\n\\n'
    """
    return f"\n\n<information>{results.strip()}</information>\n\n"
