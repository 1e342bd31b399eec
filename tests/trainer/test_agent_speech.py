"""What stands around the turns: taken from the chat template, with nothing that was sampled written twice or lost."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trainer.agent.speech import CHAT, PLAIN, Speech
from trainer.errors import ModelError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Llama 2's kind: no role tokens of its own, an end only behind answers.
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
DROPS_EARLIER = "{{ messages[-1].content }}"
REFUSES = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}{{ messages[0].content }}"


def tokenizer_with(template: str | None, eos: str) -> Any:
    """Bytes, with these templates' special tokens."""
    inner = Tokenizer(models.BPE({char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token) for token in ("<|im_start|>", "<|im_end|>", "</s>", "<|endoftext|>")])
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, eos_token=eos)


def sampled(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_conversation_reads_as_the_template_writes_it() -> None:
    """Turn by turn in tokens, and the same text as the template makes of the whole conversation at once."""
    for template, eos in ((CHATML, "<|im_end|>"), (BRACKETS, "</s>")):
        tokenizer = tokenizer_with(template, eos)
        speech = Speech(tokenizer, [tokenizer.eos_token_id])
        assert speech.style == CHAT
        talk = ["You see a lake.", "Left", "It is cold\n\nvery", "Right", "Thin ice"]
        ids = speech.begin(talk[0])
        for answer, observation in zip(talk[1::2], talk[2::2], strict=True):
            turn = sampled(tokenizer, answer + eos)
            assert speech.action(turn) == answer
            ids += turn + speech.reply(turn, observation)
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(talk)]
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(ids) == whole
        assert ids == sampled(tokenizer, whole)  # bytes grow together with nothing: no drift at all


def test_a_system_message_stands_before_the_first_turn() -> None:
    tokenizer = tokenizer_with(CHATML, "<|im_end|>")
    ids = Speech(tokenizer, [tokenizer.eos_token_id]).begin("A lake.", "Play well.")
    said = "<|im_start|>system\nPlay well.<|im_end|>\n<|im_start|>user\nA lake.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == said
    plain = Speech(tokenizer, [tokenizer.eos_token_id], PLAIN)
    assert tokenizer.decode(plain.begin("A lake.", "Play well.")) == "Play well.\nA lake."


def test_the_end_of_a_turn_stands_there_once() -> None:
    tokenizer = tokenizer_with(CHATML, "<|im_end|>")
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    speech = Speech(tokenizer, [tokenizer.eos_token_id, other])
    after = "<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    # sampled: not again, and the line break behind it is there
    assert tokenizer.decode(speech.reply(sampled(tokenizer, "Left<|im_end|>"), "Well?")) == after.removeprefix(
        "<|im_end|>"
    )
    # cut off by the length, or ended by another token: the template's end follows, and is not trained
    for turn in ("Left", "Left<|endoftext|>"):
        assert tokenizer.decode(speech.reply(sampled(tokenizer, turn), "Well?")) == after


def test_plain_text_follows_upon_text() -> None:
    tokenizer = tokenizer_with(None, "<|endoftext|>")
    speech = Speech(tokenizer, [tokenizer.eos_token_id])
    assert speech.style == PLAIN
    turn = sampled(tokenizer, "Left<|endoftext|>")
    assert tokenizer.decode(speech.begin("A lake.") + turn + speech.reply(turn, "\nIce.")) == (
        "A lake.Left<|endoftext|>\nIce."
    )
    chat = Speech(tokenizer_with(CHATML, "<|im_end|>"), [0], PLAIN)
    assert chat.style == PLAIN and chat.begin("A lake.") == speech.begin("A lake.")


@pytest.mark.parametrize(
    ("template", "style", "said"),
    [
        (DROPS_EARLIER, None, "leaves out an earlier turn"),
        (REFUSES, None, "refuses a conversation: one turn only"),
        (None, CHAT, "the tokenizer has no chat template"),
    ],
)
def test_a_template_of_no_use_is_refused_before_the_first_turn(
    template: str | None, style: str | None, said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        Speech(tokenizer_with(template, "<|im_end|>"), [0], style)
    assert "agent.speech=plain" in caught.value.hint


def test_a_template_that_thinks_in_the_last_answer_alone() -> None:
    """As Qwen3's: what it puts into earlier answers stands before the mark, and is none of what follows."""
    template = CHATML.replace(
        "{{ m.content }}", "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
    )
    tokenizer = tokenizer_with(template, "<|im_end|>")
    speech = Speech(tokenizer, [tokenizer.eos_token_id])
    turn = sampled(tokenizer, "Left<|im_end|>")
    assert "think" not in tokenizer.decode(speech.reply(turn, "Well?"))
