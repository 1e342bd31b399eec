"""Search-R1's conversation: its texts, its masks and lengths, and where a turn ends."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import stretched
from tests.trainer.conversations import END, SAMPLING, Characters, Say, prompts_of
from tests.trainer.search_stub import Stub, retriever
from tests.trainer.test_agent_loop import texts
from trainer.agent.homes import Houses
from trainer.agent.laying import left_padded
from trainer.agent.loop import Conversations, Limits
from trainer.agent.search_metrics import search_metrics
from trainer.agent.source import SEARCH, Source
from trainer.agent.speech import PLAIN, Speech
from trainer.env.search import INVALID, STOP, Search
from trainer.errors import RetrieverError
from trainer.interfaces import Sampling
from trainer.records import Prompts, Rollout, Row
from trainer.retrieval import Retriever, node
from trainer.rollout.answers import assemble
from trainer.rollout.server import Answer
from trainer.rollout.stops import Stops

LIMITS = Limits(
    turns=3,
    turn_tokens=60,
    prompt_tokens=40,
    response_tokens=400,
    turn_s=20.0,
    trajectory_s=60.0,
    at_once=64,
    stop=STOP,
)
ROUND = "<search>a</search>"
FOUND = "\n\n<information>Doc 1(Title: a) of a</information>\n\n"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with retriever(lambda query: [f"{query}\nof {query}"]) as made:
        yield made


class Stopping:
    """An engine that says what `say` tells it, and ends at the texts of `Sampling.stop`."""

    def __init__(self, say: Say) -> None:
        self.say, self.tokenizer = say, Characters()
        self.contexts: list[str] = []

    def generate(self, prompts: Prompts, sampling: Sampling) -> Rollout:
        assert prompts.turn_B is not None and prompts.room_B is not None
        answers = []
        rows = list(zip(*(x.tolist() for x in (prompts.uid_B, prompts.sample_B, prompts.turn_B)), strict=True))
        for i, row in enumerate(rows):
            context = self.tokenizer.decode(prompts.ids_BP[i][prompts.mask_BP[i].bool()].tolist())
            self.contexts.append(context)
            ids = self.tokenizer(self.say(context, *row) + "|")["input_ids"]
            stops, kept = Stops(sampling.stop, self.tokenizer.decode, 1), []
            for token in ids[: min(sampling.max_new_tokens, int(prompts.room_B[i]))]:
                kept.append(token)
                if stops.after(torch.tensor([token]), torch.tensor([True])).item():
                    break
            answers.append(Answer(i, kept, [-0.5] * len(kept)))
        return assemble(prompts, answers, 0)


def asked(*texts: str) -> Prompts:
    """Rows of a data file, with prompts of their own."""
    encoded = [Characters()(text)["input_ids"] for text in texts]
    ids_BP, mask_BP = left_padded(encoded, 0)
    rows = tuple(Row(i, "train.parquet", "nq", {"target": ["b"]}) for i in range(len(texts)))
    return replace(prompts_of([[]] * len(texts)), ids_BP=ids_BP, mask_BP=mask_BP, rows=rows)


def played(
    prompts: Prompts,
    say: Say,
    stub: Stub,
    limits: Limits = LIMITS,
    most: int | None = None,
    timeout: float = 5.0,
    retries: int = 3,
) -> tuple[Rollout, Stopping]:
    engine = Stopping(say)
    source = Source(SEARCH, None, {"turns": limits.turns})
    speech = Speech(Characters(), [END], PLAIN, most)
    home = Houses(source, isolate=True).home
    made = Conversations(
        prompts,
        SAMPLING,
        engine=engine,  # type: ignore[arg-type]
        speech=speech,
        limits=limits,
        home=home,
        pad_id=0,
    )
    with node.given(Retriever(stub.url, topk=1, timeout=timeout, retries=retries)):
        return made.play(), engine


def script(*turns: str) -> Say:
    return lambda context, uid, sample, turn: turns[turn]


# -- a conversation


def test_a_conversation_is_one_text_with_what_was_found_masked(stub: Stub) -> None:
    rollout, engine = played(
        asked("who?"), script("<think>t</think><search> a </search>no", "<answer>b</answer>"), stub
    )
    assert texts(rollout) == [f"[<think>t</think><search> a </search>]{FOUND}[<answer>b</answer>]"]
    assert stub.queries == ["a"]
    # the second turn reads all of the first, from the data file's own prompt on
    assert engine.contexts == ["who?", f"who?<think>t</think><search> a </search>{FOUND}"]
    (episode,) = rollout.episodes or ()
    assert episode.ended == "terminated" and episode.reward == 0.0
    mask, present = rollout.mask_BT[0], rollout.context_BT[0]
    assert present.all() and int((present - mask).sum()) == len(FOUND)
    assert (rollout.logp_BT[0][mask == 0] == 0).all() and (rollout.logp_BT[0][mask == 1] == -0.5).all()


def test_what_is_no_action_is_answered_in_the_originals_words(stub: Stub) -> None:
    rollout, _ = played(asked("who?"), script("<search>a</answer>", "<answer>b</answer>"), stub)
    assert texts(rollout) == [f"[<search>a</answer>]{INVALID}[<answer>b</answer>]"]
    assert INVALID.startswith("\nMy previous action is invalid. If I want to search") and INVALID.endswith("again.\n")
    # an end that was sampled stays where it was sampled
    rollout, _ = played(asked("who?"), script("hm", "<answer>b</answer>"), stub)
    assert texts(rollout) == [f"[hm|]{INVALID}[<answer>b</answer>]"]
    assert stub.queries == []


def test_the_last_turn_searches_no_more_and_nothing_follows_it(stub: Stub) -> None:
    rollout, _ = played(asked("who?"), script(ROUND, ROUND, ROUND), stub)
    assert texts(rollout) == [f"[{ROUND}]{FOUND}[{ROUND}]{FOUND}[{ROUND}]"]
    assert stub.queries == ["a", "a"]
    assert [each.ended for each in rollout.episodes or ()] == ["turns"]
    rollout, _ = played(asked("who?"), script(ROUND), stub, replace(LIMITS, turns=1))  # max_turns=0
    assert texts(rollout) == [f"[{ROUND}]"] and stub.queries == ["a", "a"]


def test_an_observation_loses_its_end_as_there(stub: Stub) -> None:
    rollout, _ = played(asked("who?"), script(ROUND, "<answer>b</answer>"), stub, most=20)
    assert texts(rollout) == [f"[{ROUND}]{FOUND[:20]}[<answer>b</answer>]"]


def test_a_turn_begins_only_within_the_context(stub: Stub) -> None:
    """Prompt, turn and observation are 4, 18 and 51 characters: 73 before the second turn, 142 before the third."""
    assert len(ROUND) == 18 and len(FOUND) == 51
    for most, turns, ended in ((72, 1, "length"), (73, 2, "length"), (141, 2, "length"), (142, 3, "turns")):
        rollout, _ = played(asked("who?"), script(*[ROUND] * 3), stub, replace(LIMITS, context_tokens=most))
        (episode,) = rollout.episodes or ()
        assert (len(episode.turns), episode.ended) == (turns, ended), most


def test_metrics_have_search_r1s_names_and_counts(stub: Stub) -> None:
    def say(context: str, uid: int, sample: int, turn: int) -> str:
        return {0: [ROUND, "<answer>b</answer>"], 1: ["hm", ROUND, "no"], 2: ["<answer>c</answer>"]}[uid][turn]

    rollout, _ = played(asked("a?", "b?", "c?"), say, stub)
    found = search_metrics(rollout)
    own, all_ = int(rollout.mask_BT.sum()), int(rollout.context_BT.sum())
    assert found == {
        "env/number_of_actions/mean": 2.0,
        "env/number_of_actions/max": 3.0,
        "env/number_of_actions/min": 1.0,
        "env/finish_ratio": pytest.approx(2 / 3),
        "env/number_of_valid_action": pytest.approx((2 + 1 + 1) / 3),
        "env/ratio_of_valid_action": pytest.approx((2 / 2 + 1 / 3 + 1 / 1) / 3),
        "env/number_of_valid_search": pytest.approx(2 / 3),
        "state_tokens/total": own,
        "state_tokens/coverage": own / all_,
    }
    assert search_metrics(replace(rollout, episodes=None)) == {}


# -- retrievers that fail


def failing(stub: Stub, change: Callable[[Stub], None]) -> Rollout:
    """Row 1 searches once it has gone wrong, the others answer."""

    def say(context: str, uid: int, sample: int, turn: int) -> str:
        if uid == 1 and turn == 1:
            change(stub)
        return ROUND if uid == 1 else "<answer>b</answer>"

    rollout, _ = played(asked("a?", "b?", "c?"), say, stub, timeout=1.0, retries=0)
    return rollout


def refuse(stub: Stub) -> None:
    stub.status = 500


def wait(stub: Stub) -> None:
    stub.answers = False


@pytest.mark.parametrize(
    ("change", "said"), [(refuse, "answered 500"), (wait, "gave no answer within 1 s")], ids=["500", "slow"]
)
def test_a_retriever_that_fails_costs_its_row_and_is_named(
    stub: Stub, change: Callable[[Stub], None], said: str
) -> None:
    rollout = failing(stub, change)
    assert texts(rollout) == ["[<answer>b</answer>]", "", "[<answer>b</answer>]"]
    failures = [each.failure for each in rollout.episodes or ()]
    assert [failure is None for failure in failures] == [True, False, True]
    failure = failures[1]
    assert failure is not None and failure.kind == "retriever"
    assert re.match(r"row 1 of train.parquet, turn 2: the retriever at http://127.0.0.1:\d+/retrieve ", failure.message)
    assert said in failure.message and "; asked from " in failure.message


def test_a_dead_one_is_named_too() -> None:
    with retriever(lambda query: []) as stub:
        pass
    rollout, _ = played(asked("a?"), script(ROUND), stub, retries=0)
    (episode,) = rollout.episodes or ()
    assert episode.failure is not None and episode.failure.kind == "retriever"
    assert stub.url in episode.failure.message and "no retriever answers" in episode.failure.message
    with pytest.raises(RetrieverError), node.given(Retriever(stub.url, retries=0)):
        Search().step(ROUND)


def test_searches_of_a_turn_wait_side_by_side(stub: Stub) -> None:
    """None is answered until all have asked."""
    together = threading.Barrier(16, timeout=stretched(20.0))

    def found(query: str) -> list[str]:
        together.wait()
        return ["a\nb"]

    with retriever(found) as held:
        rollout, _ = played(asked(*["q?"] * 16), script(ROUND, "<answer>b</answer>"), held, timeout=stretched(20.0))
    assert all(each.failure is None for each in rollout.episodes or ())


# -- stop texts


class Pieces:
    """A tokenizer whose tokens are texts, in any split."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(dict.fromkeys(pieces))

    def ids(self, pieces: Sequence[str]) -> list[int]:
        return [self.pieces.index(piece) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


def ended_at(pieces: Sequence[str], stop: Sequence[str] = STOP) -> int | None:
    """How many tokens are kept; None where nothing ends."""
    made = Pieces(pieces)
    stops = Stops(stop, made.decode, 1)
    for count, token in enumerate(made.ids(pieces), start=1):
        if stops.after(torch.tensor([token]), torch.tensor([True])).item():
            return count
    return None


TEXTS = st.lists(
    st.sampled_from(
        ["</search>", "</answer>", "<search>", "</sea", "rch>", ">", "<", "/", " a", "\n", "é", "</search> x"]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@given(TEXTS, st.data())
def test_a_turn_ends_with_the_first_token_that_completes_a_tag(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, max(1, len(text) - 1))), "cuts") if len(text) > 1 else set()
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    whole = ["".join(pieces[:n]) for n in range(1, len(pieces) + 1)]
    expected = next((n for n, said in enumerate(whole, start=1) if any(stop in said for stop in STOP)), None)
    assert ended_at(pieces) == expected


def test_a_token_that_holds_more_than_the_tag_is_kept_whole() -> None:
    assert ended_at(["<search>", "a", "</", "search", ">\n\nmore", "b"]) == 5
    assert ended_at(list("x</search>y")) == len("x</search>")
    assert ended_at(["</search", "]>"]) is None
    assert ended_at(["ends with é", "é"], ("é",)) == 1


def test_rows_that_have_ended_are_left_alone() -> None:
    made = Pieces(["</search>", "a"])
    stops = Stops(STOP, made.decode, 2)
    assert stops.after(torch.tensor([0, 1]), torch.tensor([True, True])).tolist() == [True, False]
    assert stops.after(torch.tensor([0, 0]), torch.tensor([False, True])).tolist() == [False, True]


# -- the environment by itself


def test_its_counts_begin_anew_with_each_episode(stub: Stub) -> None:
    search = Search(turns=2)
    assert search.reset(seed=1) == ("", {})
    with node.given(Retriever(stub.url, topk=1)):
        assert search.step(ROUND)[0] == FOUND
    text, reward, terminated, truncated, info = search.step(ROUND)  # its last: nothing is looked up
    assert (text, reward, terminated, truncated) == ("\n\n<information></information>\n\n", 0.0, False, False)
    assert info["metrics"] == {"search/valid_actions": 2.0, "search/searches": 2.0, "search/finished": 0.0}
    search.reset(seed=1)
    *_, info = search.step("<answer></answer>")
    assert info["metrics"] == {"search/valid_actions": 1.0, "search/searches": 0.0, "search/finished": 1.0}
    json.dumps(info)
