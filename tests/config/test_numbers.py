"""Every number of the schema has a range, every truth value is one, and no value of any key ends in a traceback."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from types import NoneType, UnionType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import check_command, load, resolve, tree
from trainer.config.choices import RANGES, Range
from trainer.config.overrides import parse
from trainer.config.schema import Config

Command = Callable[..., list[str]]


def leaves(kind: type, prefix: str = "") -> Iterator[tuple[str, type, bool]]:
    """Each key with its plain type, and whether it is a list of them; from the annotations alone."""
    for field in dataclasses.fields(kind):
        type_ = typing.get_type_hints(kind)[field.name]
        if isinstance(type_, UnionType):
            type_ = next(part for part in typing.get_args(type_) if part is not NoneType)
        if dataclasses.is_dataclass(type_) and isinstance(type_, type):
            yield from leaves(type_, f"{prefix}{field.name}.")
        else:
            inner = typing.get_args(type_)
            yield prefix + field.name, inner[0] if inner else type_, bool(inner)


KEYS = {key: (kind, many) for key, kind, many in leaves(Config)}
NUMBERS = {key: many for key, (kind, many) in KEYS.items() if kind in (int, float)}
TRUTHS = [key for key, (kind, _) in KEYS.items() if kind is bool]


def refused(words: list[str]) -> set[str]:
    found = resolve(words).problems
    assert all(problem.message and problem.hint and "\n" not in problem.message + problem.hint for problem in found)
    return {problem.key for problem in found}


def test_every_number_has_a_range_and_nothing_else_has() -> None:
    assert set(RANGES) == set(NUMBERS) and len(NUMBERS) > 90
    for key, limits in RANGES.items():
        whole = KEYS[key][0] is int
        least, most = (-(2**63), 2**63 - 1) if whole else (-3.4028235e38, 3.4028235e38)  # of int64, of fp32
        assert isinstance(limits.high, int) == whole and least <= limits.low <= limits.high <= most


def test_a_number_without_a_range_cannot_be() -> None:
    """Nothing of the package works until it has one."""
    with pytest.raises(LookupError, match=r"trainer\.nnodes is a number without a range"):
        tree.require_ranges(["trainer.seed", "trainer.nnodes", "trainer.device"], {"trainer.seed": Range(0)})


NO_NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "1e39",
    "-1e39",
    "1e400",
    "9223372036854775808",
    "-9223372036854775809",
    "1" + "0" * 400,
]
NO_NUMBERS += ["'nan'", "'inf'", "True", "x", "''", "{}", "[[1]]", "[{a:1}]", "[True]", "1" + "0" * 5000]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_what_is_no_number_or_out_of_64_bits_is_refused_everywhere(value: str) -> None:
    said = refused([f"{key}={value}" for key in NUMBERS])
    # every finite number is a float's; a whole number that large is none
    fits = (
        {key for key in NUMBERS if KEYS[key][0] is float} if value.strip("-").isdigit() and len(value) < 39 else set()
    )
    assert NUMBERS.keys() - said <= fits, NUMBERS.keys() - said


@pytest.mark.parametrize("value", ["nan", "inf", "-1e39"])
def test_an_item_of_a_list_is_a_number(value: str) -> None:
    lists = [key for key, many in NUMBERS.items() if many]
    assert refused([f"{key}=[{value}]" for key in lists]) == set(lists)


def test_the_coefficients_of_losses_and_rewards() -> None:
    actor, control = "actor_rollout_ref.actor", "algorithm.kl_ctrl"
    for word in (f"{control}.kl_coef=-1", f"{actor}.kl_loss_coef=-0.1", "data.seed=-1", "trainer.seed=-1"):
        assert refused([word]) == {word.partition("=")[0]}
    assert refused([f"{actor}.entropy_coeff=-0.1", f"{control}.kl_coef=0", f"{actor}.kl_loss_coef=2.5"]) == set()
    assert refused([f"{actor}.optim.betas=[0.9,1.0]"]) == {f"{actor}.optim.betas"}


@pytest.mark.parametrize(
    "value", ["-1", "2", "0.5", "1.0", "9" * 30, "'-1'", "yes", "no", "on", "off", "''", "[True]", "nan"]
)
def test_a_truth_value_is_true_or_false(value: str) -> None:
    """In a shell script `no` would be a text, and true, to a trainer that takes what it is given."""
    assert refused([f"{key}={value}" for key in TRUTHS]) == set(TRUTHS)


@pytest.mark.parametrize(
    ("value", "meant"), [("True", True), ("false", False), ("1", True), ("0", False), ("'true'", True)]
)
def test_other_spellings_of_the_two(value: str, meant: bool) -> None:
    assert load([f"algorithm.use_kl_in_reward={value}"]).config.algorithm.use_kl_in_reward is meant


def test_zero_and_false_are_two_values() -> None:
    """`top_k=0` is another spelling of -1, and False is not."""
    assert load(["actor_rollout_ref.rollout.top_k=0"]).config.actor_rollout_ref.rollout.top_k == -1
    assert refused(["actor_rollout_ref.rollout.top_k=False"]) == {"actor_rollout_ref.rollout.top_k"}


# --------------------------------------------------------------------------------------------------- lists by reference


def test_a_list_that_refers_to_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILE", "/data/train.parquet")
    files = "data.train_files"
    assert load([f"{files}=${{oc.env:FILE}}"]).config.data.train_files == ["/data/train.parquet"]
    assert load([f"{files}=[${{oc.env:FILE}},b]"]).config.data.train_files == ["/data/train.parquet", "b"]
    assert load([f"{files}=${{oc.env:FILE}}.gz"]).config.data.train_files == ["/data/train.parquet.gz"]
    assert load([f"{files}=[a,b]", f"data.val_files=${{{files}}}"]).config.data.val_files == ["a", "b"]


def test_a_list_that_refers_to_something_else() -> None:
    assert load(["trainer.device_mapping.actor=${trainer.nnodes}"]).config.trainer.device_mapping.actor == [1]
    betas = "actor_rollout_ref.actor.optim.betas"
    for word in (f"{betas}=${{trainer.device}}", f"{betas}=${{trainer}}", "data.train_files=${algorithm.kl_ctrl}"):
        assert refused([word]) == {word.partition("=")[0]}


# ------------------------------------------------------------------------------------------------------- no tracebacks

VALUES = st.sampled_from(
    [
        *NO_NUMBERS,
        *("0", "1", "-1", "8", "1.5", "-0.0", "1_000", "0x10", "٣", "null", "True", "no", "''", "'a\tb'"),
        *("[]", "[1,2]", "[[1]]", "[{a:1}]", "[null]", "[a,null]", "{a:1}", "{}", "a,b", "choice(1,2)"),
        *("${trainer.seed}", "${oc.env:HOME}", "${oc.env:NOT_THERE_}", "${nowhere}", "${data}", "${trainer.logger}"),
        *("/" + "x" * 300, "'a\\0b'", "/dev/zero", "/dev/null", "~", "~nobody/x", "gs://bucket/x", "\ud800"),
        *("[" * 3000, "{a:" * 500, "${" * 50, "list(range(0,999999))"),
    ]
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(sorted(KEYS)), VALUES), min_size=1, max_size=5))
def test_any_value_of_any_key_is_judged(pairs: list[tuple[str, str]]) -> None:
    report = check_command([f"{key}={value}" for key, value in pairs])
    assert all("\n" not in problem.message and problem.hint for problem in report.problems)


@settings(max_examples=40)
@given(st.text(max_size=20))
def test_any_text_as_a_number(text: str) -> None:
    resolve([f"trainer.seed={text}", f"algorithm.gamma={text}"])


@pytest.mark.parametrize("text", ["a=" + "[" * 100_000, "a=" + "9" * 10_000, "a={b:" * 5000, "a=" + "(" * 5000])
def test_an_override_without_end(text: str) -> None:
    overrides, problems = parse([text])
    assert overrides == [] and len(problems) == 1 and problems[0].hint


@pytest.mark.parametrize("role", ["actor", "rollout", "ref", "critic"])
def test_a_role_without_ranks(command: Command, role: str) -> None:
    key = f"trainer.device_mapping.{role}"
    found = {problem.key: problem.message for problem in check_command(command(f"{key}=[]")).problems}
    assert found[key] == f"{key}=[] names no rank"


SIZES = ["trainer.nnodes", "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n", "data.train_batch_size"]


@pytest.mark.parametrize("key", SIZES)
def test_the_largest_of_a_size_is_judged_at_once(command: Command, key: str) -> None:
    """Nothing is made for each rank or row that a command asks for."""
    check_command(command(f"{key}={RANGES[key].high}"))
