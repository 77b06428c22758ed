"""Read a topology ConfigMap: find out which of its keys is used, and which parser reads it."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.topology.configmap_keys import TEXT_KEY, YAML_KEY
from turnout.topology.model import Fault, Reading
from turnout.topology.sources import configmap_text, configmap_yaml


def read(data: Mapping[str, str]) -> Reading:
    """Read a ConfigMap's data. Raises nothing: mistakes are faults of the Reading.

    A ConfigMap without any text is a valid map of no hosts. A blank text counts as absent, since a chart renders the
    key that it does not use.
    """
    text, yaml_text = (data.get(key, "") for key in (TEXT_KEY, YAML_KEY))
    if text.strip() and yaml_text.strip():
        return Reading((), (Fault(0, f"both {TEXT_KEY} and {YAML_KEY} are set; keep one of the two"),))
    if yaml_text.strip():
        return configmap_yaml.read(yaml_text)
    return configmap_text.read(text)
