"""A model's folder, looked into as far as it takes to know that it can be loaded: no weight is read, no code is run."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

LARGEST_JSON = 2**26  # bytes: beyond any configuration or index
LARGEST_SIZE = 2**31 - 1
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
    *("n_embd", "n_layer", "n_head", "n_positions", "n_inner", "d_model", "d_ff", "num_layers", "num_heads"),
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_LAYOUT = "give a folder in the layout of transformers"
_COPY = "copy it again: the file is incomplete"
_POINTER = b"version https://git-lfs"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d{1,6})\.", re.ASCII)
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")

Fault = tuple[str, str]  # what is wrong, said of the folder; what to do


class Unreadable(ValueError):
    """A JSON file that cannot be read; the message says why."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises Unreadable, OSError."""
    size = file_size(path)
    if size > LARGEST_JSON:
        raise Unreadable(f"it has {size:,} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise Unreadable("it is not text") from error
    except ValueError as error:
        raise Unreadable(f"it is not valid JSON ({str(error).splitlines()[0]:.80})") from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise Unreadable(f"it holds a {type(found).__name__}, and no object")
    return found


def file_size(path: Path) -> int:
    """Raises OSError unless it is a file: a pipe would let its reader wait for ever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "it is not a file")
    return status.st_size


def read_text(path: Path) -> str:
    """The text of a small file. Raises OSError for what is none, UnicodeDecodeError."""
    size = file_size(path)
    if size > LARGEST_JSON:
        raise OSError(None, f"it has {size:,} bytes")
    return path.read_text(encoding="utf-8")


def model_faults(folder: Path) -> Iterator[Fault]:
    """What is wrong with configuration and weights."""
    if not (folder / "config.json").exists():
        yield "has no config.json", _LAYOUT
        return
    config, wrong = _object(folder, "config.json")
    yield from wrong
    if config is not None:
        sizes, wrong_sizes = _sizes(config)
        yield from wrong_sizes
        yield from _weight_faults(folder, sizes)
    if (folder / "generation_config.json").exists():
        yield from _object(folder, "generation_config.json")[1]


def tokenizer_faults(folder: Path) -> Iterator[Fault]:
    there = [name for name in TOKENIZERS if (folder / name).exists()]
    if not there:
        yield "has no tokenizer files", "put them there, or set tokenizer_path"
        return
    for name in there:
        yield from _tokenizer_faults(folder / name)
    if (folder / "tokenizer_config.json").exists():
        yield from _object(folder, "tokenizer_config.json")[1]


def _object(folder: Path, name: str) -> tuple[dict[str, Any] | None, list[Fault]]:
    try:
        return read_object(folder / name), []
    except Unreadable as error:
        return None, [(f"has a {name} that cannot be read: {error}", _COPY)]
    except OSError as error:
        return None, [(f"has a {name} that cannot be read: {error.strerror or error}", _COPY)]


def _sizes(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The sizes of the language model that a configuration is of, and what is wrong with them."""
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else dict(config)
    wrong: list[Fault] = []
    if not isinstance(config.get("model_type"), str) and "auto_map" not in config:
        wrong.append(("has a config.json without a model_type", _LAYOUT))
    found = {name: merged[name] for name in SIZES if merged.get(name) is not None}
    for name, value in found.items():
        counts = value if isinstance(value, list) and value else [value]
        if not all(type(count) is int and 0 < count <= LARGEST_SIZE for count in counts):
            wrong.append((f"has a config.json with {name}={value!r:.40}", "sizes are whole numbers from 1"))
    return ({} if wrong else found), wrong


# ------------------------------------------------------------------------------------------------------------ weights


def _weight_faults(folder: Path, sizes: Mapping[str, Any]) -> Iterator[Fault]:
    """Of the files that transformers would take, in its order."""
    for stem, ending in (("model", "safetensors"), ("pytorch_model", "bin")):
        single, index = folder / f"{stem}.{ending}", folder / f"{stem}.{ending}.index.json"
        if single.exists():
            yield from _file_faults(single, sizes, None)
            return
        if index.exists():
            yield from _index_faults(index, sizes)
            return
    yield "has no weights: neither model.safetensors nor an index of several", _LAYOUT


def _index_faults(index: Path, sizes: Mapping[str, Any]) -> Iterator[Fault]:
    found, wrong = _object(index.parent, index.name)
    yield from wrong
    if found is None:
        return
    places = found.get("weight_map")
    if not isinstance(places, dict) or not places or not all(_is_name(name) for name in places.values()):
        yield f"has a {index.name} that does not say where the weights are", _COPY
        return
    yield from _layer_faults(places, sizes)
    for name in sorted(set(places.values())):
        wanted = {tensor for tensor, place in places.items() if place == name}
        if not (index.parent / name).exists():
            yield f"lacks {name}, which its {index.name} names", _COPY
        else:
            yield from _file_faults(index.parent / name, sizes, wanted)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value and "\0" not in value


def _file_faults(path: Path, sizes: Mapping[str, Any], wanted: set[str] | None) -> Iterator[Fault]:
    """`wanted` are the tensors that it should hold; None: nobody says."""
    try:
        size = file_size(path)
        with path.open("rb") as file:
            head = file.read(len(_POINTER))
    except OSError as error:
        yield f"has a {path.name} that cannot be read: {error.strerror or error}", _COPY
        return
    if head == _POINTER:
        yield f"has a pointer of Git LFS in place of {path.name}", "fetch the file: git lfs pull"
    elif path.suffix == ".safetensors":
        yield from _tensor_faults(path, size, sizes, wanted)
    elif head[:2] not in (b"PK", b"\x80\x02"):  # a zip, or torch's older format
        yield f"has a {path.name} that is none of torch's", _COPY


def _tensor_faults(path: Path, size: int, sizes: Mapping[str, Any], wanted: set[str] | None) -> Iterator[Fault]:
    from safetensors import SafetensorError, safe_open  # it holds header, offsets and file size against each other

    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict
    except (SafetensorError, OSError) as error:
        said = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
        yield f"has a {path.name} of {size:,} bytes that is incomplete ({said:.80})", _COPY
        return
    lacking = sorted((wanted or set()) - shapes.keys())
    if lacking:
        yield f"has a {path.name} without {lacking[0]}, which its index puts there", _COPY
    if not shapes:
        yield f"has a {path.name} without a tensor", _COPY
    if wanted is None:
        yield from _layer_faults(shapes, sizes)
    rows, width = sizes.get("vocab_size"), sizes.get("hidden_size") or sizes.get("n_embd")
    for name, shape in shapes.items():
        if name.endswith(_EMBEDDINGS) and rows and width and shape != [rows, width]:
            what = f"{name} of shape {shape}, and a config.json of {rows} x {width}"
            yield f"has {what}", "take both from the same model"


def _layer_faults(names: Collection[str], sizes: Mapping[str, Any]) -> Iterator[Fault]:
    """Of all tensors of a model: a layer that is not among them would begin with random weights."""
    wanted = next((sizes[key] for key in ("num_hidden_layers", "n_layer", "num_layers") if key in sizes), 0)
    there = {int(match[1]) for name in names if (match := _LAYER.search(name))}
    lacking = next(number for number in count() if number not in there)
    if there and isinstance(wanted, int) and lacking < wanted:
        what = f"a config.json of {wanted} layers, and weights without layer {lacking}"
        yield f"has {what}", "take both from the same model"


# ---------------------------------------------------------------------------------------------------------- tokenizer


def _tokenizer_faults(path: Path) -> Iterator[Fault]:
    try:
        if not file_size(path):
            yield f"has an empty {path.name}", _COPY
            return
    except OSError as error:
        yield f"has a {path.name} that cannot be read: {error.strerror or error}", _COPY
        return
    if path.name == "tokenizer.json":
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises this very type
            yield f"has a tokenizer.json that cannot be read: {str(error).splitlines()[0]:.120}", _COPY
