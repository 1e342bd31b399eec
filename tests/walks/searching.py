"""What a user of Search-R1 brings, small: a model that searches, questions in NQ-open's form, passages about them."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.demo import tiny
from trainer.demo.search import LINE_BREAK, make_tokenizer

POSITIONS = 8192
QUERY, ANSWER = "Faust", "Goethe"  # a token each
TEMPLATE = "{% for message in messages %}{{ message['role'] + '\n' + message['content'] + '\n' }}{% endfor %}"
# What follows upon a token, whatever stands before it. Behind a line break, half of the time each: the prompt ends
# with one, and so does what the retriever says.
FOLLOWS = (
    (LINE_BREAK, "<search>"),
    (LINE_BREAK, "<answer>"),
    ("<search>", QUERY),
    (QUERY, "</search>"),
    ("<answer>", ANSWER),
    (ANSWER, "</answer>"),
)
QUESTIONS = (
    ("who wrote the tragedy Faust", ["Goethe", "Johann Wolfgang von Goethe"]),
    ("who is the author of west-eastern divan", ["Goethe"]),
    ("when was the last time anyone was on the moon", ["14 December 1972 UTC", "December 1972"]),
    ("how many wheels has a unicycle", ["one"]),
)
PASSAGES = (
    '"Faust"\nFaust is a tragedy by Goethe.',
    '"Urfaust"\nUrfaust is an early form of the work.',
    '"Unicycle"\nA unicycle has one wheel.',
)
OTHERS = ('"Faust"\nFaust was a magician.', '"Mephisto"\nMephisto is a devil.')


def write(folder: Path) -> None:
    """Model, questions for training and for validation, the passages, and other ones."""
    write_model(folder / "model")
    lines = [json.dumps({"question": asked, "answer": answers}) + "\n" for asked, answers in QUESTIONS]
    (folder / "NQ-open.train.jsonl").write_text("".join(lines * 6))
    (folder / "NQ-open.dev.jsonl").write_text("".join(lines))
    for name, passages in (("corpus", PASSAGES), ("other", OTHERS)):
        rows = [json.dumps({"id": str(number), "contents": text}) + "\n" for number, text in enumerate(passages)]
        (folder / f"{name}.jsonl").write_text("".join(rows))


def write_model(folder: Path) -> None:
    """Its layers add nothing to a token's embedding, of which the last one makes the next token."""
    import torch
    from tokenizers import AddedToken

    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (QUERY, ANSWER)])
    tokenizer.chat_template = TEMPLATE
    model = tiny.new_model(tokenizer, 1, POSITIONS)
    number = tokenizer.convert_tokens_to_ids
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding.normal_(generator=torch.Generator().manual_seed(1))
        head.zero_()
        for before, after in FOLLOWS:
            head[number(after)] += embedding[number(before)] / 2
    tiny.save(model, tokenizer, folder)
