"""Rules about variables: never set, never read, not exported, not filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devkit.lint.check_shell import all_words
from devkit.lint.launch import Launch, Unit
from devkit.lint.records import Finding, Severity
from devkit.lint.shell import Assignment, Command
from devkit.lint.source import Span
from devkit.lint.values import Argument
from devkit.lint.words import Piece, Word

# Set by the login, the shell, a scheduler or a container, whatever a script does.
_AROUND = re.compile(
    r"(HOME|USER|LOGNAME|PATH|PWD|OLDPWD|SHELL|HOSTNAME|TMPDIR|LANG|TERM|UID|EUID|PPID|RANDOM|SECONDS|LINENO|IFS|OPTARG"
    r"|OPTIND|REPLY|BASH\w*|PIPESTATUS|FUNCNAME|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CONDA_\w+|SLURM\w*|SBATCH_\w+"
    r"|DSTACK_\w+|PBS_\w+|LSB_\w+|K8S_\w+|KUBERNETES_\w+|POD_\w+|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK"
    r"|NODE_RANK|CUDA_\w+|NVIDIA_\w+|NCCL_\w+|HF_\w+|WANDB_\w+|RAY_\w+|.*_(TOKEN|KEY|SECRET))",
    re.ASCII,
)
# Read by programs, so setting them without export is of no use.
_FOR_PROGRAMS = re.compile(
    r"(RAY|NCCL|RCCL|GLOO|CUDA|HIP|ROCR|HSA|VLLM|SGLANG|HYDRA|TORCH|PYTORCH|TOKENIZERS|OMP)_\w+"
    r"|HF_(HOME|ENDPOINT|TOKEN|HUB_\w+|DATASETS_\w+)|WANDB_(API_KEY|MODE|DIR|PROJECT|ENTITY|BASE_URL)|TRANSFORMERS_CACHE"
    r"|PYTHONPATH|PYTHONUNBUFFERED|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK",
    re.ASCII,
)
_HARMLESS_SOURCE = re.compile(r"(activate|conda\.sh|\.?bashrc|\.?profile|/etc/\S+|setvars\.sh|modules?\S*)$")
_BLANK = re.compile(
    r"<[A-Za-z][\w /.'-]*>|\{?\bYOUR[ _-]\w[\w -]*\}?|\byour[_-]\w+|\b(?:ip|port|address|name) of (?:the )?\w+",
    re.ASCII,
)
_BARE_BLANK = re.compile(rb"[ \t]*(<[A-Za-z][\w -]*>)")
_SHOW = frozenset({"echo", "printf", "die", "usage"})
_SETS_DEFAULT = frozenset({":-", "-", ":=", "=", ":+", "+", ":?", "?"})


def check(launch: Launch) -> Iterator[Finding]:
    for unit in launch.units:
        if not _sources_others(unit):
            yield from _undefined(launch, unit)
        yield from _placeholders(unit)
        yield from _dashes(unit)
        if not unit.is_inner:
            yield from _not_exported(unit)
            if any(training.unit.script.text is unit.script.text for training in launch.trainings):
                yield from _unused(launch, unit)


def _sources_others(unit: Unit) -> bool:
    """Whether it reads another script, which may set anything."""
    return any(
        len(words) > 1 and words[0].text in ("source", ".") and not _HARMLESS_SOURCE.search(words[1].text)
        for _, words in unit.commands
    )


def _undefined(launch: Launch, unit: Unit) -> Iterator[Finding]:
    asked, told = _asked_for(unit), set[str]()
    strict = any(re.match(r"-[a-z]*u|nounset", word.text) for _, words in unit.commands for word in _of_set(words))
    for word in all_words(unit):
        for piece in word.variables:
            name = piece.variable
            if name in told or name in asked or unit.scope.sets(name) or _is_given(launch, piece):
                continue
            told.add(name)
            yield _undefined_finding(word, piece, name, strict)


def _asked_for(unit: Unit) -> set[str]:
    """Variables of which the script asks itself whether they are set: `[ -z "$X" ]`."""
    text = unit.script.text.data.decode("utf-8", "replace")
    return set(re.findall(r"-[zvn]\s+[\"']?\$?\{?(\w+)", text))


def _of_set(words: tuple[Argument, ...]) -> tuple[Argument, ...]:
    return words[1:] if words and words[0].text == "set" else ()


def _is_given(launch: Launch, piece: Piece) -> bool:
    name = piece.variable
    special = not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
    is_set = special or name in launch.environment_names or piece.operator in _SETS_DEFAULT
    return is_set or _AROUND.fullmatch(name) is not None


def _undefined_finding(word: Word, piece: Piece, name: str, strict: bool) -> Finding:
    severity: Severity = "warning" if name.isupper() else "error"  # its caller may set it
    why = "with set -u the script stops there" if strict else _emptied(word, name)
    message = f"{name} is never set"
    hint = f"set it above, or write ${{{name}:?}} if the caller must set it"
    return Finding("undefined-variable", piece.span, message, why, hint, severity)


def _emptied(word: Word, name: str) -> str:
    empty = re.sub(rf"\$\{{{name}\}}|\${name}\b", "", word.raw)
    if len(word.raw) >= 80:
        return "it expands to nothing, and the word is shorter than it looks"
    return f"{word.raw} expands to {empty or 'an empty string'}"


def _unused(launch: Launch, unit: Unit) -> Iterator[Finding]:
    """Lower-case variables that nothing reads; others may be meant for a program."""
    if _sources_others(unit):
        return
    read = _read("\n".join(other.script.text.data.decode("utf-8", "replace") for other in launch.units))
    told: set[str] = set()
    for assignment in unit.script.assignments:
        name = assignment.name
        if name in told or name in unit.script.exports or assignment.value is None or not name.islower():
            continue
        if name not in read:
            told.add(name)
            hint = "use it, or remove it"
            why = "the command is probably missing the option it was meant for"
            yield Finding("unused-variable", assignment.span, f"{name} is set but never used", why, hint)


def _read(text: str) -> set[str]:
    """The variables that a text reads; also in arithmetic, and by name in a command that takes names."""
    places = [
        *re.findall(r"\(\(([^)]*)", text),
        *re.findall(r"\b(?:let|unset|export|declare|local|read|mapfile)\b(.*)", text),
    ]
    return {*_expanded(text), *(name for place in places for name in re.findall(r"\w+", place))}


def _expanded(text: str) -> set[str]:
    return set(re.findall(r"\$\{?[#!]?(\w+)", text))


def _not_exported(unit: Unit) -> Iterator[Finding]:
    """`RAY_ADDRESS=...` on a line of its own, and a program below that should see it."""
    text = unit.script.text.data.decode("utf-8", "replace")
    if re.search(r"^[ \t]*set[ \t]+(-[a-z]*a\b|-o allexport)", text, re.MULTILINE):
        return
    expanded, last = _expanded(text), max((command.at for command, _ in unit.commands), default=0)
    for assignment in unit.script.assignments:
        if not _is_for_programs(unit, assignment) or assignment.name in expanded:
            continue
        if last > assignment.at:
            message = f"{assignment.name} is set but not exported"
            why = "the programs below don't see it"
            yield Finding("not-exported", assignment.span, message, why, f"use export {assignment.name}=...")


def _is_for_programs(unit: Unit, assignment: Assignment) -> bool:
    exported = assignment.exported or assignment.prefix or assignment.name in unit.script.exports
    return assignment.value is not None and not exported and _FOR_PROGRAMS.fullmatch(assignment.name) is not None


def _placeholders(unit: Unit) -> Iterator[Finding]:
    why = "the command is not complete"
    shown = {word for command in unit.script.commands if command.name in _SHOW for word in command.words}
    for word in all_words(unit):
        match = _BLANK.search(word.literal or "") if word not in shown else None
        if match and "://huggingface" not in word.raw:
            message = f"{match[0]} is a placeholder that was not filled in"
            yield Finding("placeholder", word.span, message, why, f"replace it with the real value: {match[0]}")
        elif word.raw in ("...", "…") and word not in shown:
            yield Finding("placeholder", word.span, "... is a placeholder for something left out", why, "write it out")
    for command in unit.script.commands:
        yield from _bare_placeholder(unit, command)


def _bare_placeholder(unit: Unit, command: Command) -> Iterator[Finding]:
    """`<container_id>` without quotes: to the shell, a file to read and one to write."""
    match = _BARE_BLANK.match(unit.script.text.data, command.end) if command.redirects else None
    if match:
        span: Span = unit.script.text.span(*match.span(1))
        message = f"{match[1].decode()} is a placeholder that was not filled in"
        why = "the shell reads from a file with that name and writes to the next word"
        yield Finding("placeholder", span, message, why, f"replace it with the real value: {match[1].decode()}")


def _dashes(unit: Unit) -> Iterator[Finding]:
    """`tee $NAME.log` where the name begins with an unset variable and a dash."""
    for _, words in unit.commands:
        if not words or words[0].text not in ("tee", "cat", "mkdir", "rm", "cp", "mv", "cd"):
            continue
        for argument in words[1:]:
            text = _without_unset(unit, argument.text)
            if text.startswith("-") and not argument.raw.startswith(("-", "'-", '"-')) and "$" in argument.raw:
                message = f"{argument.raw} expands to {text}, which {words[0].text} reads as options"
                why = f"{words[0].text} stops at once" + (", and so does the run" if words[0].text == "tee" else "")
                hint = f"set the variables, or use ./{argument.raw}"
                yield Finding("dash-argument", argument.span, message, why, hint)


def _without_unset(unit: Unit, text: str) -> str:
    """What is left of a text when variables that nothing sets are nothing."""
    sets = unit.scope.sets
    return re.sub(
        r"\$\{(\w+)\}", lambda m: m[0] if sets(m[1]) or _AROUND.fullmatch(m[1]) or m[1].isupper() else "", text
    )
