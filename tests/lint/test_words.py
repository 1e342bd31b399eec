"""The parser: any text can be given to it, and what it says of places is true."""

from __future__ import annotations

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.lint.launch import units_of
from devkit.lint.read import Wish, read, slurm_of
from devkit.lint.run import lint
from devkit.lint.shell import parse
from devkit.lint.source import Source, Text, join
from devkit.lint.values import Scope

# Pieces of which scripts are made, so that random texts are often nearly scripts.
PIECES = st.sampled_from(
    [
        *"\"'`$(){}[]<>|&;\\#!~*?=+\n \t",
        *("\\\n", "${", "$((", "<<EOF\n", "EOF\n", "if ", "then ", "fi\n", "for x in ", "do ", "done\n", "case x in "),
        *("esac\n", "bash -c ", "python3 -m verl.trainer.main_ppo ", "trainer.nnodes=", "2", "A=(", "export "),
        *("#SBATCH --nodes=", "docker run --gpus all ", "ray job submit -- ", "| tee ", "\u201c", "测试", "\r", "\0"),
        *("commands:\n- ", "- |\n  ", "```bash\n", "```\n"),
    ]
)
SCRIPTS = st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(SCRIPTS, st.sampled_from(["a.sh", "a.yml", "a.md", "command"]))
def test_no_text_makes_lint_raise(text: str, name: str) -> None:
    source = Source.of_text(name, text)
    for finding in lint([source], Wish()).findings:
        assert 1 <= finding.line <= source.lines
        assert 1 <= finding.column <= len(finding.source) + 1


@settings(max_examples=200, deadline=None)
@given(SCRIPTS)
def test_each_word_stands_where_it_is_said_to(text: str) -> None:
    source = Source.of_text("a.sh", text)
    for command in parse(Text.whole(source)).commands:
        for word in command.words:
            assert source.data[word.span.start : word.span.end].decode("utf-8", "replace") == word.raw


WORDS = st.lists(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12), min_size=1
)


@settings(max_examples=200, deadline=None)
@given(WORDS)
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    text = "python3 " + " \\\n    ".join(shlex.quote(word) for word in words)
    (unit, *_) = units_of(Text.whole(Source.of_text("a.sh", text)), {})
    ((_, arguments), *_) = unit.commands
    assert [argument.text for argument in arguments[1:]] == words


def arguments_of(text: str, **given: str) -> list[str]:
    """The arguments of `run` in a script."""
    unit, *_ = units_of(Text.whole(Source.of_text("a.sh", text)), given)
    return next([a.text for a in arguments] for command, arguments in unit.commands if command.name == "run")


def test_what_words_come_to() -> None:
    cases = {
        "A=1\nB=x$A\nrun $B ${B}y \"$B z\" '$B'": ["run", "x1", "x1y", "x1 z", "$B"],
        "A='a=1 b=2'\nrun $A \"$A\"": ["run", "a=1", "b=2", "a=1 b=2"],
        'A=(a=1 "b c") \nA+=(d) # more\nrun "${A[@]}" e': ["run", "a=1", "b c", "d", "e"],
        "run ${N:-3} ${M:-$X}": ["run", "3", "${M}"],
        "N=${N:-3}\nrun $N": ["run", "3"],
        "A=1\nif x; then A=2; fi\nrun $A": ["run", "${A}"],
        "if x; then A=2\nrun $A\nfi": ["run", "2"],
        "for i in 1 2; do\nrun $i\ndone": ["run", "${i}"],
        "run a \\\n  b>log c 2>&1": ["run", "a", "b", "c"],
        "A=1\nA=2 run $A": ["run", "1"],
        "run [a,'b'] ~/x": ["run", "[a,b]", "${HOME}/x"],
        "read -r A <<< x\nrun $A": ["run", "${A}"],
        "run $(x) `y` $((1 + 2))": ["run", "$(...)", "$(...)", "$(...)"],
        "A=$A\nrun $A": ["run", "${A}"],
        ">log run a >>log b": ["run", "a", "b"],
    }
    for script, expected in cases.items():
        assert arguments_of(script) == expected, script


def test_what_slurm_sets_is_known() -> None:
    assert arguments_of("run $SLURM_NNODES", SLURM_NNODES="2") == ["run", "2"]
    script = "#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8\n#SBATCH --time=30-00:00:00\n#SBATCH --mem=200G\n"
    assert slurm_of(script) == {"nodes": 4, "gpus-per-node": 8, "time": 30}


def test_a_script_in_quotes_sees_the_variables_around_it() -> None:
    text = 'A=1\nsrun bash -c "\n  B=2\n  run $A \\$B \\"x y\\" \'\\d\'\n"'
    source = Source.of_text("a.sh", text)
    inner = units_of(Text.whole(source), {})[1]
    command, arguments = inner.commands[-1]
    assert [argument.text for argument in arguments] == ["run", "1", "2", "x y", "\\d"]
    assert source.place(command.span).line == 4
    assert source.place(arguments[1].span).column == text.splitlines()[3].index("$A") + 1


def test_assignments_above_a_command_are_not_of_that_command_alone() -> None:
    script = parse(Text.whole(Source.of_text("a.sh", "A=1\nB=2 \\\nC=3 run\n")))
    assert [assignment.name for assignment in script.assignments] == ["A"]
    assert [prefix.name for prefix in script.commands[0].prefixes] == ["B", "C"]


def test_what_goes_on_behind_a_redirection_belongs_to_the_command() -> None:
    (command,) = parse(Text.whole(Source.of_text("a.sh", "run a.b=1 2>&1 c.d=2 >log e.f=3\n"))).commands
    assert [word.raw for word in command.words] == ["run", "a.b=1", "c.d=2", "e.f=3"]


def test_places_are_in_characters() -> None:
    source = Source.of_text("a.sh", "测试 abc\nx\n")
    place = source.place(Text.whole(source).span(7, 10))
    assert (place.line, place.column, place.width) == (1, 4, 3)
    assert source.line(place) == ("测试 abc", 1)
    assert source.place(Text.whole(source).span(7, 12)).width == 3  # on its first line only


def test_joined_texts_keep_their_places() -> None:
    whole = Text.whole(Source.of_text("a", "0123456789"))
    both = join([whole.cut(2, 4), whole.cut(6, 9)], b"\n")
    assert both.data == b"23\n678"
    assert [both.offsets[i] for i in (0, 1, 3, 4, 5, 6)] == [2, 3, 6, 7, 8, 9]


def test_a_long_and_deep_script_is_read_all_the_same() -> None:
    deep = "$(" * 3000 + ")" * 3000 + "\n" + "{ " * 2000 + '"${a:-' * 500
    lint([Source.of_text("a.sh", deep)], Wish())


def test_the_lines_of_a_yaml_block_are_its_lines_in_the_file() -> None:
    block = "  - |\n\n    if true; then\n      ray start --head\n    fi\n"
    text = f"# 测试\ncommands:\n  - pip install x\n{block}  - >\n    a\n    b\n"
    source = Source.of_text("a.dstack.yml", text)
    launch, found = read(source, Wish())
    places = {argument.text: source.place(argument.span) for _, _, words in launch.commands for argument in words}
    assert found == ()
    assert (places["install"].line, places["install"].column) == (3, 9)
    assert (places["--head"].line, places["--head"].column) == (7, 17)
    assert places["a"].line == places["b"].line == 9  # folded: at its beginning


def test_a_dstack_file_tells_nodes_gpus_and_environment() -> None:
    text = "type: task\nnodes: 2\nenv:\n  A: '1'\nresources:\n  gpu: {name: H200, count: 8}\ncommands: [\"run $A\"]\n"
    launch, _ = read(Source.of_text("x.yaml", text), Wish())
    assert launch.nodes == 2
    assert launch.gpu is not None and launch.gpu.memory == 141
    assert [argument.text for argument in launch.commands[0][2]] == ["run", "1"]


def test_the_blocks_of_a_page_are_one_script_after_the_other() -> None:
    text = "# Page\n```bash\nA=1\n```\ntext (\n```python\nprint('$B')\n```\n```bash\nrun $A\n```\n"
    source = Source.of_text("page.md", text)
    launch, _ = read(source, Wish())
    ((_, command, words),) = launch.commands
    assert [word.text for word in words] == ["run", "1"]
    assert source.place(command.span).line == 10


def test_scopes_know_the_last_certain_value() -> None:
    script = parse(Text.whole(Source.of_text("a.sh", "A=1\nif x; then\nA=2\nfi\nB=$A\n")))
    scope = Scope(script, {})
    assert scope.value("A", 3, ()).text == "1"
    assert not scope.value("A", 1000, ()).known
    assert scope.sets("A") and scope.sets("B") and not scope.sets("C")
