"""Writes an image's bill of materials: the Python packages of its lock, its Debian packages. Source: CycloneDX 1.5."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from hack.images import debian
from hack.images.recipes import LOCK_OF, LOCKS
from hack.sbom.__main__ import licences
from hack.sbom.cyclonedx import document, packages

_WITH_DEBIAN = frozenset(["turnout"])


def bill(name: str, version: str) -> dict[str, Any]:
    """Return the SBOM of one image, in CycloneDX.

    name: key of LOCK_OF. version: of Turnout. Raises BadLock if the lock has a package without a hash.
    """
    lock = LOCK_OF[name]
    document_ = document(name, version, packages({lock: (LOCKS / lock).read_text()}), licences())
    if name in _WITH_DEBIAN:
        document_["components"] += [_component(deb) for deb in debian.lock()]
    return document_


def _component(deb: debian.Deb) -> dict[str, Any]:
    """Return a Debian package as a component of a CycloneDX SBOM."""
    purl = f"pkg:deb/debian/{quote(deb.name)}@{quote(deb.version)}?distro=bookworm"
    return {
        "type": "library",
        "name": deb.name,
        "version": deb.version,
        "bom-ref": purl,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": deb.sha256}],
    }
