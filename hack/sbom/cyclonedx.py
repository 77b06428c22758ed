"""Turns lock files into a CycloneDX 1.5 document, as a pure function of their texts. Source: CycloneDX 1.5, JSON.

Two runs over the same locks give the same bytes: there is no time in it, and its serial number is made of its content.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE = uuid.UUID("6c0f5a0e-3f0e-5a0c-9b7f-7475726e6f75")


class BadLock(ValueError):
    """A lock file with a package that has no hash: what it installs is not fixed."""


@dataclass(frozen=True, slots=True)
class Package:
    """One pinned package."""

    name: str
    version: str
    locks: tuple[str, ...]  # the names of the files that pin it
    hashes: tuple[str, ...]  # SHA-256 of each of its archives


def packages(locks: Mapping[str, str]) -> list[Package]:
    """Return what these lock files pin, sorted by name and version. locks: text by file name.

    Raises BadLock for a package without a hash.
    """
    found: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for lock, text in locks.items():
        for name, version, hashes in _pinned_packages(lock, text):
            where, known = found.setdefault((name, version), (set(), set()))
            where.add(lock)
            known.update(hashes)
    return [
        Package(name, version, tuple(sorted(where)), tuple(sorted(hashes)))
        for (name, version), (where, hashes) in sorted(found.items())
    ]


def document(name: str, version: str, found: Iterable[Package], licences: Mapping[str, str]) -> dict[str, Any]:
    """Return the bill of materials of a program. name, version: of the program. found: the packages that it has.

    licences: SPDX expressions by package, of those that are known.
    """
    components = [_component(each, licences.get(each.name)) for each in found]
    content = repr((name, version, [(each["purl"], each["hashes"]) for each in components]))
    subject = {"type": "application", "name": name, "version": version, "bom-ref": f"pkg:pypi/{name}@{version}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
    }


def _pinned_packages(lock: str, text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (name, version, hashes) of each package that a lock file pins. lock: name of the file, for the message.

    The name is normalized. Raises BadLock for a package without a hash.
    """
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text):
        if (pinned := _PINNED.match(block)) is None:
            continue
        name, version = re.sub(r"[-_.]+", "-", pinned[1]).lower(), pinned[2]
        if not (hashes := _HASH.findall(block)):
            raise BadLock(f"{lock}: {name} {version} has no hash")
        yield name, version, hashes


def _component(package: Package, licence: str | None) -> dict[str, Any]:
    """Return a package as a component of the bill of materials. licence: SPDX expression, None if unknown."""
    purl = f"pkg:pypi/{package.name}@{package.version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
        "properties": [{"name": "turnout:lock", "value": each} for each in package.locks],
    }
    return {**component, "licenses": [{"expression": licence}]} if licence else component
