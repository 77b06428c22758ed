"""What a topology ConfigMap says: which of its keys is meant, and which origin reads it."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.topology.configmap_keys import TEXT_KEY, YAML_KEY
from turnout.topology.model import Fault, Reading
from turnout.topology.sources import configmap_text, configmap_yaml


def read(data: Mapping[str, str]) -> Reading:
    """Read a ConfigMap's data. No text at all is a valid map of no hosts. Raises nothing.

    A blank text counts as absent, since a chart renders the key it does not use.
    """
    text, yaml_text = (data.get(key, "") for key in (TEXT_KEY, YAML_KEY))
    if text.strip() and yaml_text.strip():
        return Reading((), (Fault(0, f"both {TEXT_KEY} and {YAML_KEY} are set; keep one of the two"),))
    if yaml_text.strip():
        return configmap_yaml.read(yaml_text)
    return configmap_text.read(text)
