"""Responses that nobody generated, to see what a reward function makes of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from devkit.smoke.row_reader import FileRow

# What answers usually stand in; all of them at once first, for a function that is too slow to be asked about each.
ALL = "So it is {x}.\n<answer>{x}</answer>\nThe answer is \\boxed{{{x}}}.\n#### {x}"
FORMS = (
    ALL,
    "{x}",
    "#### {x}",
    "\\boxed{{{x}}}",
    "<answer>{x}</answer>",
    "The answer is {x}.",
    "Answer: {x}",
    "<think>Let me see.</think>\n<answer>{x}</answer>",
    "<think>Let me see.</think>\nIt is \\boxed{{{x}}}",
    '{{"answer": "{x}"}}',
    "```python\n{x}\n```",
)
# What models say before an answer, each in place of the plain words.
PLAIN = "Let me see."
WORDS = {
    "other words": "Because a bad bicycle came by, I had to add.",
    "several lines": "Let me see.\n\nIt adds up.\nSo, at last:",
    "numbers": "First I take 7, and then 13.",
    "many words": "It goes on and on. " * 25,
}
MANY_TOKENS = 256  # a full run with longer responses means them to be that long
NONSENSE = ("", "qwerty uiop", "I do not know.")
LONGEST = 100_000  # characters

# What an untrained model says sooner or later; a function that raises on it ends the run.
ODD = {
    "an empty response": "",
    "whitespace only": " \n\t ",
    "non-ASCII text": "答案是四十二 \u00bd \u0663 🙂 Zw\u00f6lf",
    "a number in non-ASCII digits": "#### \u00b2 \\boxed{\u00bd} <answer>\u0663</answer>",
    "dots instead of a number": "#### ... \\boxed{...} <answer>...</answer>",
    "an infinite number": "#### 1e999 \\boxed{1e999} <answer>1e999</answer>",
    "empty markers": "####  \\boxed{} <answer></answer> ```python\n```",
    "markers that never close": "<think> ```python\n \\boxed{ #### {{[(",
    "closing markers before opening ones": "} </answer> </think> ``` <answer>",
}


@dataclass(frozen=True)
class Said:
    """One made-up response to row `index`; `form` is empty where the ground truth is not in it."""

    index: int
    text: str
    form: str = ""


@dataclass(frozen=True)
class Around:
    """A right answer to row `index` in a form, with other words before it; or, as `kind` says, a wrong one."""

    index: int
    form: str
    kind: str  # a name of `WORDS`, PLAIN, BEHIND, or a kind of wrong answer
    text: str


INSIDE = "a longer number"  # with the right one in it
BEHIND = "words behind it"
PASSED = "the right number, and then another answer"
BEYOND = ("a number 7 % above", "a number 7 % below")  # farther away than the 5 % that some benchmarks allow
NEXT = ("the next number", "the number before it")
SIGN = "the same number without its minus sign"
WHOLE = "a whole number without its .0"  # the right answer, as people write it
FAR = 25  # of smaller numbers, the next ones are 4 % away already


def around(index: int, form: str, truth: str, longest: int) -> list[Around]:
    """`longest`: tokens of a response in the full run.

    >>> [each.text for each in around(0, "#### {x}", "7", 8) if each.kind in (PLAIN, INSIDE)]
    ['Let me see. #### 7', '#### 17', '#### 73']
    """
    numeric = truth.isascii() and truth.isdigit()
    kinds = {PLAIN: PLAIN, **WORDS}
    if not numeric:
        del kinds["numbers"]
    if longest < MANY_TOKENS:
        del kinds["many words"]
    if truth in ("7", "13"):
        kinds = {kind: words.replace("7", "8").replace("13", "14") for kind, words in kinds.items()}
    before = {kind: form.replace(PLAIN, words) if PLAIN in form else f"{words} {form}" for kind, words in kinds.items()}
    found = [Around(index, form, kind, text.format(x=truth)) for kind, text in before.items()]
    found.append(Around(index, form, BEHIND, f"{form.format(x=truth)} That is all."))
    if number_in(truth) is not None:
        found.append(Around(index, form, PASSED, _passed(form, truth)))
    wrong = (f"1{truth}", f"{truth}3") if numeric else ()
    return found + [Around(index, form, INSIDE, form.format(x=each)) for each in wrong]


def _passed(form: str, truth: str) -> str:
    """The right number stands among the words, and another one in the form."""
    number = number_in(truth) or Decimal(0)
    other = next(text for i in range(11, 1000) if truth not in (text := str(number + number // 2 + i)))
    words = f"It may be {truth}, or {other}."
    return (form.replace(PLAIN, words) if PLAIN in form else f"{words}\n{form}").format(x=other)


def near(index: int, form: str, truth: str) -> list[Around]:
    """Wrong numbers near the right one, in a form; and the right one, if it is whole and not written so.

    >>> [each.text for each in near(0, "#### {x}", "72")], [each.text for each in near(0, "{x}", "-5")]
    (['#### 73', '#### 71', '#### 77', '#### 67'], ['-6', '-4', '5'])
    """
    number = number_in(truth)
    if not number:
        return []
    sign, size, found = (-1 if number < 0 else 1), abs(number), dict(zip(NEXT, (number + 1, number - 1), strict=True))
    if sign < 0:
        found = dict(zip(NEXT, (number - 1, number + 1), strict=True))
    if size >= FAR:
        by = round(size * 75 / 1000)
        found |= dict(zip(BEYOND, (sign * (size + by), sign * (size - by)), strict=True))
    if sign < 0:
        found[SIGN] = size
    if number == number.to_integral() and "." in truth:
        found[WHOLE] = number.to_integral()
    return [Around(index, form, kind, form.format(x=each)) for kind, each in found.items()]


def number_in(truth: str) -> Decimal | None:
    """A ground truth that is a number.

    >>> number_in("-2.5"), number_in("1/2"), number_in("A")
    (Decimal('-2.5'), None, None)
    """
    return Decimal(truth) if re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", truth) else None


def truth_text(truth: Any) -> str | None:
    """A ground truth as one would say it; None for one that nobody would.

    >>> truth_text({"target": ["Paris", "City of Light"]}), truth_text(4.0), truth_text({"tests": []})
    ('Paris', '4.0', None)
    """
    if isinstance(truth, Mapping):
        truth = list(truth.values())
    if isinstance(truth, (list, tuple)):
        found = (truth_text(each) for each in truth)
        return next((text for text in found if text), None)
    return str(truth).strip() or None if isinstance(truth, (str, int, float)) else None


def tags_in(text: str) -> list[str]:
    """Names of the tags that `text` speaks of, such as those of a system prompt or of a reward function.

    >>> tags_in("Think in <work></work>, then answer: <SOLUTION>...</SOLUTION>")
    ['work', 'SOLUTION']
    """
    return list(dict.fromkeys(re.findall(r"</(\w+)>", text)))


def to_row(index: int, row: FileRow, source: str) -> list[Said]:
    """The ground truth's own text in each form, nonsense, and what the row says of itself.

    `source`: the reward function's text; tags that are named in it or in the prompt are forms, too.
    """
    truth = truth_text(row.ground_truth)
    nonsense = [Said(index, text) for text in NONSENSE]
    if truth is None:
        return nonsense + published(index, row)
    tags = tags_in(f"{row.prompt}".replace("\\n", "\n")) + tags_in(source)
    forms = [*FORMS, *(f"<{tag}>{{x}}</{tag}>" for tag in tags), "\n".join(f"<{tag}>{{x}}</{tag}>" for tag in tags)]
    said = [Said(index, form.format(x=truth), form) for form in dict.fromkeys(forms) if form]
    return [said[0], *nonsense, *said[1:], *published(index, row)]


def published(index: int, row: FileRow) -> list[Said]:
    """Texts beside the row, such as its solution."""
    texts = {name: text for name, text in row.extra_info.items() if isinstance(text, str) and len(text) < LONGEST}
    wanted = ("answer", "solution", "response", "completion", "output", "target")
    return [Said(index, text, f"extra_info.{name}") for name, text in texts.items() if name in wanted and text.strip()]


def odd(tokens: int) -> dict[str, str]:
    """`tokens`: the longest response of the full run."""
    return {**ODD, "the longest response": ("word " * tokens)[:LONGEST]}


def shown(text: str) -> str:
    """
    >>> shown("a" * 60)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'"
    """
    return repr(text if len(text) <= 40 else text[:37] + "...")


def named(form: str) -> str:
    """A form as people know it."""
    if form.startswith("extra_info."):
        return f"its {form}"
    return "all usual forms at once" if form == ALL else f"`{form.format(x='x')}`".replace("\n", " ")


def distinct(indices: Sequence[int], truths: Sequence[Any]) -> dict[int, int]:
    """For each row another one of a different ground truth, where there is one."""
    pairs = {}
    for i, index in enumerate(indices):
        for step in range(1, len(indices)):
            j = (i + step) % len(indices)
            if truths[j] != truths[i]:
                pairs[index] = indices[j]
                break
    return pairs
