"""Files that nobody means well with: lint answers in a time that grows with their size, and does not hang or crash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import devkit.lint
from devkit.errors import UsageError
from devkit.lint import room, view
from devkit.lint.check_keys import _audit
from devkit.lint.launch import MOST_OVERRIDES, MOST_TRAININGS
from devkit.lint.read import LARGEST, Wish, sources
from devkit.lint.records import LintRecord
from devkit.lint.run import MOST_OF_A_RULE, lint
from devkit.lint.source import LONGEST_LINE, Source
from devkit.logs import redact
from devkit.reading import json_of, read_regular, yaml_of
from tests.pace import stretched

PPO = "python3 -m verl.trainer.main_ppo"
HERE = str(Path(devkit.lint.__file__).parent)


def linted(text: str, name: str = "run.sh") -> LintRecord:
    return lint([Source.of_text(name, text)], Wish())


# ---- scripts that are long in one respect

LONG: dict[str, Callable[[int], str]] = {
    "assignments": lambda n: "".join(f"a{i}=1\n" for i in range(n)) + f"{PPO}\n",
    "one variable, set and read": lambda n: "A=$A:1\n" * n + f"{PPO} a.b=$A\n",
    "assignments on one line": lambda n: "A=1; " * n,
    "prefixes": lambda n: "".join(f"A{i}=1 " for i in range(n)) + f"{PPO}\n",
    "exports that a job does not get": lambda n: "export NCCL_DEBUG=1\n" * n + "ray job submit -- python x.py\n" * n,
    "variables that are not exported": lambda n: "".join(f"NCCL_{i}=1\n" for i in range(n)) + "python x.py\n",
    "settings that slow down": lambda n: "export NCCL_DEBUG=TRACE RAY_DEBUG=0\n" * n,
    "ifs": lambda n: "if [ $RANK = 0 ]; then\npython p.py --local_dir ~/d\nfi\n" * n + "ray start --address=h:1\n",
    "nested ifs": lambda n: "if true; then\n" * n + f"{PPO}\n" + "fi\n" * n,
    "elifs": lambda n: "if a; then b\n" + "elif [ $RANK = 0 ]; then c\n" * n + "fi\n",
    "functions": lambda n: "".join(f"f{i}() {{ echo; }}\n" for i in range(n)),
    "programs of a pipe": lambda n: "echo" + " | cat" * n + "\n",
    "pipes": lambda n: "ray job submit --no-wait -- python x.py a.b=1 | tee x\n" * n,
    "commands on one line": lambda n: "echo <a> > b; " * n,
    "a chain": lambda n: "true && " * n + "echo\n",
    "redirections": lambda n: "cmd " + ">a " * n + "\n",
    "quotes beside each other": lambda n: "echo " + "'a'" * n + "\n",
    "variables in quotes": lambda n: 'echo "' + "$A " * n + '"\n',
    "substitutions in each other": lambda n: "$(" * n + "echo" + ")" * n + "\n",
    "scripts in a script": lambda n: "A=1\nbash -c 'echo $A $B'\n" * n,
    "here-documents": lambda n: "cat <<E\nhi \\ \nE\n" * n,
    "blanks behind backslashes": lambda n: "# a comment\necho a \\ \n b\n" * n,
    "comments that end a command": lambda n: "echo a.b=1 \\\n# c\n a.b=1\n" * n,
    "comments in a block": lambda n: "echo \\\n" + "# a comment\n" * n + " a.b=1\n",
    "appends to a list": lambda n: "A=()\n" + "A+=(x)\n" * n + 'echo "${A[@]}"\n',
    "a list that is used often": lambda n: "A=(a b c)\n" + "echo ${A[@]}\n" * n,
    "a list that grows and is used": lambda n: "A=()\n" + "A+=()\necho ${A[@]}\n" * n,
    "variables in variables": lambda n: "".join(f"A{i + 1}=$A{i}\n" for i in range(n)) + f"run $A{n}\n",
    "variables that double": lambda n: "A0=x\n" + "".join(f"A{i + 1}=$A{i}$A{i}\n" for i in range(n)),
    "variables that come to nothing": lambda n: "A0=\n" + "".join(f"A{i + 1}=" + f"$A{i}" * 9 + "\n" for i in range(n)),
    "undefined variables": lambda n: "".join(f"tee $u{i}\n" for i in range(n)),
    "environment of a container": lambda n: "docker run --gpus all " + "-e A=1 " * n + "image\n",
    "containers of srun": lambda n: "srun docker run " * n + "\n",
    "blocks of a page": lambda n: "```bash\nA=1\nrun $B\n```\n" * n,
    "fences of a page": lambda n: "```x\n" * n,
    "commands of YAML": lambda n: "type: task\ncommands:\n" + "- echo é $A\n" * n,
    "environment of YAML": lambda n: "env:\n" + "".join(f"- A{i}=1\n" for i in range(n)) + "commands:\n- echo $x\n" * n,
}
ENDINGS = {"of a page": "a.md", "of YAML": "a.yml"}


def steps(job: Callable[[], object]) -> int:
    """How many lines lint itself runs for a job: one that goes round in itself counts at each turn."""
    count = 0

    def line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(HERE) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        job()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", LONG)
def test_twice_the_script_takes_twice_the_steps(name: str) -> None:
    file = next((file for ending, file in ENDINGS.items() if name.endswith(ending)), "run.sh")

    def taken(size: int) -> int:
        return steps(lambda: linted(LONG[name](size), file))

    few, some, many = taken(60), taken(120), taken(240)
    assert many - some <= 2.6 * (some - few) + 80, (few, some, many)


# ---- scripts as long as may be: what is quadratic in C would take hours here, and the test's deadline ends it

WHOLE: dict[str, tuple[str, Callable[[], str]]] = {
    "overrides": ("run.sh", lambda: f"{PPO} " + " ".join(f"a.k{i}=1" for i in range(70_000))),
    "assignments": ("run.sh", lambda: "A=1\n" * 70_000),
    "assignments on one line": ("run.sh", lambda: "A=1;" * 70_000),
    "ifs": ("run.sh", lambda: "if a; then\nb\nfi\n" * 20_000),
    "nested ifs": ("run.sh", lambda: "if a; then\n" * 20_000 + "fi\n" * 20_000),
    "lower-case variables": ("run.sh", lambda: "".join(f"a{i}=1\n" for i in range(50_000)) + f"{PPO}\n"),
    "commands of one line": ("run.sh", lambda: "echo >b;" * 20_000),
    "an override of brackets": ("run.sh", lambda: f"{PPO} a.b=" + "[" * 200_000),
    "lines": ("run.sh", lambda: "\n" * 900_000),
    "secrets, and what is quoted": (
        "run.sh",
        lambda: "".join(f"export A{i}_API_KEY=k{i:020x}\n" for i in range(15_000)) + f"{PPO} " + "a.b=1 x.y=2 " * 9_000,
    ),
    "dots": ("run.sh", lambda: f"{PPO} \\\n#c\n " + "a." * 400_000 + "\n a.b=1\n"),
    "a prompt that is no shell": ("run.sh", lambda: ")))((( ;; fi done |& " * 40_000),
    "commands of docker": ("run.sh", lambda: "srun docker run " * 20_000),
    "fences": ("a.md", lambda: "```x\n" * 180_000),
    "brackets of YAML": ("a.yml", lambda: "[" * 50_000),
    "lists of YAML": ("a.yml", lambda: "- " * 50_000),
    "commands of YAML": ("a.yml", lambda: "commands:\n" + "- é\n" * 30_000),
}


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WHOLE)
def test_a_script_as_long_as_may_be_is_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SECONDS", 1.0)
    file, text = WHOLE[name]
    record = linted(text(), file)
    assert all(len(finding.source) <= LONGEST_LINE for finding in record.findings)


def test_what_is_quoted_takes_no_longer_in_a_file_of_many_secrets() -> None:
    secrets = tuple(f"k{at:020x}" for at in range(6000))
    words = "a key that this trainer does not have: did you mean trainer.nnodes, or one of another version, as 0.4? "
    assert redact.without(f"{words}{secrets[7][3:9]}", secrets).endswith("0.4? <redacted>")
    began = time.process_time()
    for _ in range(100):
        redact.without(words, secrets)
    assert time.process_time() - began < 0.5  # seconds; it is about 0.02


# ---- and what is said then


def test_of_a_long_line_the_part_around_the_finding_is_shown() -> None:
    filler = " ".join(f"data.k{i}=é" for i in range(1000))
    record = linted(f"echo {filler} \\ \n  b\n")
    [finding] = [each for each in record.findings if each.rule == "broken-continuation"]
    at = finding.column - finding.source_column
    assert finding.source[at] == "\\" and len(finding.source) < 2 * LONGEST_LINE and finding.column > 10_000


@pytest.mark.parametrize("width", [40, 60, 80, None])
def test_the_marks_stand_below_what_they_mark_in_every_terminal(width: int | None) -> None:
    record = linted(f"{PPO} trainer.default_local_dir=/a/long/path/of/a/folder/of/runs data.train_batchsize=64\n")
    page = [line.plain for line in view.lines(record, width)]
    at = next(number for number, line in enumerate(page) if "[unknown-key]" in line)
    source, marks = page[at + 1], page[at + 2]
    marked = source[marks.index("^") : marks.rindex("^") + 1]
    assert "data.train_batchsize=64".startswith(marked) and len(marked) >= 10
    assert width is None or max(len(source), len(marks)) <= width


def test_what_is_not_looked_at_is_told() -> None:
    record = linted(f"{PPO} " + " ".join(f"a.k{i}=1" for i in range(MOST_OVERRIDES + 1)))
    assert any("words of a command are checked" in finding.message for finding in record.findings)
    unknown = [finding for finding in record.findings if finding.rule == "unknown-key"]
    assert len(unknown) == MOST_OF_A_RULE + 1
    assert [each.message for each in unknown if "more of the same kind" in each.message] == [
        "and 300 more of the same kind"
    ]
    record = linted(f"{PPO} a.b=1\n" * (MOST_TRAININGS + 1))
    assert any("training commands of a file are checked" in finding.message for finding in record.findings)


def test_a_command_is_judged_once() -> None:
    _audit.cache_clear()
    linted(f"{PPO} trainer.nnodes=2\n" * 20)
    assert _audit.cache_info().misses == 1


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "- " * 50_000, "{a: " * 20_000, "? " * 20_000, "a: " + "[" * 101 + "]" * 101]
)
def test_deep_yaml_is_told_and_ends_nothing(text: str) -> None:
    """In a process of its own: what fails here fails by a signal."""
    code = (
        "import sys; from devkit.lint.run import *\nrecord = lint([Source('a.yml', sys.stdin.buffer.read())], Wish())"
    )
    code += "\nprint([finding.message for finding in record.findings])"
    done = subprocess.run(
        [sys.executable, "-c", code], input=text.encode(), capture_output=True, timeout=stretched(120)
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search(rb"invalid YAML: .*\bnest", done.stdout), done.stdout  # ours, or that of the parser


def test_yaml_that_refers_to_itself_many_times_is_read() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)), "commands:", "- echo $u"]
    assert [finding.rule for finding in linted("\n".join(lines), "a.yml").findings] == ["undefined-variable"]


ODD = ["[" * 200_000, '{"env_vars":' * 50_000, "- " * 100_000, "\0", "{a: &x [*x]}", "0x" + "f" * 10**6]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_a_runtime_environment_of_any_form(tmp_path: Path, text: str) -> None:
    (tmp_path / "env.yaml").write_text(text)
    script = tmp_path / "run.sh"
    for option in ("--runtime-env env.yaml", f"--runtime-env-json '{text[:1000]}'"):
        script.write_text(f"export NCCL_DEBUG=INFO\nray job submit {option} -- python x.py\n")
        lint([Source(str(script), script.read_bytes())], Wish())


CONFIGS = ["[" * 200_000, "", "[]", "\xff", '{"hidden_size": 1e999}', '{"hidden_size": [1]}', "{" * 9]


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_a_model_whose_config_is_of_any_form(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    linted(f"{PPO} actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path={tmp_path}\n")
    linted(f"{PPO} actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path=~nobody-here/{'x' * 5000}\n")


# ---- what is no file, or too large a one


@contextmanager
def refused(saying: str) -> Iterator[None]:
    with pytest.raises(UsageError, match=saying):
        yield


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_bytes(b"#" * (LARGEST + 1))
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    for name, saying in {
        str(tmp_path / "fifo"): "not a file",
        "/dev/zero": "not a file",
        "/dev/tty": "",
        str(tmp_path): "not a file",
        str(tmp_path / "loop"): "symbolic links",
        str(tmp_path / "large"): "too large",
        str(tmp_path / "sparse"): "too large",
        "a\0b": "",
        "x" * 5000: "name too long",
        "/proc/self/mem": "",
    }.items():
        with refused(f"(?i){saying}"):
            sources((name,), (), None)
    assert sources(("/proc/self/status",), (), None)[0].data.startswith(b"Name:")
    with refused("too large"):
        sources(("-",), (), b"#" * (LARGEST + 1))
    assert sources((), ("bash", "x" * 5000), None)[0].name == "command"


def test_stdin_is_read_up_to_the_limit() -> None:
    command = [sys.executable, "-m", "devkit", "lint", "-"]
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(command, stdin=endless, capture_output=True, text=True, timeout=stretched(120))
    said = ["error: - is too large to be a launch script", "hint: pass the script itself"]
    assert (done.returncode, done.stderr.splitlines()) == (2, said)


def test_readers(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert read_regular(file, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(file, 4)
    assert (json_of("[1]"), yaml_of("a: [1]")) == ([1], {"a": [1]})
