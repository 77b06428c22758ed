"""Typed fields of an object. A value of another type raises BadJob, which names the field.

A field that is null counts as absent, as in the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnout.jobs.model import BadJob

MAX_PODS = 1_000_000  # of one job: a larger number is a mistake, or means "no limit"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an object."""

    value: Mapping[str, Any]
    where: str = ""  # its path, as in `spec.tasks[0]`; "" for the object itself

    def at(self, key: str) -> str:
        """Return the path of a field of this part."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """True if the field is set."""
        return self.value.get(key) is not None

    def part(self, key: str) -> Part:
        """Return the object in a field, an empty one if it is absent. Raises BadJob."""
        return Part(self._typed(key, dict, "an object") or {}, self.at(key))

    def parts(self, key: str) -> tuple[Part, ...]:
        """Return the objects of a list, none if it is absent. Raises BadJob."""
        found = []
        for number, each in enumerate(self._typed(key, list, "a list") or ()):
            where = f"{self.at(key)}[{number}]"
            if not isinstance(each, dict):
                raise BadJob(f"{where} is {each!r:.40}: it must be an object")
            found.append(Part(each, where))
        return tuple(found)

    def by_name(self, key: str) -> dict[str, Part]:
        """Return the objects of an object by name. Raises BadJob."""
        inner = self.part(key)
        return {name: inner.part(name) for name in inner.value if inner.has(name)}

    def text(self, key: str) -> str:
        """Return a text, "" if it is absent. Raises BadJob."""
        found: str = self._typed(key, str, "a text") or ""
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts. Raises BadJob."""
        found = tuple(self._typed(key, list, "a list of texts") or ())
        if not all(isinstance(each, str) for each in found):
            raise BadJob(f"{self.at(key)} is {list(found)!r:.60}: it must be a list of texts")
        return found

    def words(self, key: str) -> dict[str, str]:
        """Return an object of texts, such as labels. Raises BadJob."""
        inner = self.part(key)
        return {name: inner.text(name) for name in inner.value if inner.has(name)}

    def flag(self, key: str) -> bool:
        """Return a boolean, False if it is absent. Raises BadJob."""
        return bool(self._typed(key, bool, "true or false"))

    def count(self, key: str, default: int, least: int = 0) -> int:
        """Return a number of pods, >= `least`. Raises BadJob."""
        value = self.value.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_PODS:
            raise BadJob(f"{self.at(key)} is {value!r:.40}: it must be a whole number from {least} to {MAX_PODS}")
        return value

    def _typed(self, key: str, kind: type, what: str) -> Any:
        value = self.value.get(key)
        if value is not None and not isinstance(value, kind):
            raise BadJob(f"{self.at(key)} is {value!r:.40}: it must be {what}")
        return value
