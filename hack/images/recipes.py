"""Names what our two images are made of: the layers of each, from the lowest up.

The image `turnout` has the controllers: Debian's Python, what hack/locks/controllers.txt pins, our wheel; no shell, pip
or torch. From `turnout-launcher`, /opt/turnout is copied into images with a torch of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from hack.images import debian, python_wheels
from hack.images.layer import Entry, pack_layer
from hack.images.oci import Image, Layer, digest
from hack.images.wheels import ROOT, build

USER = "65532:65532"  # as in the manifests
PYTHON = "3.11"  # Debian bookworm's
LOCKS = ROOT / "hack" / "locks"
_SITE, _BIN = "usr/local/lib/python3.11/dist-packages", "usr/local/bin"
_OPT = "opt/turnout"


@dataclass(frozen=True, slots=True)
class Sources:
    """The inputs of a build besides the locks."""

    version: str
    revision: str  # the commit; "" if it is unknown, or if the tree has uncommitted changes
    cache: Path  # folder of packages, kept between builds


def controllers(sources: Sources) -> Image:
    """Return the image of the extender, the nominator, the autoscaler and the job controllers."""
    wheels = _wheels("controllers.txt", PYTHON, sources)
    return Image(
        names=tuple(f"{name}:{sources.version}" for name in CONTROLLERS),
        layers=(
            layer(dict(_debian(sources.cache)), "Debian bookworm: Python 3.11 and what it needs"),
            layer(
                _with_bytecode(_wheel_files(wheels, _SITE, _BIN, "/usr/bin/python3.11")), "hack/locks/controllers.txt"
            ),
            layer(_with_bytecode(_own_files(sources, ".", _SITE, _BIN, "/usr/bin/python3.11")), "turnout"),
        ),
        user=USER,
        env={"PATH": "/usr/local/bin:/usr/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        command=("turnout-extender", "--help"),
        labels=_labels(sources, "turnout", "Scheduler extender, nominator, autoscaler and job controllers of Turnout"),
    )


def launcher(sources: Sources, python: str = PYTHON) -> Image:
    """Return the image from which /opt/turnout is copied. python: version of Python in the training image."""
    site = f"{_OPT}/lib"
    wheels = _wheel_files(_wheels("launcher-image.txt", python, sources), site, f"{_OPT}/bin", "/usr/bin/env python3")
    ours = _own_files(sources, ".", site, f"{_OPT}/bin", "/usr/bin/env python3")
    names = _own_files(sources, "deploy/packages/dlrover-names", site, f"{_OPT}/dlrover-names", "/usr/bin/env python3")
    suffix = "" if python == PYTHON else f"-py{python.replace('.', '')}"
    return Image(
        names=(f"{LAUNCHER}:{sources.version}{suffix}",),
        layers=(layer(wheels, "hack/locks/launcher-image.txt"), layer(ours | names, "turnout, turnout-dlrover-names")),
        labels=_labels(sources, "turnout-launcher", f"turnout-run for images with Python {python}, to copy from"),
    )


# The names of the one image of the controllers. The values of DLRover's chart name the last two (DL-04, DL-05).
CONTROLLERS = ("turnout", "elasticjob-controller", "dlrover-master")
LAUNCHER = "turnout-launcher"
IMAGES: Mapping[str, Callable[[Sources], Image]] = {
    CONTROLLERS[0]: controllers,
    LAUNCHER: launcher,
    "launcher-3.12": partial(launcher, python="3.12"),
    "launcher-3.13": partial(launcher, python="3.13"),
}
USUAL = (CONTROLLERS[0], LAUNCHER)  # built when none is named
LOCK_OF = {name: "controllers.txt" if name == "turnout" else "launcher-image.txt" for name in IMAGES}


def layer(files: Mapping[str, Entry], created_by: str) -> Layer:
    """Return a layer of an image: the files, packed and gzipped, with the digest of the plain archive.

    files: by path. created_by: the comment in the history of the image.
    """
    plain, gzipped = pack_layer(files)
    return Layer(gzipped, digest(plain), created_by)


def _labels(sources: Sources, title: str, description: str) -> dict[str, str]:
    labels_ = {"title": title, "description": description, "version": sources.version, "licenses": "Apache-2.0"}
    labels_ |= {"revision": sources.revision} if sources.revision else {}
    return {f"org.opencontainers.image.{key}": value for key, value in labels_.items()}


def _debian(cache: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the files of the base image: Debian packages, CA bundle, users, and empty folders for mounts.

    cache: folder of downloaded packages. Raises NoPackage if a package is not available.
    """
    bundle = {}
    for deb in debian.lock():
        for path, entry in debian.files(debian.fetch_package(deb, cache / "debs")).items():
            if path.startswith("usr/share/ca-certificates/mozilla/"):
                bundle[path] = entry.data
            yield path, entry
    for name in ("bin", "sbin", "lib", "lib64"):
        yield name, Entry(link=f"usr/{name}")
    yield "usr/sbin", Entry(mode=0o755, folder=True)
    yield "usr/bin/python3", Entry(link="python3.11")
    yield "etc/ssl/certs/ca-certificates.crt", Entry(b"".join(bundle[path] for path in sorted(bundle)))
    yield "usr/lib/ssl/certs", Entry(link="/etc/ssl/certs")
    yield "usr/lib/ssl/cert.pem", Entry(link="/etc/ssl/certs/ca-certificates.crt")
    yield "etc/passwd", Entry(b"root:x:0:0:root:/root:/none\nnonroot:x:65532:65532:nonroot:/tmp:/none\n")
    yield "etc/group", Entry(b"root:x:0:\nnonroot:x:65532:\n")
    yield "etc/nsswitch.conf", Entry(b"passwd: files\ngroup: files\nhosts: files dns\nservices: files\n")
    for folder in ("dev", "proc", "sys", "run", "root"):
        yield folder, Entry(mode=0o755, folder=True)
    yield "tmp", Entry(mode=0o1777, folder=True)


def _wheels(lock: str, python: str, sources: Sources) -> list[Path]:
    return python_wheels.fetch_wheels(LOCKS / lock, python, sources.cache / "wheels")


def _wheel_files(wheels: list[Path], site: str, bin_: str, python: str) -> dict[str, Entry]:
    """Return the files that all wheels install, by path in the image. Arguments as of `python_wheels.files`."""
    found: dict[str, Entry] = {}
    for wheel in wheels:
        found |= python_wheels.files(wheel, site, bin_, python)
    return found


def _own_files(sources: Sources, source: str, site: str, bin_: str, python: str) -> dict[str, Entry]:
    """Build a wheel of ours, and return the files that it installs, by path in the image, with the commit in
    direct_url.json (PEP 610).

    Without `sources.revision` there is no direct_url.json. source: folder of the wheel's setup.cfg, relative to the
    repository. The other arguments are those of `python_wheels.files`.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = python_wheels.files(build(Path(folder), source), site, bin_, python)
    if sources.revision:
        (metadata,) = [path for path in found if path.endswith(".dist-info/METADATA")]
        note = f'{{"url": "file:///turnout", "vcs_info": {{"vcs": "git", "commit_id": "{sources.revision}"}}}}\n'
        found[str(PurePosixPath(metadata).parent / "direct_url.json")] = Entry(note.encode())
    return found


def _with_bytecode(files: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the files with the bytecode of every module, because a read-only root cannot get it later.

    Raises WrongPython unless this Python has the image's version. A module that does not compile has no bytecode.
    Bytecode has the hash of its source in place of a time, and is not checked.
    """
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        raise WrongPython(f"the image has Python {PYTHON}, and only Python {PYTHON} makes its bytecode: use that here")
    with tempfile.TemporaryDirectory() as folder:
        for path, entry in files.items():
            if path.endswith(".py"):
                (at := Path(folder, path)).parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(entry.data)
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", folder]
        # A file that is no Python of this version stays without bytecode; compileall says so by its exit code.
        subprocess.run(
            [*command, "-p", "/", folder], env={"PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL, check=False
        )
        compiled = {str(at.relative_to(folder)): Entry(at.read_bytes()) for at in sorted(Path(folder).rglob("*.pyc"))}
    return dict(files) | compiled


class WrongPython(Exception):
    """The running Python cannot build the image. Use the version that the message names."""
