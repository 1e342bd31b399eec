"""How a page's sessions are read, before anything is typed (`tests/walks/test_pages.py` types them)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from devkit.cli import app
from scripts.generate_docs import ROOT
from tests.walks.pages import FENCE, NOT_TYPED, SHELL, Saved, Typed, commands, compare, steps, untold, with_meant
from tests.walks.test_pages import PAGES
from trainer.config import resolve
from trainer.main_ppo import parse

EVERY_PAGE = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = """
Save this as `job.py`:

```python
print(1)
```

<!-- terminal 1 -->
```console
$ devkit run -- python job.py
devkit: debugging job 02000000
```

In a second terminal:

<!-- terminal 2 -->
```console
$ devkit attach
(devkit rank 1) p k
250
^C
```

<!-- not typed: it needs an editor -->
```console
$ devkit vscode install
```

```
$ a listing
```
"""


def test_a_page_says_what_to_save_and_what_to_type_where() -> None:
    assert steps(PAGE) == [
        Saved("job.py", "print(1)\n"),
        Typed(1, "$ ", "devkit run -- python job.py", ("devkit: debugging job 02000000",)),
        Typed(2, "$ ", "devkit attach"),
        Typed(2, "(devkit rank 1) ", "p k", ("250",)),
        Typed(2, "", "^C"),
    ]


def test_no_two_pages_save_different_programs_under_one_name() -> None:
    """Somebody who follows both would overwrite one with the other."""
    saved: dict[str, dict[str, str]] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for step in steps(page.read_text(encoding="utf-8")):
            if isinstance(step, Saved):
                saved.setdefault(step.path, {})[step.text] = page.name
    assert {"job.py", "stuck.py"} <= set(saved)
    assert {path: list(texts.values()) for path, texts in saved.items() if len(texts) > 1} == {}


def kinds_of_sessions(page: Path) -> set[str]:
    """Of the fences in which something is typed."""
    fences = FENCE.finditer(page.read_text(encoding="utf-8"))
    return {fence["kind"] for fence in fences if any(line.startswith(SHELL) for line in fence["body"].splitlines())}


@pytest.mark.parametrize(
    "page", [each for each in EVERY_PAGE if kinds_of_sessions(each)], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_each_page_with_sessions_is_typed_or_says_why_not(page: Path) -> None:
    """`tests/walks/test_pages.py` types the pages that it knows; of these only what is `console` is a session."""
    if page.relative_to(ROOT).as_posix() in PAGES:
        text = page.read_text(encoding="utf-8")
        sessions = [fence for fence in FENCE.finditer(text) if SHELL in fence["body"] and fence["kind"] != "console"]
        assert [fence["body"] for fence in sessions if not NOT_TYPED.search(text[: fence.start()])] == []
    else:
        assert re.search(r"<!-- not typed: [^>]+ -->", page.read_text(encoding="utf-8"))


GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_each_fence_with_commands_is_typed_or_says_itself_why_not(page: Path) -> None:
    """A word for the whole page would hide a command that nobody has ever typed."""
    assert untold(page.read_text(encoding="utf-8")) == []


def test_a_fence_that_lists_commands_needs_a_word_of_its_own() -> None:
    plain = "```\ndevkit ps\n```\n"
    assert untold(f"<!-- not typed: it is the first -->\n{plain}\n{plain}") == ["devkit ps"]
    assert (
        untold("```\nerror: no cluster\n```\n```python\nimport ray\n```\nSave this as `a.sh`:\n\n```bash\nray x\n```")
        == []
    )


def test_commands_are_read_whole() -> None:
    assert commands(PAGE) == ["devkit run -- python job.py", "devkit attach", "devkit vscode install"]
    assert commands("```\ndevkit ps \\\n    --all  # why\npython -m a ...\n```\n") == [
        "devkit ps      --all",
        "python -m a",
    ]


WORDS = [(page.name, command) for page in GUIDES for command in commands(page.read_text(encoding="utf-8"))]
KEYED = "python -m trainer.main_ppo"


@pytest.mark.parametrize(("page", "command"), [each for each in WORDS if each[1].startswith(KEYED)])
def test_a_training_command_of_a_page_has_only_keys_that_there_are(page: str, command: str) -> None:
    words = shlex.split(command.split(" 2>&1")[0])[3:]
    wrong = "no key" if "data.train_batchsize=64" in words else None  # the page says what is said of that one
    problems = [each.message for each in resolve(parse([w for w in words if w != "..."]).overrides).problems]
    assert [each for each in problems if wrong is None or wrong not in each] == []


@pytest.mark.parametrize(("page", "command"), [each for each in WORDS if each[1].startswith("devkit ")])
def test_a_command_of_devkits_in_a_page_has_a_verb_and_options_that_there_are(page: str, command: str) -> None:
    words = shlex.split(command.split(" | ")[0])[1:]
    words = words[: words.index("--")] if "--" in words else words
    verb: Any = get_command(app)
    known = {option for each in verb.params for option in each.opts}
    while words and words[0] in getattr(verb, "commands", {}):
        verb = verb.commands[words.pop(0)]
        known |= {option for each in verb.params for option in (*each.opts, *each.secondary_opts)}
    assert verb.name != "devkit" or not words, words
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known | {"--help"}, given - known


def test_a_session_that_begins_with_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="begins with 'hello'"):
        steps("```console\nhello\n```\n")


SHOWN = ("ID          ROLE    WHERE", "...", "4ef79312-1  Worker  job.py:15  3 s")


def test_numbers_may_be_others_and_are_learned() -> None:
    compared = compare(SHOWN, "ID      ROLE  WHERE\n\n00000000-7  Worker  job.py:15  12 s\n")
    assert compared.missing is None
    assert compared.meant["4ef79312-1"] == "00000000-7"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "ID  ROLE  WHERE\n",
        "0-7  Worker  job.py:15  12 s\nID  ROLE  WHERE\n",
        "ID  ROLE  WHERE\n0-7  Driver  x:1  1 s\n",
    ],
    ids=["nothing", "too little", "another order", "other words"],
)
def test_what_is_not_printed_is_missed(said: str) -> None:
    assert compare(SHOWN, said).missing is not None


def test_what_a_page_leaves_out_of_a_line_may_be_anything() -> None:
    assert compare(("Row(index=21, ..., truth='5')",), "Row(index=3, file='a b', truth='7')").missing is None


def test_ids_and_addresses_are_those_of_this_run() -> None:
    meant = {"51446d": "abcdef", "0d1d5c31b596": "ffff5c31b596", "192.0.2.2": "10.77.0.1"}
    assert with_meant("devkit break --clear 51446d", meant) == "devkit break --clear abcdef"
    assert with_meant("devkit crashes show 0d1d", meant) == "devkit crashes show ffff"
    assert with_meant("export RAY_ADDRESS=192.0.2.2:6379", meant) == "export RAY_ADDRESS=10.77.0.1:6379"
    assert with_meant("sleep 3", meant) == "sleep 3"
