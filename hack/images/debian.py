"""Reads Debian packages into an image: pinned by hash, taken from any mirror, unpacked without dpkg and without root.

No maintainer script runs. What one would have made and a Python needs, users and the bundle of certificates, is
made in recipes.py.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.images.layer import Entry

LOCK = Path(__file__).parent / "debian.lock"
MIRROR_ENV = "TURNOUT_DEBIAN_MIRROR"  # the address of a mirror in place of HOST, with its scheme
HOST = "deb.debian.org"
WANTED = (
    *("base-files", "ca-certificates", "gcc-12-base", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8"),
    *("libgcc-s1", "liblzma5", "libpython3.11-minimal", "libpython3.11-stdlib", "libssl3", "libstdc++6", "libuuid1"),
    *("netbase", "python3.11-minimal", "zlib1g"),
)
_MERGED = re.compile(r"^(bin|sbin|lib|lib64)/")  # Debian has these below /usr since bookworm
_DROPPED = re.compile(r"usr/share/(man|lintian|info|locale|doc/[^/]+/(?!copyright$))|usr/lib/[^/]+/gconv/")


class NoPackage(Exception):
    """A package of the lock is not available, or differs from the lock. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Deb:
    """One package."""

    name: str
    version: str
    sha256: str
    path: str  # below a mirror, as debian/pool/… or debian-security/pool/…


def lock() -> tuple[Deb, ...]:
    """Return the packages of the lock."""
    return tuple(Deb(*line.split()) for line in LOCK.read_text().splitlines() if not line.startswith("#"))


def relock() -> None:
    """Replace the lock, from this machine's apt index of Debian bookworm. Run `apt-get update` before.

    Raises CalledProcessError if apt-get fails, and NoPackage if it does not give the SHA-256 of each package of WANTED;
    then the lock stays as it is.
    """
    command = ["apt-get", "download", "--print-uris", *WANTED]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    LOCK.write_text(lock_text(output))


def lock_text(output: str) -> str:
    """Return the content of the lock. output: of `apt-get download --print-uris` for the packages of WANTED.

    Raises NoPackage if a package of WANTED is not in the output with its SHA-256.
    """
    lines, names = [], set()
    for url, file, sha256 in re.findall(r"^'([^']+)' (\S+) \d+ SHA256:([0-9a-f]{64})$", output, re.M):
        name, version, _ = urllib.parse.unquote(file).split("_")
        path = urllib.parse.urlsplit(url).path.lstrip("/")
        lines.append(f"{name} {version} {sha256} {path}")
        names.add(name)
    if missing := sorted({*WANTED} - names):
        raise NoPackage(f"apt-get gives no SHA-256 of {', '.join(missing)}; the lock stays as it is")
    head = "# name version sha256 path; written by `python -m hack.images lock`\n"
    return head + "".join(f"{line}\n" for line in sorted(lines))


def fetch_package(deb: Deb, cache: Path) -> bytes:
    """Return a package's file content, from the cache, or from a mirror and then into the cache. cache: a folder.

    Raises NoPackage if the mirror does not answer, or answers with another file than the lock has.
    """
    at = cache / deb.sha256
    if not at.exists():
        mirror = os.environ.get(MIRROR_ENV, f"https://{HOST}").rstrip("/")
        url = f"{mirror}/{deb.path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                data: bytes = answer.read()
        except (urllib.error.URLError, OSError) as error:
            raise NoPackage(
                f"{deb.name} {deb.version}: {url}: {error}. Name another mirror by {MIRROR_ENV}; where a mirror has "
                "only a newer version, run `python -m hack.images lock` on Debian bookworm"
            ) from error
        if (digest := hashlib.sha256(data).hexdigest()) != deb.sha256:
            raise NoPackage(f"{deb.name} {deb.version}: {url} has SHA-256 {digest}, not {deb.sha256}")
        cache.mkdir(parents=True, exist_ok=True)
        part = at.with_suffix(f".{os.getpid()}")
        part.write_bytes(data)
        part.rename(at)
    return at.read_bytes()


def files(package: bytes) -> dict[str, Entry]:
    """Return the files that a package installs, by path, without manuals and translations; /lib and the like are below
    /usr. package: content of the .deb file. Raises NoPackage if it is no package.
    """
    data = next((data for name, data in _members(package) if name.startswith("data.tar")), None)
    if data is None:
        raise NoPackage("this is no Debian package: it has no data.tar")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as tar:
        for member in tar:
            path = _MERGED.sub(r"usr/\1/", member.name.removeprefix("./").removeprefix("/"))
            if not path or path == "." or member.isdir() or _DROPPED.match(path):
                continue
            if member.issym():
                found[path] = Entry(link=member.linkname)
            elif (content := tar.extractfile(member)) is not None:
                found[path] = Entry(content.read(), 0o755 if member.mode & 0o100 else 0o644)
    return found


def _members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each member of an `ar` archive, the format of a package. Raises NoPackage for others."""
    if not archive.startswith(b"!<arch>\n"):
        raise NoPackage("this is no Debian package")
    at = 8
    while at + 60 <= len(archive):
        name, size = archive[at : at + 16].decode().strip().rstrip("/"), int(archive[at + 48 : at + 58])
        yield name, archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
