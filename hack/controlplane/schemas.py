"""Writes JSON schemas of every kind that a running API server knows, and runs kubeconform with them, without network.

An unknown field is a fault here; the API server only drops it with a warning.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hack.controlplane.tools import cache

Schema = dict[str, Any]
REF = "#/definitions/"
PATTERN = "{{ .ResourceKind }}-{{ .Group }}-{{ .ResourceAPIVersion }}.json"  # for kubeconform; files are in lower case
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def write(openapi: Schema, folder: Path) -> list[Path]:
    """Write a schema file for each kind of an OpenAPI v2 document (/openapi/v2) into the folder. Return the files,
    sorted.
    """
    definitions = {name: _make_strict(name, schema) for name, schema in openapi["definitions"].items()}
    paths = []
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            closure = {needed: definitions[needed] for needed in sorted(_needed_definitions(name, definitions))}
            group = kind["group"] or kind["version"]  # kubeconform's .Group of the core group is its version
            file = folder / f"{kind['kind']}-{group}-{kind['version']}.json".lower()
            file.write_text(json.dumps({**schema, "definitions": closure}))
            paths.append(file)
    return sorted(paths)


def kubeconform(folder: Path, files: Sequence[Path]) -> list[Schema]:
    """Check manifests against the schemas in a folder, by kubeconform. Return its result for each object.

    Raises NotBuilt if kubeconform is missing, and subprocess.TimeoutExpired after two minutes.
    """
    arguments = ["-strict", "-output", "json", "-verbose", "-schema-location", str(folder / PATTERN)]
    done = subprocess.run(
        [cache.binary("kubeconform"), *arguments, *files], capture_output=True, text=True, check=False, timeout=120
    )
    results: list[Schema] = json.loads(done.stdout)["resources"]
    return results


def faults(results: Iterable[Schema]) -> list[str]:
    """Return a line for each object that is not valid, or has no schema. results: as `kubeconform` returns them."""
    return [
        f"{each['filename']}: {each['kind']} {each['name']}: {each['status']} {each['msg']}"
        for each in results
        if each["status"] != "statusValid"
    ]


def _make_strict(name: str, schema: Schema) -> Schema:
    """Return a schema that refuses unknown fields, and accepts integers and quantities as Kubernetes does.

    name: of the definition, "" for a part of one.
    """
    if name == QUANTITY:
        return {"type": ["string", "number"]}
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    strict = dict(schema)
    if "properties" in schema:
        strict["properties"] = {key: _make_strict("", value) for key, value in schema["properties"].items()}
        strict.setdefault("additionalProperties", False)
    for inner in ("items", "additionalProperties"):
        if isinstance(strict.get(inner), dict):
            strict[inner] = _make_strict("", strict[inner])
    return strict


def _needed_definitions(name: str, definitions: dict[str, Schema]) -> set[str]:
    """Return the names of all definitions that this one refers to, directly or through others. Cycles are allowed."""
    found: set[str] = set()
    open_ends = [name]
    while open_ends:
        for other in _references(definitions[open_ends.pop()]):
            if other not in found:
                found.add(other)
                open_ends.append(other)
    return found


def _references(schema: Any) -> Iterable[str]:
    """Yield the names of all definitions to which a part of a schema refers directly."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(REF)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
