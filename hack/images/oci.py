"""Write an OCI image layout: blobs by their digest, one manifest, and an index with each of its names.

Source: image-spec 1.1.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hack.images.layer import EPOCH_S

REFERENCE = "org.opencontainers.image.ref.name"  # the annotation by which tools find an image in a layout
_TYPE = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its gzipped tar and the digest of the tar."""

    gzipped: bytes
    diff_id: str
    created_by: str  # its line in the image's history


@dataclass(frozen=True, slots=True)
class Image:
    """An image before it is written."""

    names: tuple[str, ...]  # as in a reference, turnout:0.1.0; at least one; all have the same digest
    layers: tuple[Layer, ...]
    user: str = ""  # uid:gid
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # of the configuration, and annotations of the manifest
    architecture: str = "amd64"


def digest(data: bytes) -> str:
    """Return the digest as OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config(image: Image) -> dict[str, Any]:
    """Return the image's configuration as OCI's JSON."""
    created = datetime.fromtimestamp(EPOCH_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run: dict[str, Any] = {"Env": [f"{key}={value}" for key, value in image.env.items()], "WorkingDir": "/"}
    if image.user:
        run["User"] = image.user
    if image.command:
        run["Cmd"] = list(image.command)
    return {
        "created": created,
        "architecture": image.architecture,
        "os": "linux",
        "config": run | {"Labels": dict(image.labels)},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
        "history": [{"created": created, "created_by": layer.created_by} for layer in image.layers],
    }


def write(image: Image, into: Path) -> str:
    """Write an image as an OCI layout into a folder, which is emptied first.

    Returns the digest of the manifest, by which it is pulled.
    """
    shutil.rmtree(into, ignore_errors=True)
    blobs = into / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str, **more: Any) -> dict[str, Any]:
        name = digest(data)
        (blobs / name.removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": f"{_TYPE}.{kind}", "digest": name, "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPE}.manifest.v1+json",
        "config": blob(_json(config(image)), "config.v1+json"),
        "layers": [blob(layer.gzipped, "layer.v1.tar+gzip") for layer in image.layers],
        "annotations": dict(image.labels),
    }
    entry = blob(_json(manifest), "manifest.v1+json", platform={"architecture": image.architecture, "os": "linux"})
    entries = [entry | {"annotations": {REFERENCE: name}} for name in image.names]
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": entries}
    (into / "index.json").write_bytes(_json(index))
    (into / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return str(entry["digest"])


def config_and_layers(layout: Path) -> tuple[dict[str, Any], Sequence[Path]]:
    """Return (configuration of the only image in a layout, paths of its layers' compressed blobs, the lowest first).

    Raises ValueError if the layout has another number of images than one.
    """
    (name,) = {entry["digest"] for entry in json.loads((layout / "index.json").read_text())["manifests"]}
    manifest = json.loads(_blob(layout, name).read_text())
    found: dict[str, Any] = json.loads(_blob(layout, manifest["config"]["digest"]).read_text())
    return found, [_blob(layout, layer["digest"]) for layer in manifest["layers"]]


def _blob(layout: Path, name: str) -> Path:
    return layout / "blobs" / name.replace(":", "/")


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
