"""Checks a topology map: every fault with its line, or what the map contains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from turnout.topology import names
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map
from turnout.topology.model import BadFabric, ParsedMap


def check(text: str) -> ParsedMap:
    """Read the map in any of its forms and build the fabric, so that the faults are those that an extender finds.

    text: a text map, a YAML map or a ConfigMap. The result has its entries and its faults.
    """
    reading = read_map(data_of(text))
    if reading.faults:
        return reading
    try:
        build(reading.entries)
    except BadFabric as error:
        return ParsedMap(reading.entries, tuple(error.faults))
    return reading


def report_lines(name: str, reading: ParsedMap) -> list[str]:
    """Return lines for a person. Faults have the form `file:line: text`, so that an editor can jump to them.

    name: of the file.
    """
    if reading.faults:
        lines = [
            f"{name}:{fault.line}: {fault.text}" if fault.line else f"{name}: {fault.text}" for fault in reading.faults
        ]
        return [
            *lines,
            f"{name}: {_count(len(reading.faults), 'fault')}; such a map is not applied, the last good one stays",
        ]
    if not reading.entries:
        return [f"{name}: right, and empty: a map of no hosts, so nobody is placed by switches"]
    leaves = {entry.path for entry in reading.entries}
    tiers = max(len(entry.path) for entry in reading.entries)
    hosts, under = _count(len(reading.entries), "host"), _count(len(leaves), "leaf switch", "leaf switches")
    return [f"{name}: right: {hosts} under {under}, {_count(tiers, 'tier')} of switches"]


def data_of(text: str) -> Mapping[str, str]:
    """Return the ConfigMap data of the text: the ConfigMap's own, or the text under the key of its form."""
    found = _configmap(text)
    if found is not None:
        return found
    stripped = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    is_yaml = bool(stripped) and stripped[0].split("#")[0].rstrip().endswith(":")
    return {names.YAML_KEY if is_yaml else names.TEXT_KEY: text}


def _configmap(text: str) -> Mapping[str, str] | None:
    """Return the data of a ConfigMap in YAML; None for any other text, and for a ConfigMap that is no valid YAML."""
    if "ConfigMap" not in text:
        return None
    try:
        document: Any = yaml.safe_load(text)
    except Exception:  # for the text of an explicit tag, such as `!!int ''`, yaml raises errors of many types
        return None
    if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
        return None
    data = document.get("data")
    return {k: v for k, v in data.items() if isinstance(v, str)} if isinstance(data, dict) else {}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
