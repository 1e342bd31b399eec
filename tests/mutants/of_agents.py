"""Mistakes in conversations with environments, each with the unit test that must fail: `test_agent_mutants.py`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TURNS, TURNWISE = "tests/trainer/test_by_turn.py", "tests/trainer/test_agent_turnwise.py"
LAYING, LOOP = "tests/trainer/test_agent_laying.py", "tests/trainer/test_agent_loop.py"
SPEECH = "tests/trainer/test_agent_speech.py"

MUTANTS = (
    Mutant(
        "a-turn-earns-what-was-before-it",
        "trainer/agent/by_turn.py",
        old="later = discounted(rewards, gamma)[episode.step or 0 :]",
        new="later = discounted(rewards, gamma)",
        caught_by=f"{TURNS}::test_a_row_of_one_turn_has_the_advantage_that_the_turn_has",
    ),
    Mutant(
        "turns-of-the-next-prompt",
        "trainer/agent/turnwise.py",
        old="prompt = ids[turn.end : after]",
        new="prompt = prompt + ids[turn.start : after]",
        caught_by=f"{TURNWISE}::test_each_turn_has_a_prompt_of_its_own",
    ),
    Mutant(
        "room-drawn-from-global-numbers",
        "trainer/env/sokoban_rooms.py",
        old="    dice = random.Random(seed)\n",
        new="    dice = random\n",
        caught_by="tests/trainer/test_sokoban.py::test_every_room_can_be_solved_and_comes_from_its_seed_alone",
    ),
    Mutant(
        "room-that-cannot-be-solved",
        "trainer/env/sokoban_rooms.py",
        old="        if place not in floor or place in here.boxes:\n",
        new="        if place in here.boxes:\n",
        caught_by="tests/trainer/test_sokoban.py::test_every_room_can_be_solved_and_comes_from_its_seed_alone",
    ),
    Mutant(
        "observation-in-the-loss",
        "trainer/agent/laying.py",
        old="mask += [1] * count + [0] * more",
        new="mask += [1] * (count + more)",
        caught_by=f"{LAYING}::test_what_was_sampled_comes_back_token_for_token",
    ),
    Mutant(
        "reward-one-column-late",
        "trainer/agent/laying.py",
        old="placed_BT[row, end - 1] += turn.reward",
        new="placed_BT[row, min(end, width - 1)] += turn.reward",
        caught_by=f"{LAYING}::test_a_reward_lies_on_its_turns_last_sampled_token",
    ),
    Mutant(
        "glue-dropped",
        "trainer/agent/speech.py",
        old="ids = self._behind(before, between)",
        new="ids = self._behind(before, observation)",
        caught_by=f"{SPEECH}::test_a_conversation_reads_as_the_template_writes_it",
    ),
    Mutant(
        "end-of-turn-twice",
        "trainer/agent/speech.py",
        old="return ids[1:] if ended and ids[:1] == [sampled[-1]] else ids",
        new="return ids",
        caught_by=f"{SPEECH}::test_the_end_of_a_turn_stands_there_once",
    ),
    Mutant(
        "last-turn-cut",
        "trainer/agent/loop.py",
        old="nothing if fails else lay(each.said)",
        new="nothing if fails else lay(each.said[:-1] or each.said)",
        caught_by=f"{LOOP}::test_rows_are_conversations",
    ),
    Mutant(
        "each-turn-draws-the-same",
        "trainer/agent/batches.py",
        old="turn_B=numbers(request.turn for request in requests)",
        new="turn_B=numbers(0 for request in requests)",
        caught_by=f"{LOOP}::test_rows_are_conversations",
    ),
    Mutant(
        "last-answer-not-kept",
        "trainer/agent/loop.py",
        old="seconds=observed.seconds, observation=observed.text)",
        new="seconds=observed.seconds)",
        caught_by="tests/devkit/test_agent_replay.py::test_what_was_recorded_comes_again",
    ),
)
