"""How one published record becomes one row: prompt, ground truth, names. One recipe per data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import pyarrow as pa

from trainer.rewards.math import last_boxed

_HALF = re.compile("[\ud800-\udfff]")
_GSM8K_NUMBER = re.compile(r"#### *(-?[0-9][0-9.,]*)")


# Word for word (`scripts/data_process/nq_search.py` of PeterGriffinJin/Search-R1): models were trained with it.
SEARCH_INSTRUCTION = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
)


class BadRecordError(Exception):
    """A record without what its recipe needs; `prepare` adds the file and line."""


@dataclass(frozen=True)
class Recipe:
    data_source: str  # chooses the reward function
    hub_id: str
    hub_config: str | None
    ability: str
    question_key: str
    instruction: str  # around the question, at {question}
    truth: Callable[[Mapping[str, Any]], tuple[Any, Any]]  # ground truth and published answer
    truth_type: pa.DataType
    answer_type: pa.DataType
    hint: str
    is_question: bool = False  # with texts as answers: it can be searched for

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            {
                "data_source": pa.string(),
                "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
                "ability": pa.string(),
                "reward_model": pa.struct({"style": pa.string(), "ground_truth": self.truth_type}),
                "extra_info": pa.struct(
                    {"split": pa.string(), "index": pa.int64(), "question": pa.string(), "answer": self.answer_type}
                ),
            }
        )

    def for_search(self) -> Recipe:
        """The same questions, asked as Search-R1 asks them, of a model that may search."""
        return replace(self, instruction=SEARCH_INSTRUCTION)

    def row(self, record: Mapping[str, Any], split: str, index: int) -> dict[str, Any]:
        """Raises BadRecordError if the record lacks something."""
        question = _text(record, self.question_key)
        asked = question.strip()
        asked += "?" if self.instruction == SEARCH_INSTRUCTION and not asked.endswith("?") else ""
        ground_truth, answer = self.truth(record)
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": self.instruction.format(question=asked)}],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": ground_truth},
            "extra_info": {"split": split, "index": index, "question": question, "answer": answer},
        }


def _is_text(value: object) -> TypeGuard[str]:
    """Half of a pair of surrogates, which JSON may hold, is none that a file can have."""
    return isinstance(value, str) and not _HALF.search(value)


def _text(record: Mapping[str, Any], key: str) -> str:
    value: object = record.get(key)
    if not _is_text(value) or not value.strip():
        raise BadRecordError(f"no text under {key!r} (keys: {', '.join(map(str, record)) or 'none'})")
    return value


def _gsm8k_truth(record: Mapping[str, Any]) -> tuple[str, str]:
    answer = _text(record, "answer")
    found = _GSM8K_NUMBER.findall(answer)
    if not found:
        raise BadRecordError("the answer has no number after ####")
    return found[-1].replace(",", ""), answer


def _math_truth(record: Mapping[str, Any]) -> tuple[str, str]:
    solution = _text(record, "solution")
    boxed = last_boxed(solution)
    if boxed is None:
        raise BadRecordError("the solution has no complete \\boxed{}")
    return boxed, solution


def _nq_truth(record: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    answers = record.get("answer", record.get("golden_answers"))
    if not isinstance(answers, list) or not answers or not all(map(_is_text, answers)):
        raise BadRecordError("no list of texts under 'answer'")
    return {"target": answers}, answers


def _hotpotqa_truth(record: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """The data set itself has one answer, FlashRAG's copy of it a list."""
    answer = record.get("answer")
    return _nq_truth({"answer": [answer]} if isinstance(answer, str) else record)


_ANSWER_INSTRUCTION = (
    "Answer the question. Reason first; then give the answer alone, in as few words as possible, "
    "between <answer> and </answer>. Question: {question}"
)
RECIPES = {
    "gsm8k": Recipe(
        data_source="openai/gsm8k",
        hub_id="openai/gsm8k",
        hub_config="main",
        ability="math",
        question_key="question",
        instruction='{question} Reason step by step and finish with a line that holds "#### " and the final number.',
        truth=_gsm8k_truth,
        truth_type=pa.string(),
        answer_type=pa.string(),
        hint="a GSM8K record has a question, and an answer that ends with #### and a number",
    ),
    "math": Recipe(
        data_source="DigitalLearningGmbH/MATH-lighteval",
        hub_id="DigitalLearningGmbH/MATH-lighteval",
        hub_config=None,
        ability="math",
        question_key="problem",
        instruction="{question} Reason step by step and put the final answer into \\boxed{{}}.",
        truth=_math_truth,
        truth_type=pa.string(),
        answer_type=pa.string(),
        hint="a MATH record has a problem, and a solution with its answer in \\boxed{}",
    ),
    "nq": Recipe(
        data_source="nq",
        hub_id="google-research-datasets/nq_open",
        hub_config=None,
        ability="fact-reasoning",
        question_key="question",
        instruction=_ANSWER_INSTRUCTION,
        truth=_nq_truth,
        truth_type=pa.struct({"target": pa.list_(pa.string())}),
        answer_type=pa.list_(pa.string()),
        hint="an NQ-open record has a question, and a list of accepted texts as answer",
        is_question=True,
    ),
    "hotpotqa": Recipe(
        data_source="hotpotqa",
        hub_id="RUC-NLPIR/FlashRAG_datasets",
        hub_config="hotpotqa",
        ability="fact-reasoning",
        question_key="question",
        instruction=_ANSWER_INSTRUCTION,
        truth=_hotpotqa_truth,
        truth_type=pa.struct({"target": pa.list_(pa.string())}),
        answer_type=pa.list_(pa.string()),
        hint="a HotpotQA record has a question, and golden_answers, or an answer",
        is_question=True,
    ),
}
