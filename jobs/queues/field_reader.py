"""Fields of an untrusted object. A field with a wrong value is reported as a fault; nothing is raised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.jobs.queues.model import Amounts
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.pod_shape import amount

_MAX_DIGITS = 9  # digits of a count


class Fields:
    """A part of an object, with its path and the faults of the whole object."""

    def __init__(self, value: Any, where: str = "", faults: list[str] | None = None) -> None:
        self.faults: list[str] = [] if faults is None else faults
        self.where = where
        self._values: Mapping[str, Any] = {}
        if isinstance(value, Mapping):
            self._values = value
        elif value is not None:
            self.fault("", value, "it must be an object")

    def fault(self, key: str, value: Any, why: str) -> None:
        """Add a fault about a field, once."""
        fault = f"{self._path(key)} is {str(value)[:40]!r}: {why}"
        if fault not in self.faults:
            self.faults.append(fault)

    def has(self, key: str) -> bool:
        """True if the field is set."""
        return self._values.get(key) is not None

    def part(self, key: str) -> Fields:
        """Return the object in a field, an empty one if it is absent."""
        return Fields(self._values.get(key), self._path(key), self.faults)

    def parts(self, key: str) -> Iterator[Fields]:
        """Yield the objects of a list."""
        value = self._values.get(key)
        if value is None:
            return
        if not isinstance(value, list | tuple):
            self.fault(key, value, "it must be a list")
            return
        for index, part in enumerate(value):
            yield Fields(part, f"{self._path(key)}[{index}]", self.faults)

    def texts(self, key: str) -> Iterator[str]:
        """Yield the texts of a list."""
        value = self._values.get(key)
        listed = value if isinstance(value, list | tuple) else [] if value is None else [None]
        for part in listed:
            if isinstance(part, str):
                yield part
            else:
                self.fault(key, value, "it must be a list of texts")

    def text(self, key: str, default: str = "") -> str:
        """Return a text, or the default if it is absent or empty."""
        value = self._values.get(key)
        if value is None or value == "":
            return default
        if isinstance(value, str):
            return value
        self.fault(key, value, "it must be a text")
        return default

    def count(self, key: str, default: int) -> int:
        """Return an integer >= 0, which may be written as a text, or the default."""
        value = self._values.get(key)
        if value is None:
            return default
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
        self.fault(key, value, "it must be a whole number, 0 or more")
        return default

    def quantity(self, key: str, resource: str) -> int | None:
        """Return an amount of a resource; None if it is absent or unreadable."""
        value = self._values.get(key)
        return None if value is None else self._amount(key, resource, value)

    def amounts(self, key: str) -> dict[str, int]:
        """Return the readable quantities by resource."""
        part, found = self.part(key), dict[str, int]()
        for what, value in part._values.items():
            if (size := part._amount(str(what), str(what), value)) is not None:
                found[str(what)] = size
        return found

    def json(self, key: str) -> Any:
        """Return the JSON value of a text; None if it is absent or unreadable."""
        text = self.text(key)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            self.fault(key, text, "it must be JSON")
            return None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields."""
        return (str(key) for key in self._values)

    def _amount(self, key: str, resource: str, value: Any) -> int | None:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                return amount(resource, value)
            except (KubeError, ValueError):
                pass
        self.fault(key, value, "it is no Kubernetes quantity")
        return None

    def _path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where and key else self.where or key


def headroom(meta: Fields, *named: Amounts) -> dict[str, int]:
    """Return the GPUs that an owner keeps free in a queue, for the GPU resources that the queue names, else for all."""
    notes = meta.part("annotations")
    gpus = notes.count(labels.HEADROOM, 0)
    if not gpus:
        return {}
    ours = [what for what in labels.GPU_RESOURCES if any(what in each for each in named)]
    return dict.fromkeys(ours or labels.GPU_RESOURCES, gpus)
