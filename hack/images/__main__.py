"""`python -m hack.images [NAME …]`: build images as OCI layouts below build/images; print digests, write SBOMs.

No daemon, no root, no registry: Debian packages and wheels, each pinned by its hash, become layers. `lock` renews the
Debian packages, `run NAME PROGRAM …` runs a program of an image that was built, as a container runtime would.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from hack.images import debian, python_wheels
from hack.images.bill import bill
from hack.images.oci import Image, write
from hack.images.recipes import IMAGES, USUAL, Sources, WrongPython
from hack.images.rootfs import command, unpack_image
from hack.images.wheels import ROOT

OUT = ROOT / "build" / "images"


def main(argv: Sequence[str] | None = None, recipes: Mapping[str, Callable[[Sources], Image]] = IMAGES) -> int:
    """Build the named images, write the lock, or run a program in an image. Return the exit code.

    It is 1 for a package or file that is not available, another Python, and a subprocess that fails or takes too long;
    for `run` it is that of the program. Ends with SystemExit and code 2 for an unknown name. argv: None for that of
    this process. recipes: build the images, by name.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["run"] and len(words) > 2:
            return _run(words[1], words[2:])
        if words == ["lock"]:
            debian.relock()
        else:
            _build(_names(words), recipes)
    except (debian.NoPackage, WrongPython, FileNotFoundError, subprocess.SubprocessError) as error:
        print(f"hack.images: {error}", file=sys.stderr)
        return 1
    return 0


def _names(words: Sequence[str]) -> Sequence[str]:
    """Return the names of the images to build. Ends with SystemExit for unknown ones. words: of the command line."""
    parser = argparse.ArgumentParser(prog="python -m hack.images", description="Build our images as OCI layouts.")
    known = ", ".join(IMAGES)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {known} (the first two); or lock; or run NAME PROGRAM …"
    )
    if words[:1] == ["run"]:
        parser.error("run needs NAME and PROGRAM")
    names: Sequence[str] = parser.parse_args(words).names
    if unknown := sorted(set(names) - set(IMAGES)):
        parser.error(f"{', '.join(unknown)}: one of {', '.join(IMAGES)} is needed")
    return names or USUAL


def _build(names: Sequence[str], recipes: Mapping[str, Callable[[Sources], Image]]) -> None:
    """Write each image and its bill of materials, and print its digest. names: of recipes."""
    sources = Sources(metadata.version("turnout"), clean_commit(), python_wheels.cache_folder())
    for name in names:
        image = recipes[name](sources)
        digest = write(image, OUT / name)
        sbom = OUT / f"{name}.cdx.json"
        sbom.write_text(json.dumps(bill(name, sources.version), indent=1) + "\n")
        size = sum(blob.stat().st_size for blob in (OUT / name / "blobs").rglob("*") if blob.is_file())
        for reference in image.names:
            print(f"{reference} {digest} {size / 1e6:.1f} MB oci:{_short(OUT / name)} sbom:{_short(sbom)}")


def clean_commit() -> str:
    """Return the commit of this tree; "" if there are uncommitted changes, untracked files included, or no git tree."""
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    if changed.returncode or changed.stdout.strip():
        return ""
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def _run(name: str, program: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = unpack_image(OUT / name, Path(folder, "root"))
        return subprocess.run(command(config, Path(folder, "root"), program), check=False).returncode


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
