"""A YAML file of ROLL as its own start script reads it: hydra's `defaults`, and `${}` resolved."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trainer.config.yaml_text import checked, texts_in
from trainer.errors import ConfigError

_EXAMPLES = "examples"  # where ROLL's start script stands, which its paths are relative to
_REFERS = re.compile(r"\$\{\s*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class RollFile:
    """What a file says, its `defaults` included."""

    values: Mapping[str, Any]
    variables: frozenset[str]  # names that it refers to by `${}`: they need not be keys of ROLL


def read(path: str, name: str) -> RollFile:
    """The file `name`, with or without .yaml, in the folder `path`: in this one, or below examples/.

    A key with dots, `actor_train.device_mapping: ...`, is one in its section. Raises ConfigError.
    """
    folder = _folder(path)
    name = name.removesuffix(".yaml")
    _require_loadable(folder, folder / f"{name}.yaml", set())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `defaults` without `_self_`, as all of ROLL's are
            with initialize_config_dir(str(folder), version_base=None, job_name="roll"):
                found = compose(name)
        raw = OmegaConf.to_container(found)
        values = OmegaConf.to_container(found, resolve=True)
    except HydraException as error:
        said = str(error) or str(error.__cause__ or error.__context__ or type(error).__name__)
        first = said.partition("\n")[0]
        hint = f"{folder} has {_listed(folder)}" if str(error) else "check what its ${} refer to"  # as its cause says
        raise ConfigError(f"{folder / name}.yaml: {first}", hint=hint) from error
    except OmegaConfBaseException as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{folder / name}.yaml: {said}", hint="check what its ${} refer to") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{folder / name}.yaml: {' '.join(str(error).split())}", hint="it must be YAML") from error
    except (OSError, ValueError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__  # of a key or `defaults` of an odd kind
        raise ConfigError(f"{folder / name}.yaml cannot be read: {said}", hint="it must be a file of ROLL") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{folder / name}.yaml is no mapping of keys to values", hint="it must be a file of ROLL")
    named = {str(key): value for key, value in values.items()}
    return RollFile(_nested(named, f"{folder / name}.yaml"), frozenset(_referred(raw)))


def _require_loadable(folder: Path, file: Path, seen: set[Path]) -> None:
    """Of a file, and of those that its `defaults` name. What is not there, hydra says. Raises ConfigError."""
    file = Path(os.path.normpath(file))
    if file in seen:
        return
    seen.add(file)
    try:
        said = texts_in(checked(file))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise ConfigError(f"{file}: {why}", hint="give a file of ROLL, in YAML") from error
    for name in _defaults(said):
        base = folder if name.startswith("/") else file.parent
        _require_loadable(folder, base / f"{name.lstrip('/').removesuffix('.yaml')}.yaml", seen)


def _defaults(said: Any) -> Iterator[str]:
    """The files that a document's `defaults` name, without their packages: `../config/envs@_here_`, `group: name`."""
    listed = said.get("defaults") if isinstance(said, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, str):
            yield each.partition("@")[0]
        for group, names in each.items() if isinstance(each, dict) else ():
            words = str(group).partition("@")[0].split()
            for name in names if isinstance(names, list) else [names]:
                yield "/".join([*words[-1:], str(name).partition("@")[0]])


def _folder(path: str) -> Path:
    for found in (Path(path).expanduser(), Path(_EXAMPLES) / path):
        if found.is_dir():
            return found.resolve()
    raise ConfigError(
        f"--config_path {path}: no such folder, here or below {_EXAMPLES}/", hint="give the YAML's folder"
    )


def _listed(folder: Path) -> str:
    names = sorted(each.stem for each in folder.glob("*.yaml"))
    return ", ".join(names[:8]) + (" and more" if len(names) > 8 else "") if names else "no YAML file"


def _nested(values: Mapping[str, Any], file: str) -> dict[str, Any]:
    """With dotted keys in their sections, where they are given last."""
    found: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        if "." in key:
            *sections, last = key.split(".")
            at = found
            for section in sections:
                inner = at.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise ConfigError(
                        f"{file}: {key}, and {section} is no section", hint=f"write {section} as a section"
                    )
                at = inner
            at[last] = value
    return found


def _referred(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield from _REFERS.findall(node)
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _referred(inner)
