"""`python -m hack.release`: make a release in build/release. `python -m hack.release chart`: the chart in build/chart.

A release is wheels, images, the chart, the kubectl plugin for krew, bills of materials, SECURITY-INSIGHTS.yaml,
checksums and provenance. The same tree gives the same bytes. Nothing is published and nothing is signed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hack.images import debian, python_wheels
from hack.images.__main__ import clean_commit
from hack.images.bill import bill
from hack.images.layer import Entry, pack_layer
from hack.images.oci import write
from hack.images.recipes import IMAGES, LOCKS, USUAL, Sources, WrongPython
from hack.images.wheels import ROOT, SOURCES, build
from hack.release import chart, krew, provenance
from hack.sbom.__main__ import licences
from hack.sbom.cyclonedx import document, packages

NO_ADDRESS = "https://turnout.invalid"  # stands for the public address, which is not chosen yet
SUMS, PROVENANCE = "SHA256SUMS", "provenance.intoto.json"
_INPUTS = ("controllers.txt", "launcher-image.txt", krew.LOCK)


@dataclass(frozen=True, slots=True)
class Release:
    """A release that is being made."""

    into: Path
    sources: Sources
    url: str  # of the repository and of the release's files

    @property
    def version(self) -> str:
        """Return the version of the release and of all its parts."""
        return self.sources.version


Part = Callable[[Release], dict[str, str]]  # writes its files; gives digests of images by their names


def main(argv: Sequence[str] | None = None) -> int:
    """Write the parts of a release, or only the chart, and return the exit code.

    It is 1 if a package is not available, or if a subprocess fails or takes too long, else 0.

    A tree with uncommitted changes is released with a warning, and provenance names no commit (`clean_commit`).
    argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m hack.release", description="Make what a release publishes.")
    parser.add_argument("what", nargs="?", choices=("release", "chart"), default="release")
    parser.add_argument("--url", default=NO_ADDRESS, help="the public address of the repository (%(default)s)")
    parser.add_argument("--into", type=Path, default=ROOT / "build", help="the folder (build)")
    args = parser.parse_args(argv)
    if args.what == "chart":
        paths = chart.write(args.into / "chart")
        print(f"sha256:{_sha256(paths)} {paths}")
        return 0
    sources = Sources(metadata.version("turnout"), clean_commit(), python_wheels.cache_folder())
    if not sources.revision:
        print("hack.release: the tree has uncommitted changes, so provenance names no commit", file=sys.stderr)
    try:
        assemble(Release(args.into / "release", sources, args.url.rstrip("/")), PARTS)
    except (debian.NoPackage, WrongPython, FileNotFoundError, subprocess.SubprocessError) as error:
        print(f"hack.release: {error}", file=sys.stderr)
        return 1
    print((args.into / "release" / SUMS).read_text(), end="")
    return 0


def assemble(release: Release, parts: Sequence[Part]) -> None:
    """Write the parts into a folder, which is emptied first, then the provenance and the checksums of all files.

    parts: each writes files and returns the digests of images by name.
    """
    shutil.rmtree(release.into, ignore_errors=True)
    release.into.mkdir(parents=True)
    images: dict[str, str] = {}
    for part in parts:
        images |= part(release)
    subjects = {path.name: _sha256(path) for path in sorted(release.into.iterdir())} | images
    inputs = {f"hack/locks/{name}": _sha256(LOCKS / name) for name in _INPUTS}
    inputs["hack/images/debian.lock"] = _sha256(ROOT / "hack/images/debian.lock")
    statement = provenance.statement(subjects, inputs, release.sources.revision, release.version, release.url)
    (release.into / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")
    sums = [f"{_sha256(path)}  {path.name}\n" for path in sorted(release.into.iterdir())]
    (release.into / SUMS).write_text("".join(sums))


def wheels(release: Release) -> dict[str, str]:
    """Write the wheels. Return {}: they are files of the release."""
    for source in SOURCES:
        build(release.into, source)
    return {}


def images(release: Release) -> dict[str, str]:
    """Write each image as a tar of its OCI layout, with its bill of materials. Return the digest of each image by
    its name.
    """
    digests: dict[str, str] = {}
    for name in USUAL:
        image, layout = IMAGES[name](release.sources), release.into / f"{name}.layout"
        digest = write(image, layout).removeprefix("sha256:")
        digests |= dict.fromkeys(image.names, digest)
        files = {
            str(path.relative_to(layout)): Entry(path.read_bytes()) for path in layout.rglob("*") if path.is_file()
        }
        (release.into / f"{name}-{release.version}.oci.tar").write_bytes(pack_layer(files)[0])
        shutil.rmtree(layout)
        _write_json(release, f"{name}-image-{release.version}.cdx.json", bill(name, release.version))
    return digests


def charts(release: Release) -> dict[str, str]:
    """Write the chart. Wheels, images and the chart of a release have one version."""
    chart.write(release.into)
    return {}


def plugin(release: Release) -> dict[str, str]:
    """Write the kubectl plugin and its manifest into the release's folder, from the wheels that are there already.

    Returns {}: both are files of the release.
    """
    ours = sorted(release.into.glob("turnout-*.whl"))
    needed = python_wheels.fetch_wheels(LOCKS / krew.LOCK, krew.PYTHON, release.sources.cache / "wheels")
    archive = release.into / krew.name(release.version)
    archive.write_bytes(krew.archive([*needed, *ours]))
    (release.into / "turnout.krew.yaml").write_text(krew.manifest(release.version, release.url, _sha256(archive)))
    return {}


def documents(release: Release) -> dict[str, str]:
    """Write the bill of materials of the Python packages, and SECURITY-INSIGHTS.yaml with the public address. Return
    {}.
    """
    found = packages({name: (LOCKS / name).read_text() for name in _INPUTS})
    _write_json(release, f"turnout-{release.version}.cdx.json", document("turnout", release.version, found, licences()))
    text = (ROOT / "SECURITY-INSIGHTS.yaml").read_text()
    (release.into / "SECURITY-INSIGHTS.yaml").write_text(text.replace(NO_ADDRESS, release.url))
    return {}


PARTS: Sequence[Part] = (wheels, images, charts, plugin, documents)


def _write_json(release: Release, name: str, value: object) -> None:
    (release.into / name).write_text(json.dumps(value, indent=1) + "\n")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
