"""The user's own, looked at while the pipeline runs: their reward function, and the scores of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from devkit.errors import DevkitError
from devkit.smoke import made_up_responses as made_up
from devkit.smoke.checks import users_answers, users_own
from devkit.smoke.checks.outcome import Outcome, look_at
from devkit.smoke.direct_process import Answer, Call, DirectProcess
from devkit.smoke.probing import Probed, probe
from devkit.smoke.results import Results
from devkit.smoke.row_reader import RowReader
from trainer import shaping
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import Experience, Rollout
from trainer.rewards import read_source, score_all, scorer_for

CHECKS = ("reward-calls", "reward-repeats", "reward-truth", "reward-answer", "reward-text")
STEP_S = 0.5  # for the direct calls of one step
FEWEST = 4  # of them
CALL_S = 0.02  # of a call, for the responses of validations
PARTS = {"ground truth": "truth_of", "extra_info": "extra_of", "data_source": "source_of"}


class UsersOwn:
    """Made once; `look` at each step of the pipeline, `close` at the end."""

    def __init__(self, full: Config, config: Config, tokenizer: Any, results: Results, log: Path) -> None:
        """`config`: the pipeline's; `full`: that of the command."""
        self.full = full
        self.config = config
        self.tokenizer = tokenizer
        self.results = results
        self.rows = RowReader(config.data.prompt_key, config.data.reward_fn_key)
        self.process = DirectProcess(config, log, self._first_call())
        self.probed: Probed | None = None
        self._special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special |= set(tokenizer.all_special_ids)
        self._why_not = ""  # why the function is not called directly
        self._compared = 0

    def _first_call(self) -> Call:
        """A right answer to the wrong row, for which the most has to be loaded."""
        file = self.config.data.train_files[0]
        truth = made_up.truth_text(self.rows(file, 0).ground_truth)
        return Call(file, 0, made_up.ALL.format(x=truth), truth_of=self.rows.count(file) - 1)

    def close(self) -> None:
        self.process.close()

    def look(self, workers: WorkerGroup, seen: Experience) -> None:
        """At the scores of a step; at the first one at the reward function, too."""
        first = self.probed is None and not self._why_not
        if first:
            self.results.add("reward-calls", self._probe)
            self._look_at_function()
        self.results.add("pipeline-rewards", lambda: self._scores(seen.rollout, _placed(seen)))
        if first and self._may_score_more(len(seen)):
            made = self._made_up(seen.rollout)
            told = workers.score(made).score_B.tolist()
            labels = tuple(row.label for row in made.prompts.rows)
            placed = users_own.Placed(labels, tuple(told), (0.0,) * len(told))
            self.results.add("pipeline-rewards", lambda: self._scores(made, placed))

    def score_again(self, file: str, index: int, text: str) -> float | None:
        """By a direct call; None where that says nothing, or takes long."""
        probed = self.probed
        if probed is None or self._why_not or probed.seconds > CALL_S or users_own.unsteady(probed):
            return None
        return self.process.call(Call(file, index, text)).score

    def _may_score_more(self, rows: int) -> bool:
        """Whether the ranks can be given generated responses: none is known to end the run, and it takes no time."""
        probed = self.probed
        if probed is None or self._why_not or any(answer.problem for answer in probed.own):
            return False
        return probed.seconds * rows <= STEP_S

    # -- the function

    def _probe(self) -> Outcome:
        own, config = self.config.custom_reward_function, self.full
        longest = config.data.max_response_length
        try:
            file = self.config.data.train_files[0]
            probed = probe(self.process, self.rows, file, read_source(own) or "", longest)
            self.probed = replace(probed, built_in=self._built_in(file))
        except DevkitError as error:
            self._why_not = f"the reward function could not be called directly: {error.message}"
            return Outcome(None, self._why_not)
        if all(answer.problem for answer in self.probed.own):
            self._why_not = f"called directly, the reward function {self.probed.own[0].problem}; the ranks had a score"
            return Outcome(None, self._why_not)
        step_rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        return users_own.reward_calls(self.probed, step_rows, ranks)

    def _look_at_function(self) -> None:
        probed = self.probed
        if probed is None or self._why_not:
            for name in CHECKS[1:]:
                self.results.add(name, lambda: Outcome(None, self._why_not))
            return
        if users_own.unsteady(probed):
            self._why_not = "the reward is not deterministic (see reward-repeats), so there is nothing to compare"
        self.results.add("reward-repeats", lambda: users_own.reward_repeats(probed))
        self.results.add("reward-truth", lambda: users_own.reward_truth(probed))
        self.results.add("reward-answer", lambda: users_answers.reward_answer(probed))
        self.results.add("reward-text", lambda: users_own.reward_text(probed))

    def _built_in(self, file: str) -> str:
        """Where the trainer's own scorer stands; empty for a user's."""
        if self.config.custom_reward_function.path is not None:
            return ""
        scorer: Callable[..., Any] = scorer_for(self.rows(file, 0).data_source)
        return look_at(scorer).removeprefix("look at ")

    # -- the scores

    def _scores(self, rollout: Rollout, placed: users_own.Placed) -> Outcome:
        if self._why_not:
            return Outcome(None, self._why_not)
        try:
            return self._compare(rollout, placed)
        except DevkitError as error:
            self._why_not = f"the reward function could not be called directly: {error.message}"
            return Outcome(None, self._why_not)

    def _compare(self, rollout: Rollout, placed: users_own.Placed) -> Outcome:
        calls = self._calls(rollout)
        seconds = self.probed.seconds if self.probed else 0.0
        most = max(FEWEST, int(STEP_S / max(seconds, 1e-4)))
        calls, placed = calls[:most], users_own.first(placed, most)
        direct = self.process.calls(calls)
        wrong = users_own.off(placed, direct)
        again = self.process.calls([calls[i] for i in wrong] * 4)
        suspects = self._suspects(rollout, calls, direct) if wrong else {}
        look = look_at(score_all) if wrong else look_at(shaping.place_scores)
        found = users_own.scores_of_rows(placed, direct, again, suspects, look)
        if not found.ok:
            return found
        self._compared += len(calls)
        return Outcome(True, f"{self._compared} scores match direct calls with the rows of the file")

    def _calls(self, rollout: Rollout) -> list[Call]:
        texts = [self._text(ids) for ids in rollout.response_BT.tolist()]
        return [Call(row.file, row.index, text) for row, text in zip(rollout.prompts.rows, texts, strict=True)]

    def _text(self, ids: Sequence[int]) -> str:
        """Up to its first EOS, without special tokens."""
        end = self.tokenizer.eos_token_id
        ids = ids[: ids.index(end)] if end in ids else ids
        return str(self.tokenizer.decode([i for i in ids if i not in self._special]))

    def _suspects(self, rollout: Rollout, calls: list[Call], direct: list[Answer]) -> dict[str, list[Answer]]:
        """What direct calls give if one thing is wrong; for a failure alone."""
        responses = rollout.response_BT.tolist()[: len(calls)]
        lengths = rollout.mask_BT.sum(-1).tolist()
        raw = [self.tokenizer.decode(ids, skip_special_tokens=False) for ids in responses]
        ended = [self.tokenizer.decode(ids[:n]) for ids, n in zip(responses, lengths, strict=False)]
        wrong = {
            "decoded with its padding": [replace(c, text=text) for c, text in zip(calls, raw, strict=True)],
            "decoded with its special tokens": [replace(c, text=text) for c, text in zip(calls, ended, strict=True)],
        }
        for by, side in ((1, "after"), (-1, "before")):
            in_file = [(call.index + by) % self.rows.count(call.file) for call in calls]
            in_batch = [calls[(i + by) % len(calls)].index for i in range(len(calls))]
            for others, place in ((in_file, "the file"), (in_batch, "the batch")):
                for what, field in PARTS.items():
                    name = f"scored with the {what} of the row {side} it in {place}"
                    wrong[name] = [_with(call, field, other) for call, other in zip(calls, others, strict=True)]
        return {name: self.process.calls(of) for name, of in wrong.items()} | {
            "the score of the response before it": direct[-1:] + direct[:-1],
            "the score of the response after it": direct[1:] + direct[:1],
            "the score is doubled": [replace(a, score=None if a.score is None else 2 * a.score) for a in direct],
            "the score is lost": [replace(a, score=0.0) for a in direct],
        }

    def _made_up(self, rollout: Rollout) -> Rollout:
        """To the prompts of a batch, responses with their ground truths, those of the next rows and none of them: a new
        model hits none.

        Each ends in EOS and is padded to the longest.
        """
        assert self.probed is not None
        form, texts = users_own.telling_form(self.probed), []
        for i, row in enumerate(rollout.prompts.rows):
            index = (row.index + (i % 4 == 2)) % self.rows.count(row.file)
            truth = made_up.truth_text(self.rows(row.file, index).ground_truth)
            nonsense = made_up.NONSENSE[i % len(made_up.NONSENSE)]
            texts.append(nonsense if truth is None or i % 4 == 3 else form.format(x=truth))
        ids = [[*self.tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
        ids = [[*each, self.tokenizer.eos_token_id] for each in ids]
        width = max(map(len, ids))
        padded = [each + [self.tokenizer.pad_token_id] * (width - len(each)) for each in ids]
        mask = [[1] * len(each) + [0] * (width - len(each)) for each in ids]
        return Rollout(rollout.prompts, torch.tensor(padded), torch.tensor(mask), torch.zeros(len(ids), width))


def _with(call: Call, field: str, row: int) -> Call:
    """With one part of another row."""
    return Call(**{**vars(call), field: row})


def _placed(seen: Experience) -> users_own.Placed:
    rows = list(zip(seen.scores_BT.tolist(), seen.rollout.mask_BT.sum(-1).tolist(), strict=True))
    return users_own.Placed(
        labels=tuple(row.label for row in seen.rollout.prompts.rows),
        scores=tuple(scores[length - 1] for scores, length in rows),
        elsewhere=tuple(sum(map(abs, scores)) - abs(scores[length - 1]) for scores, length in rows),
    )
