"""Draws of the real engine, judged: what is right passes with every seed, and each mistake is found and named."""

from __future__ import annotations

import json
import types
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from devkit.smoke import ask_engines, plain_draws, tiny
from devkit.smoke.checks import draws
from devkit.smoke.checks.draws import Draws
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.plain_draws import Judged, Other, Repeats, Request
from devkit.smoke.shrink import make_plan, replaced
from tests.mutants.mutant import ROOT
from trainer import group
from trainer.config import load
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.interfaces import Args
from trainer.precision import in_precision
from trainer.records import Prompts, Row, Scores
from trainer.rollout import hf
from trainer.rows import repeat

R = "actor_rollout_ref.rollout"
SAMPLING, SETTINGS, GROUP, ROWS = (
    f"trainer/{name}.py" for name in ("rollout/sampling", "rollout/settings", "group", "rows")
)
RANKS = 2


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("draws") / "model")


def built(folder: Path, like: Any = None) -> Path:
    if like is not None:
        like.save_pretrained(folder.with_name("like"))
    texts = tuple(f"Ada has {i} apples" for i in range(200))
    tiny.build(tiny.TinySpec(str(folder), str(folder.with_name("like")) if like else None, texts, 1, 512))
    return folder


@lru_cache
def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **in_precision(torch.float32))


plain = lru_cache(plain_draws._network)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is the same for all tests; none changes it."""
    monkeypatch.setattr(plain_draws, "_network", plain)


class Engines:
    """Ranks with an engine each, as `interfaces.Calls`."""

    world_size = RANKS

    def __init__(self, folder: Path) -> None:
        network = deepcopy(loaded(folder))
        self.engines = [hf.HfEngine(network, eos_ids=[1], pad_id=0, max_sequences=64) for _ in range(RANKS)]

    def all(self, phase: str, args: Args) -> list[Any]:
        if phase == "score":
            return [Scores(torch.zeros(len(given[0])), {}) for given in args if given]
        assert phase == "generate"
        return [engine.generate(*given) for engine, given in zip(self.engines, args, strict=True) if given]


@lru_cache
def config_of(*words: str, seed: int = 1) -> Config:
    plan = make_plan([*words], None)
    own = {"data.train_files": ["t"], "data.max_response_length": 8, "trainer.seed": seed}
    return load(replaced(plan.overrides, own | {"actor_rollout_ref.model.path": "m"}), plan.dialect).config


def drawn(folder: Path, *words: str, seed: int = 1, rows: int = 32) -> Draws:
    """All requests, and a first step of `rows` responses to prompts that differ."""
    config = config_of(*words, seed=seed)
    workers = WorkerGroup(Engines(folder), config)
    choice = plain_draws.Choice(**plain_draws.choose(str(folder), seed))
    requests = ask_engines.ask(workers, choice, seed)
    samples = config.actor_rollout_ref.rollout.n
    first = workers.generate(repeat(prompts(rows // samples), samples), 1, validate=False)
    requests.append(ask_engines.of_first_step(first, config))
    told = json.loads(json.dumps([asdict(request) for request in requests]))
    answer = plain_draws.judge(str(folder), told, ask_engines.ALIKE)
    return draws.heard(requests, json.loads(json.dumps(answer)), "hf")


def prompts(count: int) -> Prompts:
    """Padded on the left to different lengths."""
    ids_BP = torch.randint(3, 300, (count, 9), generator=torch.Generator().manual_seed(5))
    mask_BP = (torch.arange(9) >= torch.arange(count)[:, None] % 5).long()
    rows = tuple(Row(i, "made up", "none", "") for i in range(count))
    return Prompts(ids_BP * mask_BP, mask_BP, torch.arange(count), torch.zeros(count).long(), rows)


def statuses(found: dict[str, Outcome]) -> dict[str, bool | None]:
    return {name: outcome.ok for name, outcome in found.items()}


RIGHT = dict.fromkeys(draws.NAMES, True)
COMMANDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "samples": ("algorithm.adv_estimator=grpo", f"{R}.n=4"),
    "filtered": (f"{R}.top_p=0.8", f"{R}.top_k=20", f"{R}.temperature=0.7"),
    "validation sampled": (
        f"{R}.val_kwargs.do_sample=True",
        f"{R}.val_kwargs.temperature=0.1",
        f"{R}.val_kwargs.top_p=0.7",
    ),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_right_passes(model: Path, command: str, seed: int) -> None:
    found = draws.findings(drawn(model, *COMMANDS[command], seed=seed))
    assert statuses(found) == RIGHT, found


@pytest.mark.parametrize("like", ["tied", "gpt2"])
def test_other_architectures_pass(like: str, tmp_path: Path) -> None:
    """Tied weights make a new model's distributions far more uneven."""
    from transformers import GPT2Config, Qwen2Config

    config = GPT2Config() if like == "gpt2" else Qwen2Config(tie_word_embeddings=True, num_key_value_heads=2)
    assert statuses(draws.findings(drawn(built(tmp_path / "model", config)))) == RIGHT


@pytest.mark.parametrize("few", [Judged(8, 0.0, 4, 0.0, 9.0, [Other(1.0, 3.0, 39.0)], 0.5, 1, 39.0, [])])
def test_what_could_not_be_seen_is_not_said_to_be_right(few: Judged) -> None:
    request = Request("", 0.5, 1.0, -1, [1.0], [])
    asked = dict.fromkeys(ask_engines.NAMES, request)
    copies = [Repeats("prompts", 3, 8, 2.5, 1.0, 39.0)]
    seen = Draws(asked, dict.fromkeys(asked, few), dict.fromkeys(asked, copies))
    assert statuses(draws.findings(seen)) == dict.fromkeys(draws.NAMES) | {"validation": True}


ASKED = Request("", 0.5, 1.0, -1, [1.0], [])
SEEN = Judged(99, 0.0, 40, 0.0, 0.0, [Other(1.0, -50.0, 50.0)], 0.5, 1, 50.0, [Other(0.3, 0.0, 50.0)])
APART = Repeats("prompts", 3, 99, 2.5, 1.0, 99.0)


def made(request: Request = ASKED, seen: Judged = SEEN, repeats: Repeats = APART) -> Draws:
    """All requests alike."""
    names = ask_engines.NAMES
    return Draws(dict.fromkeys(names, request), dict.fromkeys(names, seen), dict.fromkeys(names, (repeats,)))


def test_each_check_on_made_up_numbers() -> None:
    assert draws.drawn_at(made()).ok is True
    wrong = replace(SEEN, temperatures=[Other(1.0, 19.9, 50.0), Other(0.9, 20.1, 50.0)])
    assert "near 1, not 0.5" in draws.drawn_at(made(seen=wrong)).detail
    assert draws.top_p(made(replace(ASKED, top_p=0.6))).ok is True
    assert draws.top_p(made(replace(ASKED, top_p=0.4))).ok is False
    assert draws.top_k(made(replace(ASKED, top_k=2))).ok is True
    assert draws.top_k(made(replace(ASKED, top_k=1))).ok is False
    fewer = replace(SEEN, narrower=[Other(1.0, 20.0, 50.0)])
    assert draws.top_k(made(replace(ASKED, top_k=2), fewer)).ok is False
    assert draws.top_k(made(replace(ASKED, top_k=2), fewer), apart=False).ok is True
    assert draws.draws_differ(made()).ok is True
    assert draws.draws_differ(made(repeats=replace(APART, evidence=20.0))).ok is False
    assert draws.validation(made(replace(ASKED, temperature=0.0))).ok is True
    assert draws.validation(made(replace(ASKED, temperature=0.0), replace(SEEN, short=0.01))).ok is False


def test_a_model_that_cannot_be_computed_is_passed_over() -> None:
    found = draws.findings(replace(made(), passed_over="no such model"))
    assert statuses(found) == dict.fromkeys(draws.NAMES)


@dataclass(frozen=True)
class Mistake:
    file: str
    old: str
    new: str
    caught_by: str
    says: str
    command: str = "default"


STREAM = "samples = zip(prompts.uid_B.tolist(), prompts.sample_B.tolist(), strict=True)"
DIGEST = 'struct.pack("<qqq", seed, uid, sample)'
MISTAKES = {
    "top-p ignored": Mistake(SAMPLING, "sampling.top_p < 1.0", "sampling.top_p < 0.0", "top-p", "at top_p=0.6"),
    "top-p not asked for": Mistake(SETTINGS, "top_p=kwargs.top_p", "top_p=1.0", "top-p", "at top_p=0.6"),
    "the rest of top-p": Mistake(
        SAMPLING, "TopPLogitsWarper(sampling.top_p)", "TopPLogitsWarper(1 - sampling.top_p)", "top-p", "keep to top_p"
    ),
    "top-k ignored": Mistake(SAMPLING, "sampling.top_k > 0", "sampling.top_k > 500", "top-k", "at top_k=3"),
    "top-k one too large": Mistake(
        SAMPLING,
        "TopKLogitsWarper(sampling.top_k)",
        "TopKLogitsWarper(sampling.top_k + 1)",
        "top-k",
        "with 3 likelier ones",
    ),
    "top-k one too small": Mistake(
        SAMPLING, "TopKLogitsWarper(sampling.top_k)", "TopKLogitsWarper(sampling.top_k - 1)", "top-k", "to top_k=2"
    ),
    "no temperature": Mistake(
        SAMPLING, "allowed_BV = scaled_BV\n", "allowed_BV = logits_BV.float()\n", "temperature", "near 1, not"
    ),
    "temperature the wrong way": Mistake(
        SAMPLING, "logits_BV.float() /", "logits_BV.float() *", "temperature", "were drawn at a temperature near"
    ),
    "temperature twice": Mistake(
        SAMPLING,
        "allowed_BV = scaled_BV\n",
        "allowed_BV = scaled_BV / sampling.temperature\n",
        "temperature",
        'of the request "temperature"',
    ),
    "validation's temperature": Mistake(
        SETTINGS,
        "temperature=kwargs.temperature",
        "temperature=rollout.val_kwargs.temperature",
        "temperature",
        "near 0.1, not",
        "validation sampled",
    ),
    "greedy rollouts": Mistake(
        SETTINGS, "do_sample=kwargs.do_sample", "do_sample=False", "temperature", "greedy, although do_sample=True"
    ),
    "the same in each row": Mistake(
        SAMPLING, DIGEST, 'struct.pack("<q", seed)', "draws-differ", "samples of a prompt repeat each other"
    ),
    "the same in each sample": Mistake(
        SAMPLING, DIGEST, 'struct.pack("<qq", seed, uid)', "draws-differ", "samples of a prompt repeat"
    ),
    "the same for each prompt": Mistake(
        SAMPLING, DIGEST, 'struct.pack("<qq", seed, sample)', "draws-differ", "prompts repeat each other"
    ),
    "the same on each rank": Mistake(
        SAMPLING,
        STREAM,
        "samples = zip(range(len(prompts)), prompts.sample_B.tolist(), strict=True)",
        "draws-differ",
        "engines repeat each other",
    ),
    "the same in each step": Mistake(SETTINGS, "-1 if validate else step", "0", "draws-differ", "steps repeat"),
    "samples not numbered": Mistake(
        ROWS, "torch.arange(n).repeat(len(prompts))", "torch.zeros(n * len(prompts)).long()", "draws-differ", "samples"
    ),
    "validation samples": Mistake(
        SETTINGS, "kwargs = rollout.val_kwargs if validate else rollout", "kwargs = rollout", "validation", "likeliest"
    ),
    "validation is greedy": Mistake(
        SETTINGS,
        "do_sample=kwargs.do_sample",
        "do_sample=kwargs.do_sample and not validate",
        "validation",
        "are the likeliest, though val_kwargs.do_sample=True",
        "validation sampled",
    ),
    "validation never the same": Mistake(
        SAMPLING,
        "torch.Generator().manual_seed(seed_of(sampling.seed, uid, sample, turn))",
        "torch.default_generator",
        "validation",
        "prompts differently the second time",
        "validation sampled",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_named(model: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mistake = MISTAKES[name]
    put_in(mistake, monkeypatch)
    found = draws.findings(drawn(model, *COMMANDS[mistake.command]))
    failed = {name: outcome.detail for name, outcome in found.items() if outcome.ok is False}
    assert failed.keys() == {mistake.caught_by}, found
    assert mistake.says in failed[mistake.caught_by]
    assert "look at trainer/rollout/settings.py:" in failed[mistake.caught_by]


def test_mistakes_of_others_are_theirs(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that is one token too long, and engines with other weights."""
    engine = changed("trainer/rollout/hf.py", "torch.stack(masks, 1)", "torch.stack(masks[:1] + masks[:-1], 1)")
    with monkeypatch.context() as patch:
        patch.setattr(hf, "HfEngine", engine.HfEngine)
        assert statuses(draws.findings(drawn(model))) == RIGHT
    other = Engines(model)
    for parameter in other.engines[0].model.parameters():
        parameter.mul_(1.01)
    monkeypatch.setitem(globals(), "Engines", lambda folder: other)
    found = draws.findings(drawn(model))
    assert statuses(found) == dict.fromkeys(draws.NAMES)
    assert all("see rollout-logprobs and weight-sync" in outcome.detail for outcome in found.values())


def put_in(mistake: Mistake, patch: pytest.MonkeyPatch) -> None:
    module = changed(mistake.file, mistake.old, mistake.new)
    for user, name in ((hf, "draw"), (hf, "uniform_streams"), (group, "sampling_of"), (ask_engines, "repeat")):
        if hasattr(module, name):
            patch.setattr(user, name, getattr(module, name))
    if mistake.file == ROWS:
        patch.setitem(globals(), "repeat", module.repeat)


def changed(file: str, old: str, new: str) -> types.ModuleType:
    """A module of the trainer with this text in place of that."""
    source = (ROOT / file).read_text()
    assert source.count(old) == 1, old
    module = types.ModuleType(file.removesuffix(".py").replace("/", "."))
    exec(compile(source.replace(old, new), str(ROOT / file), "exec"), module.__dict__)
    return module
