"""No view shows a secret, of whatever kind and in whatever shape; and what is no secret stays to be seen."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from argparse import Namespace
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

import numpy
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from devkit.agent.replay import _lines as replay_lines
from devkit.agent.show import main as show
from devkit.console import report_error
from devkit.debug.crash_page import crash_page
from devkit.debug.inworker import caught, ended, keeps, snapshot, statements
from devkit.debug.inworker.as_documents import to_json
from devkit.debug.inworker.dap_frames import Node, References, evaluated, exception_info, variables
from devkit.debug.inworker.records import Identity
from devkit.debug.inworker.redaction import scrub, scrub_start
from devkit.debug.inworker.sources import source_around
from devkit.debug.inworker.values import LARGE, SMALL, error_line, evaluate_log, summarise
from devkit.debug.rows import JobRow
from devkit.doctor.examine import _shown as as_shown
from devkit.doctor.onnode.facts import Collective
from devkit.doctor.plan import Demand, place
from devkit.doctor.records import DoctorRecord, Finding
from devkit.doctor.view import lines as doctor_lines
from devkit.lint.read import Wish
from devkit.lint.run import lint
from devkit.lint.source import Source
from devkit.lint.view import lines as lint_lines
from devkit.logs import redact, view
from devkit.logs.collect import Left, LogFile, of_log
from devkit.logs.order import first_error
from devkit.records import Cut, ErrorRecord, SmokeRecord
from devkit.smoke.checks.outcome import Outcome
from devkit.smoke.report import junit_xml, write_report
from devkit.smoke.results import Results
from devkit.smoke.run import record_of
from devkit.smoke.view import PlainView
from tests.debug.planted import HEX, KINDS, NAMELESS, STRUCTURES, TEXTS, WORD, Plain, Secret, made, run
from tests.growth import assert_linear
from trainer.agent.again import Compared, Difference, Recorded

WHO = Identity("01", "w" * 8, "n1", "10.0.0.5", "host", 7, role="Worker", rank=1, python="3.11.7")
# Any example tells as much as a shorter one, and shrinking takes minutes. Two secrets of a kind differ in their random
# characters alone: one of each kind, in each shape, is enough in a run, and the next run has others.
ONE = settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
MANY = settings(ONE, max_examples=20)
VERBS_OF = 4  # of each kind the verbs have every fourth shape, of each shape six kinds: they hide by what the rest do
CONTEXTS = ("hover", "watch", "summary", "repl")


class Here:
    """A stop whose expressions are evaluated by the test's own thread."""

    def run(self, job: Any, timeout: float) -> Any:
        return job()


# ---- the views


def crash_views(error: BaseException) -> dict[str, str]:
    """All that is shown of a program that raised: the snapshot, its page, the debugger's words on the exception."""
    document = snapshot.take(error, WHO, "task", budget=60.0)
    for frame in document["frames"]:
        frame["source"] = None  # it is the test's own
    text = crash_page(document, (), time.time(), everything=True).plain
    return {
        "snapshot": json.dumps(document),
        "page": text,
        "line": error_line(error),
        "information": json.dumps({**exception_info(error)}),
    }


def live_views(frame: FrameType, name: str) -> dict[str, str]:
    """What a debugger shows of a frame that is stopped: its variables, opened up, and the value of an expression."""
    node = Node(Here(), frame, "locals")  # type: ignore[arg-type]
    found = {"variables": json.dumps(opened(node, References(), 6))}
    for context in CONTEXTS:
        answer, _ = evaluated(node, {"expression": name, "context": context}, References())
        found[context] = json.dumps(answer)
    found["log"] = evaluate_log(f"it is {{{name}}}", frame)
    return found


def opened(node: Node, references: References, depth: int) -> list[Any]:
    shown = variables(node, {}, references)
    below = [each["variablesReference"] for each in shown if depth and each["variablesReference"]]
    return [shown, [opened(references.get(number), references, depth - 1) for number in below]]


def hang_views(frame: FrameType) -> dict[str, str]:
    """What `devkit hang` gets of a thread that is in a loop, and of the names of its function."""
    line = statements.describe({1: frame}, {1: "MainThread"})[0]["lines"][0]  # its callers are the test's own
    assert line["loop"]["loop"] == "while value is not None", line
    return {"hang": json.dumps(line), "keeps": json.dumps(keeps.of_function(frame))}


def ended_views(text: str) -> dict[str, str]:
    """And of a thread that has ended by an exception, or is in the handler of one."""
    thread = threading.Thread(target=str)
    thread.start()
    thread.join()
    try:
        raise ConnectionError(text)
    except ConnectionError as error:
        ended.note(thread, error)
        handled = caught.handled()[threading.get_ident()]
    assert handled["said"] and ended._raised[thread]["said"]
    return {"handled": handled["said"], "ended": ended._raised[thread]["said"]}


def value_views(value: Any) -> dict[str, str]:
    texts = {f"text {limits.text}": summarise(value, limits) for limits in (SMALL, LARGE)}
    return texts | {f"document {limits.text}": json.dumps(to_json(value, limits)) for limits in (SMALL, LARGE)}


def text_views(text: str) -> dict[str, str]:
    """What is made of a log: the bundle's file, and the first error on the page, as a record, and in the bundle."""
    name = "worker-" + "ab" * 28 + "-01000000-77.err"
    log = f'{text}\nTraceback (most recent call last):\n  File "/job/a.py", line 7, in main\nValueError: {text}\n'
    file = LogFile("n" * 56, "10.0.0.1", name, log)
    job = JobRow(job_id="01000000", status="FAILED", entrypoint=f"sh -c '{text}'", message=text)
    left = Left(job, tuple(of_log(file)), (file,), ())
    found = first_error(left.events)
    record = view.record(left, found)
    return {
        "log": redact.text(log),
        "page": view.page(left, found).plain,
        "record": json.dumps(record),
        "bundle": json.dumps(redact.document({"job": {"message": text}, "first": record})),
        **ended_views(text),
    }


def verb_views(text: str) -> dict[str, str]:
    """What the verbs that look at a training say of it: of a check that failed by it, or of a command that has it."""
    return smoke_views(text) | doctor_views(text) | lint_views(text) | agent_views(text) | error_views(text)


def smoke_views(text: str) -> dict[str, str]:
    """The record of a run, its file for CI, its page, and the log that is kept with it."""
    results = Results(names=("rewards", "run"))
    results.add("rewards", lambda: Outcome(False, f"ValueError: {text}"))
    results.failed("run", f"the trainer failed: {text}")
    plan = SimpleNamespace(kept={"reward": text}, cut=(Cut("reward", text, "", "it is the test's", True),))
    record = record_of(cast(Any, plan), SmokeRecord(1.0, {}, results.all, ()))
    with TemporaryDirectory() as folder:
        log = Path(folder, "failure.log")
        log.write_text(text)
        written = write_report(record, Path(folder, "report"), logs={"failure.log": log})
        files = [each for each in Path(folder, "report").rglob("*") if each.is_file()]
        views = {f"smoke, {each.name}": unescape(each.read_text()) for each in files}
    page = io.StringIO()
    view = PlainView(Console(file=page), Console(file=page))
    view.note(f"kept: {text}")
    for each in record.checks:
        view.check(each)
    return views | {
        "smoke, junit": unescape(junit_xml(written)),
        "smoke --json": json.dumps(written.to_json()),
        "smoke": page.getvalue(),
    }


def doctor_views(text: str) -> dict[str, str]:
    finding = Finding("retriever", ("node-1",), f"it failed: {text}", f"of {text}", f"curl {text}", (text,))
    failed = Collective("gloo", 2, "failed", detail=text)
    demand = Demand("trainer.main_ppo", "run.sh:1", 1, 1, gpus=False, retriever=text)
    found = DoctorRecord("", 1.0, (), (), (failed,), (place(demand, []),), (as_shown(finding),))
    page = io.StringIO()
    for line in doctor_lines(found):
        Console(file=page, width=400).print(line, soft_wrap=True)
    return {"doctor": page.getvalue(), "doctor --json": json.dumps(found.to_json())}


def lint_views(text: str) -> dict[str, str]:
    """Of a line with a mistake in it, before and behind what is to be hidden."""
    line = " ".join(text.split())
    if set(line) & set("$`#"):  # a shell reads another word there, which is no secret
        return {}
    script = f"python -m trainer.main_ppo trainer.nnode=1 {line} trainer.nnode=2\n"
    record = lint([Source.of_text("run.sh", script)], Wish(None, None))
    assert record.findings
    return {"lint": "\n".join(each.plain for each in lint_lines(record)), "lint --json": json.dumps(record.to_json())}


def agent_views(text: str) -> dict[str, str]:
    turn = {"sampled": text, "sampled_ids": [1], "logp": [0.0], "answered": text, "answered_ids": [2], "reward": 0.0}
    sample = {"row": "r", "prompt": text, "ended": "done", "score": 0.0, "turns": [turn | {"seconds": 0.0}]}
    with TemporaryDirectory() as folder:
        file = Path(folder, "1.jsonl")
        file.write_text(json.dumps(sample) + "\n")
        views = {name: printed(lambda json=json: show(file, 1, None, json=json)) for name, json in SHOWN_AS.items()}
    compared = Compared(1, 0.0, Difference(f"it said {text}", text, text))
    recorded = Recorded(1, (text,), ("", text), (0.0,), "done", None)
    views["agent replay"] = "\n".join(each.plain for each in replay_lines(compared, recorded))
    return views


SHOWN_AS = {"agent show": False, "agent show --json": True}


def error_views(text: str) -> dict[str, str]:
    """Of any verb that ends with an error."""
    problem = ErrorRecord(f"it failed: {text}", f"try {text}", 1)
    return {"error": printed(lambda: report_error(problem, {}, as_json=True))}


def printed(act: Callable[[], object]) -> str:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        act()
    return out.getvalue()


OWN_THREAD = ThreadPoolExecutor(1, "views")


def all_views(value: Any) -> dict[str, str]:
    """Of a value that a frame holds, and that an exception of it carries.

    In a thread of its own: most views show the frames around it, too, and of pytest and Hypothesis there are fifty.
    """
    return OWN_THREAD.submit(_all_views, value).result()


def _all_views(value: Any) -> dict[str, str]:
    try:
        failing(value)
    except Seen as error:
        live = {f"live, {view}": text for view, text in error.views.items()}
        return {**live, **crash_views(error), **value_views(value)}


class Seen(Exception):
    """What was seen of a frame before this was raised in it, kept where no view looks."""

    @property
    def views(self) -> dict[str, str]:
        return VIEWS.pop()


VIEWS: list[dict[str, str]] = []


def failing(value: Any) -> NoReturn:
    while value is not None:
        VIEWS.append(live_views(sys._getframe(), "value") | hang_views(sys._getframe()))
        break
    raise Seen(value, f"with {value}")


def assert_hidden(secret: Secret, views: dict[str, str], what: object = "") -> None:
    seen = {view: text for view, text in views.items() if secret.leaks(text)}
    assert not seen, (what, secret, seen)


# ---- secrets


@pytest.mark.parametrize("kind", KINDS)
def test_no_view_shows_a_secret_in_a_structure(kind: str) -> None:
    @ONE
    @given(KINDS[kind].texts)
    def planted(secret: Secret) -> None:
        for shape, hold in STRUCTURES.items():
            assert_hidden(secret, all_views(hold(KINDS[kind].name, secret.text)), shape)

    planted()


@pytest.mark.parametrize("kind", KINDS)
def test_no_view_shows_a_secret_in_a_text(kind: str) -> None:
    turn = list(KINDS).index(kind)

    @ONE
    @given(KINDS[kind].texts)
    def planted(secret: Secret) -> None:
        for number, (shape, hold) in enumerate(TEXTS.items()):
            text = hold(KINDS[kind].name, secret.text)
            assert_hidden(secret, all_views(text), shape)
            assert_hidden(secret, text_views(text), shape)
            if (number + turn) % VERBS_OF == 0:
                assert_hidden(secret, verb_views(text), shape)

    planted()


@pytest.mark.parametrize("kind", [kind for kind, facts in KINDS.items() if facts.by_look])
def test_no_view_shows_a_secret_that_has_no_name(kind: str) -> None:
    @ONE
    @given(KINDS[kind].texts)
    def planted(secret: Secret) -> None:
        for shape, hold in NAMELESS.items():
            value = hold(KINDS[kind].name, secret.text)
            assert_hidden(secret, all_views(value), shape)
            if isinstance(value, str):
                assert_hidden(secret, text_views(value), shape)

    planted()


@MANY
@given(KINDS["password"].texts)
def test_a_secret_of_the_frame_is_hidden_wherever_else_it_stands_there(secret: Secret) -> None:
    """By its look nothing could be known of it; but the frame has it under its name."""
    for holds in (by_its_name, by_its_field):
        try:
            holds(secret.text)
        except Seen as error:
            assert_hidden(secret, {**error.views, **crash_views(error)})


def by_its_name(password: str) -> None:
    said = f"cannot log in as me:{password}, rank 3"
    VIEWS.append(live_views(sys._getframe(), "said"))
    raise Seen(said)


def by_its_field(text: str) -> None:
    login = Namespace(user="me", password=text)
    text = ""
    said = f"cannot log in as {login.user}:{login.password}"
    VIEWS.append(live_views(sys._getframe(), "said"))
    raise Seen(said)


@MANY
@given(
    KINDS["password"].texts,
    st.sampled_from(["db_password", "hf_token", "api_key", "settings.secret", "keys['api_key']"]),
)
def test_eval_of_a_secret_by_its_name(secret: Secret, expression: str) -> None:
    db_password = hf_token = api_key = secret.text
    settings, keys = Namespace(secret=secret.text), {"api_key": secret.text}  # noqa: F841 - named by the expression
    node = Node(Here(), sys._getframe(), "locals")  # type: ignore[arg-type]
    for context in ("hover", "watch", "summary"):
        answer, _ = evaluated(node, {"expression": expression, "context": context}, References())
        assert_hidden(secret, {context: json.dumps(answer)}, db_password and hf_token and api_key and expression)


COMMANDS = [
    "sshpass -p {} ssh node1",
    "mysql -u root -p{} rl",
    "mysql -u root -p {} rl",
    "docker login -u me -p {} registry",
    "curl -u me:{} https://host/",
    "curl --user me:{} https://host/",
    "redis-cli -h cache -a {} ping",
]
LOGINS = [
    *COMMANDS,
    "machine api.wandb.ai login user password {}",
    "requests.get(url, auth=('me', '{}'))",
    "the password '{}' was refused",
    'invalid password "{}" for user me',
    "Server=db;User=me;Password={};Encrypt=True",
    "Server=db;Uid=sa;Pwd={};Encrypt=True",
    "export DB_PW={}",
    "<settings><db.password>{}</db.password></settings>",
    '<login password="{}"/>',
    "openssl rsa -in key.pem -passin pass:{} -out x",
    "https://me:{}@host/path",
    "redis://:{}@host:6379/0",
    "GET /login?user=me&password={}&next=/",
    "Cookie: session={}; theme=dark",
    "X-Api-Key: {}",
    "Authorization: Token {}",
]


@MANY
# One that begins with a hyphen would be an option of its own.
@given(st.sampled_from(LOGINS), run(WORD + "!$*_+-", 14).filter(lambda text: not text.startswith("-")))
def test_a_login_in_a_command_or_a_message(form: str, password: str) -> None:
    secret = Secret(password, password)
    assert_hidden(secret, {"text": scrub(form.format(password))}, form)
    assert_hidden(secret, text_views(form.format(password)), form)
    if form in COMMANDS:
        assert_hidden(secret, value_views(form.format(password).split(" ")), form)


MORE_LOOKS: dict[str, st.SearchStrategy[Secret]] = {
    "discord": made("https://discord.com/api/webhooks/123456789012345678/{}", WORD, 68),
    "shopify": made("shpat_{}", HEX, 32),
    "linear": made("lin_api_{}", WORD, 40),
    "square": made("sq0atp-{}", WORD, 22),
    "twilio": made("SK{}", HEX, 32),
    "mailgun": made("key-{}", HEX, 32),
    "telegram": made("https://api.telegram.org/bot123456789:AA{}/getMe", WORD, 33),
    "entra": made("abc8Q~{}", WORD, 34),
    "wandb": made("wandb login --relogin {}", HEX, 40),
    "spoken of": made("the API key {} was refused", WORD, 40),
    "in a header": made("Access token: {}", WORD, 40),
}


@pytest.mark.parametrize("kind", MORE_LOOKS)
def test_a_key_is_known_by_its_look_or_by_the_words_before_it(kind: str) -> None:
    @ONE
    @given(MORE_LOOKS[kind])
    def planted(secret: Secret) -> None:
        assert_hidden(secret, text_views(f"before {secret.text} after"))
        assert_hidden(secret, value_views({"said": secret.text}))
        if " " in secret.text and "login" in secret.text:
            assert_hidden(secret, value_views(secret.text.split(" ")))

    planted()


def test_a_password_that_begins_like_a_variable_is_hidden() -> None:
    assert "PvedUTvDAn9cY" not in scrub("the password '$PvedUTvDAn9cY' was refused")
    for name in ("$DB_PASSWORD", "$pw", "${TOKEN}"):  # the variable's name, and not its value
        assert name in scrub(f"docker login -u me -p {name} registry")


def test_arguments_that_only_look_like_a_login_are_shown() -> None:
    for words in (
        ["ssh", "-p", "2222", "node1"],
        ["mkdir", "-p", "/data/rl"],
        ["docker", "run", "-u", "1000", "-p", "80:80"],
    ):
        assert all(repr(word) in summarise(words, LARGE) for word in words)
        assert scrub(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize("length", [40, 100, 160, 700])
def test_a_secret_at_the_cut_of_a_long_text_leaves_no_part_of_itself(length: int) -> None:
    for kind in ("rsa", "hugging face", "url", "password"):
        secret = _first(kind)
        text = "x" * (length - 20) + f" password={secret.text} and more " + "y" * 4000
        assert not secret.leaks(scrub_start(text, length)), kind


@lru_cache
def _first(kind: str) -> Secret:
    found: list[Secret] = []

    @settings(max_examples=1, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(KINDS[kind].texts)
    def draw(secret: Secret) -> None:
        found.append(secret)

    draw()
    return found[0]


def test_a_key_file_read_line_by_line_or_begun_in_its_middle() -> None:
    secret = _first("rsa")
    lines = secret.text.splitlines(keepends=True)
    assert_hidden(secret, all_views(lines))
    assert_hidden(secret, {"text": scrub("".join(lines[3:]))})
    prefixed = "\n".join(f"(Worker pid=7) {line.strip()}" for line in lines)
    assert_hidden(secret, text_views(prefixed))
    assert "after it" in scrub(secret.text + "\nafter it") and "before" in scrub("before\n" + secret.text)


def test_parts_of_a_url_are_no_way_around() -> None:
    secret = _first("url")
    assert_hidden(secret, all_views(urlsplit(secret.text)))


def test_source_lines_show_code_and_no_literal_secret(tmp_path: Any) -> None:
    file = tmp_path / "train.py"
    secret = _first("hugging face")
    code = [
        "password = getpass.getpass('password: ')",
        "token = tokenizer.decode(next_token)",
        "login(token=token, api_key=settings.api_key)",
    ]
    file.write_text("\n".join([*code, f'password = "{secret.core}"', f"login('{secret.text}')", "done()"]))
    lines = source_around(str(file), 3, 10)["lines"]  # type: ignore[index]
    assert lines[:3] == code and lines[5] == "done()"
    assert_hidden(secret, {"source": "\n".join(lines)})


# ---- what is no secret


@dataclass
class Sampling:
    max_tokens: int = 512
    stop_token: str = "<|im_end|>"
    skip_special_tokens: bool = True


Batch = namedtuple("Batch", ["token_ids", "num_tokens", "pad_token"])

HARMLESS: dict[str, Any] = {
    "token_ids": [1, 2, 3, 50256],
    "num_tokens": 12345678,
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token_id": 1,
    "max_tokens": 512,
    "token": "<|im_start|>",
    "tokens": ["the", "Ġcat", "▁sat"],
    "next_tokens": torch.tensor([3, 4]),
    "tokenizer": "Qwen/Qwen2.5-0.5B-Instruct",
    "tokens_per_second": 14300.5,
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "path": "/data/checkpoints/ppo/default/global_step_4/actor",
    "commit": "6b1ac0f3e2d1c0b9a8f7e6d5c4b3a29181706f5e",
    "digest": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "package": "scikit-learn, sk-learn, sk-learn-contrib-pipelines-v2",
    "task": "risk-assessment-2026-large-language-model",
    "key": "actor_rollout_ref.actor.optim.lr",
    "keys": ["input_ids", "attention_mask"],
    "key_states": torch.zeros(2),
    "primary_key": "row_17",
    "query_key_value": "attention.query_key_value",
    "author": "somebody",
    "secretary": "a job",
    "passed": True,
    "forward_pass": "done",
    "pass_rate": 0.75,
    "num_passes": 3,
    "compass": "north",
    "PWD": "/root/work",
    "pwd": "~/work",
    "session_keys": None,
    "url": "http://10.0.0.1:8265/api/jobs/",
    "bucket": "s3://rl-data/gsm8k/train.parquet",
    "address": "ray://10.0.0.1:10001",
    "basic": "a basic tokenizer of words",
    "bearer": None,
    "signature": "forward(input_ids, attention_mask)",
    "session": "session_2026-11-23_05-20-44_123456_789",
    "actor": "Actor(PPOWorker, 3f2a9c0d1e2b3a4f5e6d7c8b01000000)",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "overrides": ["data.max_prompt_length=256", "trainer.n_gpus_per_node=2", "--config-name=ppo"],
    "config": {"max_tokens": 512, "pad_token_id": 0, "key": "loss", "auth": None, "author": "me"},
    "sampling": Sampling(),
    "batch": Batch([1, 2], 2, "<pad>"),
    "pairs": [("lr", 1e-6), ("tokenizer", "gpt2"), ("num_tokens", "7")],
    "rows": [{"name": "reward", "value": "0.5"}, {"name": "num_tokens", "value": "17"}],
    "array": numpy.arange(4),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_training_holds_is_shown(name: str) -> None:
    value = HARMLESS[name]
    views = value_views({name: value, "other": 1})
    scope: dict[str, Any] = {"look": live_views, "sys": sys}
    exec(f"def hold({name}): return look(sys._getframe(), {name!r})", scope)
    views |= scope["hold"](value)
    assert [view for view, text in views.items() if "<redacted>" in text] == []


LINES = [
    "INFO max_tokens=512 pad_token=<pad> eos_token: </s> num_tokens: 123456 token_ids=[1, 2, 3]",
    "step 17 tokens/s 14300 tokens=16384 loss=0.25 kl=0.001 key=loss",
    "ValueError: token 50257 is out of range of the vocabulary",
    "KeyError: 'attention_mask'",
    "SyntaxError: invalid token: expected ':'",
    "loading Qwen/Qwen2.5-0.5B-Instruct at 6b1ac0f3e2d1c0b9a8f7e6d5c4b3a29181706f5e from /data/models",
    "the tokenizer has no pad_token: '<|endoftext|>' is taken",
    "export HF_TOKEN=$HF_TOKEN WANDB_API_KEY=${WANDB_API_KEY}",
    "--tokenizer gpt2 --max-tokens 512 --pad-token <pad> --key loss",
    "sk-learn 1.5, scikit-learn, a basic configuration of authors and keys",
    "GET http://10.0.0.1:8265/api/jobs/raysubmit_1a2b3c4d5e6f7a8b?verbose=1 200",
    "password: None, api_key=None, token=None, secret is missing",
    "PWD=/root/work OLDPWD=/root pwd=. Pwd: C:\\work",
    "pwd = os.getcwd() in the shell: $ pwd",
    "the private key /home/me/.ssh/id_rsa_of_2024 is missing",
    "the api key is missing, an access token was expected here, secret keys: none",
    "<think>the key</think> <answer>17</answer> <tool_call>{}</tool_call> <password></password>",
    "task-key-attention SKU SK1 key-value sort-key-0123456789abcdef, 10:AM, 12:ABCDEF",
    "authentication is required: RAY_AUTH_MODE=token",
]


@pytest.mark.parametrize("line", LINES)
def test_what_a_training_logs_is_shown(line: str) -> None:
    assert scrub(line) == line
    assert redact.text(line) == line


def test_what_is_redacted_is_left_alone() -> None:
    for kind in KINDS:
        for shape in TEXTS.values():
            once = scrub(shape(KINDS[kind].name, _first(kind).text))
            assert scrub(once) == once
    login = summarise(Plain("db_password", "correct-horse"))
    assert scrub(login) == login == "<Plain user='me', db_password='<redacted>'>"


# ---- how long it takes


LONG: list[Callable[[int], str]] = [
    lambda n: "a" * 20 * n,
    lambda n: "a." * 10 * n,
    lambda n: "password" * 2 * n,
    lambda n: "password=" * 2 * n,
    lambda n: "token " * 3 * n,
    lambda n: "://a:" * 3 * n,
    lambda n: "-----BEGIN RSA PRIVATE KEY-----" * n,
    lambda n: '"password": "' * n,
    lambda n: "\\" * 10 * n,
    lambda n: "name: A_TOKEN\n" * n,
    lambda n: "eyJ" + "a" * 10 * n,
    lambda n: "sk-" + "a-" * 5 * n,
    lambda n: "mysql -p " * n,
    lambda n: "key = " + " " * 10 * n,
    lambda n: '"password", "x", ' * n,
    lambda n: "<password>" * n,
    lambda n: "<password " * n,
    lambda n: "api key " * 2 * n,
    lambda n: "wandb login --a " * n,
    lambda n: "redis-cli " * n,
    lambda n: "redis-cli -pass pass:" * n,
    lambda n: "1" * 10 * n + ":A",
    lambda n: "a8Q~" * 3 * n,
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: text(3)[:12])
def test_a_long_text_takes_a_time_that_grows_with_its_length(text: Callable[[int], str]) -> None:
    assert_linear(lambda size: scrub(text(size)), 2500)
