"""KubeRay's custom resource definitions, as strict as an API server with `fieldValidation=Strict`."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

FOLDER = Path(__file__).with_name("kuberay")


def problems(document: dict[str, Any]) -> list[str]:
    """What the definition refuses, each with its path; what a server prunes in silence is refused, too."""
    validator = _validators()[document["apiVersion"], document["kind"]]
    errors = validator.iter_errors(document)
    return sorted(f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors)


@cache
def _validators() -> dict[tuple[str, str], Draft7Validator]:
    return {key: Draft7Validator(schema) for key, schema in _schemas()}


def _schemas() -> Iterator[tuple[tuple[str, str], Any]]:
    for path in FOLDER.glob("*.yaml.xz"):
        crd = yaml.load(lzma.decompress(path.read_bytes()), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in crd["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
            schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
            yield (f"{crd['group']}/{version['name']}", crd["names"]["kind"]), schema


def _strict(schema: Any) -> Any:
    """Of OpenAPI to JSON Schema: int-or-string, nothing but the properties, defaults filled in before."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {key: schema[key] for key in ("type", "enum", "pattern", "minimum", "maximum", "maxLength") if key in schema}
    if "items" in schema:
        made["items"] = _strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _strict(schema["additionalProperties"])
    if "properties" in schema:
        fields = schema["properties"]
        made["properties"] = {name: _strict(field) for name, field in fields.items()}
        made["required"] = [name for name in schema.get("required", ()) if "default" not in fields.get(name, {})]
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    return made
