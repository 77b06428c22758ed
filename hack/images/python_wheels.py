"""Reads wheels into an image: pinned by hash, fetched by pip for the image's Python, unpacked as PEP 427 has it."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from hack.images.layer import Entry

_GLIBC = 36  # of Debian bookworm; every manylinux up to it runs there
_FIRST_LINE = re.compile(rb"\A#!python[^\r\n]*")  # of a script in a wheel: #!python, #!pythonw or #!python3
_SCRIPT = """#!{python}
import sys
from {module} import {name}

sys.exit({name}())
"""


def fetch_wheels(lock: Path, python: str, cache: Path) -> list[Path]:
    """Return the files of all wheels of a lock, for 64-bit Intel. python: version such as 3.11.

    lock: the file. cache: a folder, created if it is missing. Wheels that the cache lacks, or has with another hash,
    are downloaded by pip. Raises FileNotFoundError if one is still missing, CalledProcessError if pip fails, and
    TimeoutExpired if it takes longer than ten minutes.
    """
    cache.mkdir(parents=True, exist_ok=True)
    wheels, missing = _find_cached(lock, python, cache)
    if missing:
        _fetch(lock, python, cache)
        wheels, missing = _find_cached(lock, python, cache)
    if missing:
        raise FileNotFoundError(f"pip brought no wheel of {', '.join(missing)}")
    return wheels


def _fetch(lock: Path, python: str, cache: Path) -> None:
    """Download the wheels of a lock file into the cache, by pip with checked hashes.

    python: version such as 3.11. Raises CalledProcessError if pip fails, and TimeoutExpired after ten minutes.
    """
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--implementation", "cp", "--python-version", python]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run([*command, "-d", cache, "-r", lock], check=True, timeout=600)


def _find_cached(lock: Path, python: str, cache: Path) -> tuple[list[Path], list[str]]:
    """Return (wheels of a lock that are in the cache, names of those that are not).

    python: version such as 3.11. A wheel with another hash counts as missing.
    """
    text = lock.read_text()
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))
    versions = {_normal(name): version for name, version in _pins(text)}
    found = {}
    for wheel in sorted(cache.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        tags = wheel.name.removesuffix(".whl").split("-")[-3]
        fits = "py3" in tags or f"cp{python.replace('.', '')}" in tags or "abi3" in wheel.name
        pinned = fits and versions.get(_normal(name)) == version
        if pinned and hashlib.sha256(wheel.read_bytes()).hexdigest() in hashes:
            found[_normal(name)] = wheel
    return [found[name] for name in sorted(found)], sorted(versions.keys() - found.keys())


def files(wheel: Path, site: str, bin_: str, python: str) -> dict[str, Entry]:
    """Return the files that a wheel installs, by path. site, bin_: folders for modules and for scripts. python: path in
    the #! line of scripts. Of its .data folder only scripts and modules are installed.
    """
    found: dict[str, Entry] = {}
    with zipfile.ZipFile(wheel) as opened:
        for info in opened.infolist():
            if info.is_dir():
                continue
            data, executable = opened.read(info), bool(info.external_attr >> 16 & 0o100)
            path = PurePosixPath(info.filename)
            if path.parts[0].endswith(".data"):
                kind, rest = path.parts[1], PurePosixPath(*path.parts[2:])
                if kind == "scripts":
                    found[f"{bin_}/{rest}"] = Entry(_FIRST_LINE.sub(b"#!" + python.encode(), data), 0o755)
                elif kind in ("purelib", "platlib"):
                    found[f"{site}/{rest}"] = Entry(data)
                continue
            found[f"{site}/{path}"] = Entry(data, 0o755 if executable else 0o644)
            if path.name == "entry_points.txt" and path.parts[0].endswith(".dist-info") and len(path.parts) == 2:
                found |= _scripts(data.decode(), bin_, python)
    return found


def _scripts(text: str, bin_: str, python: str) -> dict[str, Entry]:
    """Return the scripts of a wheel. text: of its entry_points.txt.

    bin_: folder of the scripts. python: path in their #! line.
    """
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    scripts = {}
    for name, target in parser["console_scripts"].items() if "console_scripts" in parser else ():
        module, _, function = target.partition("[")[0].strip().partition(":")
        script = _SCRIPT.format(python=python, module=module, name=function)
        scripts[f"{bin_}/{name}"] = Entry(script.encode(), 0o755)
    return scripts


def _pins(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.M)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def cache_folder() -> Path:
    """Return the folder in which packages are kept between builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout" / "images"
