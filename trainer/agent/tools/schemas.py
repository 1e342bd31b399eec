"""verl's `verl.tools.schemas`, for where verl is not installed: the same classes, checked and written the same way.

A chat template writes a schema as JSON, so the order of its names is part of the prompt: it is that of the fields here,
which is verl's. verl makes these with pydantic, which an environment's process need not have. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

_Check = Callable[[Any], Any]  # gives the value that is kept, or raises TypeError


class Model:
    """What these classes have of pydantic's `BaseModel`.

    `_required` and `_optional` are checks by name, in the order in which they are written.
    """

    _required: ClassVar[Mapping[str, _Check]] = {}
    _optional: ClassVar[Mapping[str, tuple[_Check, Any]]] = {}
    _others: ClassVar[bool] = False  # whether names beside these are kept

    def __init__(self, **given: Any) -> None:
        """Raises ValueError that names the field."""
        kind = type(self).__name__
        missing = [name for name in self._required if name not in given]
        if missing:
            raise ValueError(f"{kind} has no {' and no '.join(missing)}")
        self._given: list[str] = []
        checks = {**self._required, **{name: check for name, (check, _) in self._optional.items()}}
        for name, check in checks.items():
            value = given.get(name, self._optional[name][1] if name in self._optional else None)
            try:
                setattr(self, name, check(value) if name in given else value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} of {kind}: {error}") from None
        for name, value in given.items():
            if name in checks or self._others:
                setattr(self, name, getattr(self, name) if name in checks else value)
                self._given.append(name)
        self._order = [*(name for name in checks), *(name for name in self._given if name not in checks)]

    @classmethod
    def model_validate(cls, given: Any, **_: Any) -> Any:
        """Raises ValueError."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"{cls.__name__} is made of a mapping, and not of {given!r:.80}")
        return cls(**given)

    def model_dump(self, *, exclude_unset: bool = False, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        """As a mapping."""
        names = [name for name in self._order if name in self._given or not exclude_unset]
        values = {name: getattr(self, name) for name in names}
        kept = {name: value for name, value in values.items() if not (exclude_none and value is None)}
        return {name: _dumped(value, exclude_unset, exclude_none) for name, value in kept.items()}

    def model_dump_json(self, *, indent: int | None = None, **how: Any) -> str:
        return json.dumps(self.model_dump(**how), indent=indent, ensure_ascii=False)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Model) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # as pydantic's: they can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._order)})"


def _dumped(value: Any, exclude_unset: bool, exclude_none: bool) -> Any:
    if isinstance(value, Model):
        return value.model_dump(exclude_unset=exclude_unset, exclude_none=exclude_none)
    if isinstance(value, dict):
        return {name: _dumped(each, exclude_unset, exclude_none) for name, each in value.items()}
    return [_dumped(each, exclude_unset, exclude_none) for each in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


def _texts(value: Any) -> list[str]:
    return [_text(each) for each in _list(value)]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.80} is no list")
    return value


def _kinds(value: Any) -> str | list[str]:
    return _texts(value) if isinstance(value, list) else _text(value)


def _or_none(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _anything(value: Any) -> Any:
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.80} is neither true nor false")
    return value


class OpenAIFunctionPropertySchema(Model):
    """One parameter."""

    _required: ClassVar = {"type": _kinds}
    _optional: ClassVar = {"description": (_or_none(_text), None), "enum": (_or_none(_list), None)}
    _others: ClassVar = True


def _properties(value: Any) -> dict[str, OpenAIFunctionPropertySchema]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.80} is no mapping")
    return {str(name): OpenAIFunctionPropertySchema.model_validate(each) for name, each in value.items()}


class OpenAIFunctionParametersSchema(Model):
    """All parameters."""

    _required: ClassVar = {"type": _text, "properties": _properties}
    _optional: ClassVar = {"required": (_texts, ())}
    _others: ClassVar = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.required: list[str] = list(self.required)


class OpenAIFunctionSchema(Model):
    """A function: its name, what it is for, and its parameters."""

    _required: ClassVar = {"name": _text, "description": _text}
    _optional: ClassVar = {
        "parameters": (OpenAIFunctionParametersSchema.model_validate, None),
        "strict": (_truth, False),
    }
    name: str
    parameters: Any

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if self.parameters is None:
            self.parameters = OpenAIFunctionParametersSchema(type="object", properties={}, required=[])


class OpenAIFunctionToolSchema(Model):
    """A tool."""

    _required: ClassVar = {"type": _text, "function": OpenAIFunctionSchema.model_validate}
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(Model):
    """A call whose arguments are JSON as text."""

    _required: ClassVar = {"name": _text, "arguments": _text}


class OpenAIFunctionCallSchema(Model):
    """A call."""

    _required: ClassVar = {"name": _text, "arguments": _anything}


class OpenAIFunctionToolCall(Model):
    """A call with its id."""

    _required: ClassVar = {"id": _text, "function": OpenAIFunctionCallSchema.model_validate}
    _optional: ClassVar = {"type": (_text, "function")}


class ToolResponse(Model):
    """What a tool answers: `text`, and with verl pictures and films, for which there is no model here."""

    _optional: ClassVar = {
        "text": (_or_none(_text), None),
        "image": (_or_none(_list), None),
        "video": (_or_none(_list), None),
    }
    text: str | None
    image: list[Any] | None
    video: list[Any] | None

    def is_empty(self) -> bool:
        return not self.text and not self.image and not self.video

    def is_text_only(self) -> bool:
        return bool(self.text) and not self.image and not self.video
