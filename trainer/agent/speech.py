"""How a conversation becomes tokens: what stands before the first turn, and what follows upon a sampled one.

Tokens in, tokens out: what was sampled is never decoded and encoded again. Only what the program adds is encoded, as it
stands behind what comes before it: a prefix is encoded with it and cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2

from trainer.errors import ModelError

CHAT, PLAIN = "chat", "plain"
_MARK = "Marked0answer"  # stands for what was sampled, in a conversation that only the template sees
_TOOLS_HINT = "tools need a chat template that takes messages of the role tool behind any answer, as Qwen's does"
_HINT = "agent.speech=plain puts no template around the turns"


def _stands_in(content: str, text: str) -> bool:
    """Some templates write a tool's answer as JSON."""
    return content in text or json.dumps(content)[1:-1] in text or json.dumps(content, ensure_ascii=False)[1:-1] in text


class Speech:
    """Texts of an environment as tokens, and sampled tokens as its actions.

    `chat`: an observation is a user's message, a sampled turn the assistant's; what the tokenizer's template puts
    between them is taken from the template itself. `plain`: one text follows upon the other.
    """

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: Iterable[int],
        style: str | None = None,
        most: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`style` None: chat where the tokenizer has a template. `most`: tokens of an observation, cut on its right.

        With `tools`, their schemas, an action keeps its special tokens: a call may stand between such.

        Raises ModelError for a template of no use.
        """
        self._tools = list(tools)
        self.style = style or (CHAT if tokenizer.chat_template else PLAIN)
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._most = most
        self._head: tuple[str, list[int]] = ("", [])  # what stands before, and its tokens: the same turn after turn
        if self.style == CHAT:
            if not tokenizer.chat_template:
                raise ModelError("agent.speech=chat, and the tokenizer has no chat template", hint=self._hint)
            role = "tool" if tools else "user"
            self._between([{"role": role, "content": "an observation"}])  # what is wrong shows before the first turn

    def begin(self, observation: str, system: str | None = None) -> list[int]:
        """The prompt: the first observation, up to where the model speaks; `system` is said before it."""
        if self.style == PLAIN:
            return self._encoded(observation if system is None else f"{system}\n{observation}")
        said = [] if system is None else [{"role": "system", "content": system}]
        return self._encoded(self._rendered([*said, {"role": "user", "content": observation}]))

    def reply(self, sampled: Sequence[int], observation: str, messages: Sequence[Mapping[str, str]] = ()) -> list[int]:
        """What follows upon a `sampled` turn: its end unless sampled, the observation, the next turn's beginning.

        In a chat the observation is a user's message, unless there are `messages`.
        """
        if self.style == PLAIN:
            return self._behind("\n", observation)[: self._most]
        said = messages or [{"role": "user", "content": observation}]
        before, between = self._between([{**each, "content": self._cut(each["content"])} for each in said])
        ids = self._behind(before, between)
        ended = bool(sampled) and sampled[-1] in self._eos_ids
        return ids[1:] if ended and ids[:1] == [sampled[-1]] else ids

    def action(self, sampled: Sequence[int]) -> str:
        """The text of a sampled turn, without special tokens; with tools, without the one that ends it."""
        if self._tools:
            ended = bool(sampled) and sampled[-1] in self._eos_ids
            return str(self._tokenizer.decode(list(sampled[:-1] if ended else sampled), skip_special_tokens=False))
        return str(self._tokenizer.decode(list(sampled), skip_special_tokens=True))

    def _cut(self, observation: str) -> str:
        """Within a template, where ids cannot be cut: what its first tokens say."""
        if self._most is None:
            return observation
        ids = self._encoded(observation)
        return observation if len(ids) <= self._most else str(self._tokenizer.decode(ids[: self._most]))

    def _between(self, said: Sequence[Mapping[str, str]]) -> tuple[str, str]:
        """A conversation with a marked answer: its text up to that answer's end, and from there to the next turn."""
        messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, *map(dict, said)]
        before, mark, between = self._rendered(messages).partition(_MARK)
        if not mark or not all(_stands_in(each["content"].strip(), between) for each in said):
            raise ModelError(
                "the tokenizer's chat template leaves out an earlier turn, or changes what is in a message",
                hint=self._hint,
            )
        return before + mark, between

    @property
    def _hint(self) -> str:
        return _TOOLS_HINT if self._tools else _HINT

    def _rendered(self, messages: list[dict[str, str]]) -> str:
        with_tools = {"tools": self._tools} if self._tools else {}
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **with_tools)
            )
        except jinja2.TemplateError as error:
            said = " ".join(str(error).split())
            raise ModelError(
                f"the tokenizer's chat template refuses a conversation: {said}", hint=self._hint
            ) from error

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"])

    def _behind(self, before: str, text: str) -> list[int]:
        """The tokens of `text` where it stands behind `before`; alone where the two grow together."""
        if self._head[0] != before:
            self._head = before, self._encoded(before)
        head, whole = self._head[1], self._encoded(before + text)
        return whole[len(head) :] if whole[: len(head)] == head else self._encoded(text)
