"""The tables of `docs/config.md` and of the dialects, made from `trainer.config`. `generate_docs.py` puts them in."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator
from types import NoneType, UnionType

from trainer.config import schema, tree, unmet, upstream
from trainer.config.choices import CHOICES, RANGES
from trainer.config.dialects import DIALECTS, DIFFERENCES
from trainer.config.overrides import format_value

# A heading per section with keys of its own; what verl has beside them goes under "Others".
SECTIONS = (
    "data",
    "actor_rollout_ref",
    "actor_rollout_ref.model",
    "actor_rollout_ref.actor",
    "actor_rollout_ref.ref",
    "actor_rollout_ref.rollout",
    "critic",
    "algorithm",
    "custom_reward_function",
    "agent",
    "retriever",
    "trainer",
    "ray_kwargs",
)
NAMES = {int: "integer", float: "number", bool: "True, False", str: "text"}


def keys() -> str:
    """Every key that acts: type or choices, default, and the comment that stands beside it in `schema.py`."""
    rows: dict[str, list[str]] = {}
    for key, type_, comment in _fields(schema.Config, ""):
        rows.setdefault(_section(key), []).append(
            f"| `{key}` | {_cell(_values(key, type_))} | {_cell(_default(key))} | {_cell(comment)} |"
        )
    head = "| key | value | default | |\n|---|---|---|---|"
    return "\n\n".join("\n".join([f"### `{section}`", "", head, *lines]) for section, lines in rows.items())


def _fields(section: type, prefix: str) -> Iterator[tuple[str, object, str]]:
    """Each key with its type and its comment, in the schema's order."""
    hints, comments = typing.get_type_hints(section), _comments_of(section)
    for field in dataclasses.fields(section):
        key, type_ = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(type_) and isinstance(type_, type):
            yield from _fields(type_, key + ".")
        else:
            yield key, type_, comments.get(field.name, "")


def _comments_of(section: type) -> dict[str, str]:
    """Field name -> the comment on its line, else the one above it; a base class's where the field is its."""
    found: dict[str, str] = {}
    for owner in reversed([cls for cls in section.__mro__ if dataclasses.is_dataclass(cls)]):
        lines = inspect.getsource(owner).splitlines()
        for node in ast.parse("\n".join(lines)).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = lines[node.end_lineno - 1].partition("  # ")[2] if node.end_lineno else ""
                above = lines[node.lineno - 2].strip()
                said = beside or (above[2:] if above.startswith("# ") else "")
                found[node.target.id] = said or found.get(node.target.id, "")
    return found


def _values(key: str, type_: object) -> str:
    parts = typing.get_args(type_) if isinstance(type_, UnionType) else (type_,)
    plain = next(part for part in parts if part is not NoneType)
    of = typing.get_args(plain)
    if key in CHOICES:
        said = ", ".join(f"`{choice}`" for choice in CHOICES[key])
    else:
        said = NAMES[of[0] if of else plain]
        said += f", {RANGES[key]}" if key in RANGES else ""
    said = f"list of {said}" if of else said
    return said + (", or `null`" if NoneType in parts else "")


def _default(key: str) -> str:
    origin = tree.default_origins()[key]
    if origin.startswith(tree.FOLLOWS) and key != "trainer.default_local_dir":
        return f"as `{origin.removeprefix(tree.FOLLOWS)}`"
    return f"`{format_value(tree.flatten(schema.Config())[key]) if origin == 'default' else _raw(key)}`"


def _raw(key: str) -> str:
    node: object = schema.Config()
    for name in key.split("."):
        node = getattr(node, name)
    return str(node)


def no_effect() -> str:
    """Every other key that is accepted and does nothing, by section and reason; with the values that are taken."""
    table = upstream._table()
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for key in sorted(table.keys() - unmet.names().keys()):
        entry = table[key]
        only = "" if entry.only is None else ", ".join(f"`{format_value(v)}`" for v in entry.only) or "none"
        groups.setdefault(_section(key), {}).setdefault((entry.why, only), []).append(key)
    head = "| keys | why | accepted |\n|---|---|---|"
    parts = []
    for section in (*SECTIONS, "others"):
        rows = [
            f"| {', '.join(f'`{_short(key, section)}`' for key in keys)} | {_cell(why)} | {only or 'any value'} |"
            for (why, only), keys in groups.get(section, {}).items()
        ]
        if rows:
            title = "### Others" if section == "others" else f"### In `{section}`"
            parts.append("\n".join([title, "", head, *rows]))
    return "\n\n".join(parts)


def unmet_requests() -> str:
    """What a warning is given of, and by which keys, with the values that do not ask for it."""
    rows = []
    for each in unmet.TABLE:
        keys = ", ".join(f"`{key}`{_unless(values)}" for key, values in each.keys.items())
        off = ", ".join(f"`{key}={format_value(value)}`" for key, values in each.off.items() for value in values)
        rows.append(f"| {each.asked} | {each.instead} | {keys} | {off} |")
    head = "| asked for | what happens | by | not with |\n|---|---|---|---|"
    return "\n".join([head, *rows])


def _unless(values: tuple[object, ...]) -> str:
    return f" (unless {', '.join(map(_neutral, values))})" if values else ""


def _neutral(value: object) -> str:
    if isinstance(value, frozenset):
        return f"a list with {', '.join(sorted(value))}"
    return f"`{value}`" if isinstance(value, str) and "$" in value else format_value(value)


def renames() -> str:
    """Keys that are known by another name here."""
    sections = {f"{old}.*": f"{new}.*" for old, new in upstream._SUBTREES.items()}
    rows = [f"| `{old}` | `{new}` |" for old, new in sorted({**sections, **upstream._RENAMES}.items())]
    return "\n".join(["| in verl or Search-R1 | here |", "|---|---|", *rows])


def dialects() -> str:
    """The defaults in which the dialects differ."""
    keys = dict.fromkeys(d.key for name in DIALECTS for d in DIFFERENCES[name])
    defaults = tree.flatten(schema.Config())
    lines = [f"| key | {' | '.join(DIALECTS)} |", "|---" * (len(DIALECTS) + 1) + "|"]
    for key in keys:
        cells = []
        for name in DIALECTS:
            own = [d.value for d in DIFFERENCES[name] if d.key == key]
            cells.append(f"**{format_value(own[0])}**" if own else format_value(defaults[key]))
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _section(key: str) -> str:
    held = [name for name in SECTIONS if key.startswith(name + ".")]
    return max(held, key=len, default="others")


def _short(key: str, section: str) -> str:
    return key if section == "others" else key.removeprefix(section + ".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
