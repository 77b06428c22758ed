"""Finds a worker's place on the fabric, the path of switches above its host, in the texts that a pod can get.

The texts are read elsewhere, again for each round, since a file may come late. A source that cannot be read is reported
and leaves the place unknown; it never stops training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from re import compile as pattern
from re import sub

from turnout.topology.configmap_keys import TEXT_KEY, YAML_KEY
from turnout.topology.switch_paths import BadPath, Path, read_path

PATH_ENV = "TURNOUT_SWITCH_PATH"
# Environment variables that name the host as a map may; NODE_IP is DLRover's.
HOST_ENVS = ("NODE_NAME", "NODE_IP", "HOST_IP")
MAP_KEYS = (TEXT_KEY, YAML_KEY)
MOST_FILE_BYTES = 1 << 16
MOST_MAP_BYTES = 1 << 20  # the limit of a ConfigMap

_ANNOTATION = pattern(r'([A-Za-z0-9][A-Za-z0-9./_-]*)="((?:[^"\\]|\\.)*)"\Z')
_ESCAPE = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))"
_PLAIN_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PathSource(StrEnum):
    """Names where a worker's switch path was read from."""

    GIVEN = "given"  # the command line, or the environment
    FILE = "file"
    MAP = "map"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class SwitchPath:
    """A worker's place on the fabric: the switches above its host, and the source that named them."""

    path: Path = ()  # switches from the root to above its host, () if unknown
    source: PathSource = PathSource.NOBODY
    faults: tuple[str, ...] = ()  # why sources could not be read, most trusted first


@dataclass(frozen=True, slots=True)
class PodTexts:
    """The texts that a pod was given, "" for missing ones."""

    given: str = ""  # a path
    file: str = ""  # a path, or the pod's annotations as the downward API writes them
    map: tuple[tuple[str, str], ...] = ()  # keys and texts of the topology ConfigMap
    hosts: tuple[str, ...] = ()  # possible names of the worker's host in the map
    faults: tuple[str, ...] = ()  # files that could not be read


def find_path(texts: PodTexts, annotation: str) -> SwitchPath:
    """Take the first source that names the worker's place: the given path, then the file, then the map.

    annotation: the name of the pod's annotation. Raises nothing.
    """
    faults = list(texts.faults)
    for source, text in ((PathSource.GIVEN, texts.given), (PathSource.FILE, of_file(texts.file, annotation))):
        try:
            path = read_path(text)
        except BadPath as error:
            faults.append(f"{source}: {error}")
            continue
        if path:
            return SwitchPath(path, source, tuple(faults))
    path, fault = of_map(dict(texts.map), texts.hosts)
    if fault:
        faults.append(f"{PathSource.MAP}: {fault}")
    return SwitchPath(path, PathSource.MAP if path else PathSource.NOBODY, tuple(faults))


def hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names under which a map may know the host, the most specific first."""
    return tuple(dict.fromkeys(environ[name].strip() for name in HOST_ENVS if environ.get(name, "").strip()))


def of_file(text: str, annotation: str) -> str:
    """Return the path in a file of the downward API: its single line, or one of the pod's annotations.

    Each annotation is a line key="value", quoted as Go does it. "" if the annotation is missing.
    """
    found = [_ANNOTATION.match(line.strip()) for line in text.split("\n") if line.strip()]
    if not found or not all(found):
        return text
    values = {line[1]: line[2] for line in found if line}
    return sub(_ESCAPE, lambda escape: _character(*escape.groups()), values.get(annotation, ""))


def of_map(data: Mapping[str, str], hosts: Sequence[str]) -> tuple[Path, str]:
    """Return the path above the host in a topology ConfigMap, and the error in the map, "" for none."""
    if not any(text.strip() for text in data.values()):
        return (), ""
    if not hosts:
        return (), f"none of {', '.join(HOST_ENVS)} says which host this is"
    try:
        from turnout.topology.sources import parse  # with a YAML parser: only where there is a map
    except ModuleNotFoundError as error:
        return (), f"reading it needs pip install 'turnout[launcher]': {error}"
    reading = parse.read(data)
    if reading.faults:
        first = reading.faults[0]
        return (), f"line {first.line}: {first.text} ({len(reading.faults)} in all)"
    paths = {entry.host: entry.path for entry in reading.entries}
    return next((paths[host] for host in hosts if host in paths), ()), ""


def _character(byte: str | None, short: str | None, long: str | None, plain: str | None) -> str:
    """Return the character for an escape of Go's %q."""
    code = byte or short or long
    if code is None:
        return _PLAIN_ESCAPES.get(plain or "", plain or "")
    return chr(min(int(code, 16), 0x10FFFF))
