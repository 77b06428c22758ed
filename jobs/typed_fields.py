"""The fields of an object by name, each of the type that it must have: anything else is a BadJob that names the field.

A field that is null counts as absent, as the API server has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnout.jobs.model import BadJob

MOST = 1_000_000  # pods of one job: whatever says more is a slip, or means "no bound"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an object. where: its place in it, as in `spec.tasks[0]`; "" for the object itself."""

    value: Mapping[str, Any]
    where: str = ""

    def at(self, key: str) -> str:
        """Return the path of a field of this part."""
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        """True if the field is there."""
        return self.value.get(key) is not None

    def part(self, key: str) -> Part:
        """The object in a field, an empty one when it is absent. Raises BadJob."""
        return Part(self._typed(key, dict, "an object") or {}, self.at(key))

    def parts(self, key: str) -> tuple[Part, ...]:
        """The objects of a list, none when it is absent. Raises BadJob."""
        found = []
        for number, each in enumerate(self._typed(key, list, "a list") or ()):
            where = f"{self.at(key)}[{number}]"
            if not isinstance(each, dict):
                raise BadJob(f"{where} is {each!r:.40}: it must be an object")
            found.append(Part(each, where))
        return tuple(found)

    def by_name(self, key: str) -> dict[str, Part]:
        """The objects of an object by their names. Raises BadJob."""
        inner = self.part(key)
        return {name: inner.part(name) for name in inner.value if inner.has(name)}

    def text(self, key: str) -> str:
        """A text, "" when it is absent. Raises BadJob."""
        found: str = self._typed(key, str, "a text") or ""
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts. Raises BadJob."""
        found = tuple(self._typed(key, list, "a list of texts") or ())
        if not all(isinstance(each, str) for each in found):
            raise BadJob(f"{self.at(key)} is {list(found)!r:.60}: it must be a list of texts")
        return found

    def words(self, key: str) -> dict[str, str]:
        """An object of texts, as labels are. Raises BadJob."""
        inner = self.part(key)
        return {name: inner.text(name) for name in inner.value if inner.has(name)}

    def flag(self, key: str) -> bool:
        """True or false, false when it is absent. Raises BadJob."""
        return bool(self._typed(key, bool, "true or false"))

    def count(self, key: str, default: int, least: int = 0) -> int:
        """A whole number of pods. Raises BadJob."""
        value = self.value.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise BadJob(f"{self.at(key)} is {value!r:.40}: it must be a whole number from {least} to {MOST}")
        return value

    def _typed(self, key: str, kind: type, what: str) -> Any:
        value = self.value.get(key)
        if value is not None and not isinstance(value, kind):
            raise BadJob(f"{self.at(key)} is {value!r:.40}: it must be {what}")
        return value
