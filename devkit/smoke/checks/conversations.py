"""What a step's record shows of conversations: whose each token is, what stands between turns, where rewards lie.

Each is computed from what the environment was given and gave, and not from the masks that are looked at.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from devkit.smoke.checks.outcome import SAME_POLICY_TOLERANCE, Outcome, look_at, place_of
from trainer import shaping
from trainer.agent import laying
from trainer.agent.again import Recorded, again
from trainer.agent.loop import Conversations, seed_in
from trainer.agent.source import Source
from trainer.agent.speech import CHAT, Speech
from trainer.records import Experience, Rollout, TrainBatch
from trainer.rows import take
from trainer.views import of_actor


def turns_as_played(rollout: Rollout, tokenizer: Any) -> Outcome:
    """Trained is what was sampled, read is all that stands before it; every turn is there to its end."""
    episodes = rollout.episodes or ()
    turns = 0
    for row, episode in enumerate(episodes):
        mask, present = rollout.mask_BT[row], rollout.context_BT[row]
        expected = torch.zeros_like(mask)
        for turn in episode.turns:
            expected[turn.start : turn.end] = 1
        end = episode.turns[-1].end
        what = ""
        if int(present.sum()) != end or not present[:end].all():
            what = f"{int(present.sum())} tokens are read, and its {len(episode.turns)} turns end at {end}"
        elif not torch.equal(mask, expected):
            column = int((mask != expected).nonzero()[0])
            what = f"token {column} is {'trained and was not' if mask[column] else 'not trained and was'} sampled"
        if what:
            where = f"{look_at(laying.lay)}, or at {place_of(Conversations.play)}"
            return Outcome(False, f"row {row}: {what}: {where}")
        for turn in episode.turns:
            ids = rollout.response_BT[row, turn.start : turn.end].tolist()
            said = tokenizer.decode(ids, skip_special_tokens=True)
            if said != turn.action:
                shown = f"the environment was given {turn.action!r}, and {said!r} was sampled"
                return Outcome(False, f"row {row}: {shown}: {look_at(Speech.action)}")
        turns += len(episode.turns)
    return Outcome(True, f"{turns} turns of {len(episodes)} conversations: trained is what was sampled")


def glue(rollout: Rollout, tokenizer: Any, style: str, most: int | None = None) -> Outcome:
    """A conversation's tokens read as the template writes it whole; `most` tokens of an observation stand in it."""
    drifted, episodes = 0, rollout.episodes or ()

    def kept(observation: str) -> str:
        ids = tokenizer(observation, add_special_tokens=False)["input_ids"]
        return observation if most is None or len(ids) <= most else str(tokenizer.decode(ids[:most]))

    for row, episode in enumerate(episodes):
        prompts = rollout.prompts
        prompt = prompts.ids_BP[row][prompts.mask_BP[row].bool()].tolist()
        response = rollout.response_BT[row][rollout.context_BT[row].bool()].tolist()
        text = tokenizer.decode([*prompt, *response])
        if style == CHAT:
            messages = [{"role": "user", "content": episode.observation}]
            for turn in episode.turns:
                said = tokenizer.decode(response[turn.start : turn.end]).removesuffix(tokenizer.eos_token)
                messages += [
                    {"role": "assistant", "content": said},
                    {"role": "user", "content": kept(turn.observation)},
                ]
            wanted = tokenizer.apply_chat_template(messages[:-1], tokenize=False)
        else:
            answered = [kept(turn.observation) for turn in episode.turns[:-1]]
            sampled = [tokenizer.decode(response[turn.start : turn.end]) for turn in episode.turns]
            parts = [piece for pair in zip(sampled, [*answered, ""], strict=True) for piece in pair]
            wanted = tokenizer.decode(prompt) + "".join(parts)
        if not wanted.startswith(text) or len(wanted) - len(text) > len(tokenizer.eos_token):
            place = next((i for i, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), len(text))
            shown = (
                f"{text[max(0, place - 8) : place + 8]!r} stands where {wanted[max(0, place - 8) : place + 8]!r} should"
            )
            return Outcome(False, f"row {row}: {shown}: {look_at(Speech.reply)}")
        drifted += tokenizer(text, add_special_tokens=False)["input_ids"] != [*prompt, *response]
    return Outcome(
        True, f"{len(episodes)} conversations read as written whole; {drifted} would be other tokens if encoded again"
    )


def rewards_of_turns(experience: Experience, source: Source | None) -> Outcome:
    """Each turn's reward is what the environment gives for its actions, played again, and lies on its last token."""
    rollout, earned = experience.rollout, 0
    for row, episode in enumerate(rollout.episodes or ()):
        if source is not None:
            found = _played_again(source, rollout, row)
            if found:
                return Outcome(False, f"row {row}: {found}: {look_at(Conversations.play)}")
        expected = torch.zeros_like(experience.scores_BT[row])
        for turn in episode.turns if source is not None else ():
            last = turn.end - 1
            expected[last] += turn.reward
            earned += turn.reward != 0
        if source is None:  # scored as a whole, by a reward function
            last = int(rollout.mask_BT[row].nonzero()[-1])
            expected[last] = experience.scores_BT[row].sum()
            earned += bool(expected[last])
        odd = (expected - experience.scores_BT[row]).abs() > 1e-6
        if odd.any():
            column = int(odd.nonzero()[0])
            is_, wanted = float(experience.scores_BT[row, column]), float(expected[column])
            said = f"token {column} has the reward {is_:g}, and should have {wanted:g}"
            where = f"{look_at(laying.placed_rewards)}, or at {place_of(shaping.place_scores)}"
            return Outcome(False, f"row {row}: {said}: {where}")
    return Outcome(True, f"{earned} rewards, each on the last sampled token of its turn")


def _played_again(source: Source, rollout: Rollout, row: int) -> str:
    """What differs when the actions of a row are played again; empty if nothing does."""
    assert rollout.episodes is not None
    episode = rollout.episodes[row]
    actions = tuple(turn.action for turn in episode.turns)
    observations = (episode.observation, *(turn.observation for turn in episode.turns))
    rewards = tuple(turn.reward for turn in episode.turns)
    recorded = Recorded(seed_in(rollout.prompts.rows[row]), actions, observations, rewards, episode.ended)
    for compared in again(source, recorded, len(actions)):
        if compared.difference is not None:
            found = compared.difference
            return f"turn {compared.turn}: {found.what} was {found.recorded!r}, and played again {found.replayed!r}"
    return ""


def cut_behind_first_answer(batch: TrainBatch, vocabulary: int) -> tuple[TrainBatch, TrainBatch] | None:
    """Conversations that end with the first answer, and the same with other tokens in that answer.

    Nobody samples after it: whatever it says, losses and gradients are the same. None where no row has an answer.
    """
    rollout = batch.experience.rollout
    episodes = rollout.episodes or ()
    rows = torch.tensor([row for row, episode in enumerate(episodes) if len(episode.turns) > 1])
    if not len(rows):
        return None
    whole = take(batch, rows)
    seen = whole.experience.rollout
    assert seen.episodes is not None and seen.present_BT is not None
    mask, present, ids = seen.mask_BT.clone(), seen.present_BT.clone(), seen.response_BT.clone()
    other = ids.clone()
    for row, episode in enumerate(seen.episodes):
        first, second = episode.turns[0], episode.turns[1]
        mask[row, second.start :] = 0
        present[row, second.start :] = 0
        answered = slice(first.end, second.start)
        other[row, answered] = 3 + (ids[row, answered] - 3 + 1) % (vocabulary - 3)
    return _with(whole, ids, mask, present), _with(whole, other, mask, present)


def _with(batch: TrainBatch, ids: torch.Tensor, mask: torch.Tensor, present: torch.Tensor) -> TrainBatch:
    rollout = dataclasses.replace(batch.experience.rollout, response_BT=ids, mask_BT=mask, present_BT=present)
    experience = dataclasses.replace(batch.experience, rollout=rollout)
    return dataclasses.replace(batch, experience=experience)


Probe = tuple[dict[str, float], float]  # losses, norm of the gradient


def mask_proof(before: Probe, after: Probe, rows: int) -> Outcome:
    """Losses and gradient do not change with what an environment said behind the last sampled token."""
    numbers = {**{name: (before[0][name], after[0][name]) for name in before[0]}, "the gradient": (before[1], after[1])}
    for name, (was, is_) in numbers.items():
        if abs(was - is_) > SAME_POLICY_TOLERANCE * max(1.0, abs(was)):
            said = f"{name} is {was:.6g}, and {is_:.6g} with other observations, of which nobody read any"
            return Outcome(False, f"{said}: {look_at(laying.lay)}, or at {place_of(of_actor)}")
    return Outcome(
        True, f"losses and gradient of {rows} conversations are the same with other observations at their end"
    )
