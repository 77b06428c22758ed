"""Fields of an object that anybody may have written: what is not as it should be is told, never raised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.jobs.queues.model import Amounts
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.pod_shape import amount

_LONGEST = 9  # digits of a count


class Fields:
    """A part of an object. where: its path. faults: what could not be read, of all parts of one object."""

    def __init__(self, told: Any, where: str = "", faults: list[str] | None = None) -> None:
        self.faults: list[str] = [] if faults is None else faults
        self.where = where
        self._told: Mapping[str, Any] = {}
        if isinstance(told, Mapping):
            self._told = told
        elif told is not None:
            self.fault("", told, "it must be an object")

    def fault(self, key: str, told: Any, why: str) -> None:
        """Tell that a field cannot be read."""
        fault = f"{self._path(key)} is {str(told)[:40]!r}: {why}"
        if fault not in self.faults:
            self.faults.append(fault)

    def said(self, key: str) -> bool:
        """True if the field is there."""
        return self._told.get(key) is not None

    def of(self, key: str) -> Fields:
        """A part of it; one that is absent says nothing."""
        return Fields(self._told.get(key), self._path(key), self.faults)

    def each(self, key: str) -> Iterator[Fields]:
        """The parts of a list."""
        told = self._told.get(key)
        if told is None:
            return
        if not isinstance(told, list | tuple):
            self.fault(key, told, "it must be a list")
            return
        for index, part in enumerate(told):
            yield Fields(part, f"{self._path(key)}[{index}]", self.faults)

    def texts(self, key: str) -> Iterator[str]:
        """The texts of a list."""
        told = self._told.get(key)
        listed = told if isinstance(told, list | tuple) else [] if told is None else [None]
        for part in listed:
            if isinstance(part, str):
                yield part
            else:
                self.fault(key, told, "it must be a list of texts")

    def text(self, key: str, otherwise: str = "") -> str:
        """A text; absent or empty, the other."""
        told = self._told.get(key)
        if told is None or told == "":
            return otherwise
        if isinstance(told, str):
            return told
        self.fault(key, told, "it must be a text")
        return otherwise

    def count(self, key: str, otherwise: int) -> int:
        """A whole number of 0 or more, also as a text."""
        told = self._told.get(key)
        if told is None:
            return otherwise
        text = str(told)
        if text.isascii() and text.isdigit() and len(text) <= _LONGEST:
            return int(text)
        self.fault(key, told, "it must be a whole number, 0 or more")
        return otherwise

    def quantity(self, key: str, resource: str) -> int | None:
        """An amount of a resource; None when nothing is said, or nothing that can be read."""
        told = self._told.get(key)
        return None if told is None else self._amount(key, resource, told)

    def amounts(self, key: str) -> dict[str, int]:
        """Quantities by resource; what cannot be read is left out and told."""
        part, found = self.of(key), dict[str, int]()
        for what, told in part._told.items():
            if (size := part._amount(str(what), str(what), told)) is not None:
                found[str(what)] = size
        return found

    def json(self, key: str) -> Any:
        """Read a text as JSON; None when it is absent or cannot be read."""
        text = self.text(key)
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            self.fault(key, text, "it must be JSON")
            return None

    def __iter__(self) -> Iterator[str]:
        """The names of its fields."""
        return (str(key) for key in self._told)

    def _amount(self, key: str, resource: str, told: Any) -> int | None:
        if isinstance(told, str | int | float) and not isinstance(told, bool):
            try:
                return amount(resource, told)
            except (KubeError, ValueError):
                pass
        self.fault(key, told, "it is no Kubernetes quantity")
        return None

    def _path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where and key else self.where or key


def headroom(meta: Fields, *named: Amounts) -> dict[str, int]:
    """Read how many GPUs an owner keeps free in a queue, for the GPU resources that the queue names, else for all."""
    notes = meta.of("annotations")
    gpus = notes.count(labels.HEADROOM, 0)
    if not gpus:
        return {}
    ours = [what for what in labels.GPU_RESOURCES if any(what in each for each in named)]
    return dict.fromkeys(ours or labels.GPU_RESOURCES, gpus)
