"""Finds a worker's place on the fabric, the path of switches above its host, in the texts that a pod can get.

The texts are read elsewhere, again for each round, since a file may come late. A source that cannot be read is reported
and leaves the place unknown; it never stops training.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from re import compile as pattern
from re import sub

from turnout.topology.names import TEXT_KEY, YAML_KEY
from turnout.topology.switch_paths import BadPath, Path, path_text, read_path

PATH_ENV = "TURNOUT_SWITCH_PATH"
# Environment variables that name the host as a map may; NODE_IP is DLRover's.
HOST_ENVS = ("NODE_NAME", "NODE_IP", "HOST_IP")

MAP_KEYS = (TEXT_KEY, YAML_KEY)

MAX_FILE_BYTES = 1 << 16

MAX_MAP_BYTES = 1 << 20  # the limit of a ConfigMap

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
    """Return the worker's place from the first source that names it: the given path, then the file, then the map.

    annotation: key of the pod's annotation in the file. Without any, the path is () and the source NOBODY. Sources that
    cannot be read are listed in `faults`. Raises nothing.
    """
    faults = list(texts.faults)
    for source, text in ((PathSource.GIVEN, texts.given), (PathSource.FILE, path_from_text(texts.file, annotation))):
        try:
            path = read_path(text)
        except BadPath as error:
            faults.append(f"{source}: {error}")
            continue
        if path:
            return SwitchPath(path, source, tuple(faults))
    path, fault = path_from_map(dict(texts.map), texts.hosts)
    if fault:
        faults.append(f"{PathSource.MAP}: {fault}")
    return SwitchPath(path, PathSource.MAP if path else PathSource.NOBODY, tuple(faults))


def host_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names under which a map may know the host, in the order of HOST_ENVS, without duplicates."""
    return tuple(dict.fromkeys(environ[name].strip() for name in HOST_ENVS if environ.get(name, "").strip()))


def path_from_text(text: str, annotation: str) -> str:
    """Return a switch path from the text of a file.

    If every line is key="value", quoted as Go does it, the text is that of annotations of the pod: return the value of
    `annotation`, "" if it is missing. Else return the text as it is.
    """
    found = [_ANNOTATION.match(line.strip()) for line in text.split("\n") if line.strip()]
    if not found or not all(found):
        return text
    values = {line[1]: line[2] for line in found if line}
    return sub(_ESCAPE, lambda escape: _character(*escape.groups()), values.get(annotation, ""))


def path_from_map(data: Mapping[str, str], hosts: Sequence[str]) -> tuple[Path, str]:
    """Return (switches above the host, fault) from the texts of a topology ConfigMap.

    data: of the ConfigMap, name -> text. hosts: possible names of this host; the first one in the map counts. The path
    is () if no host is in the map, or if there is a fault. The fault is "" for an empty map. Else it says that the map
    is invalid, that `hosts` is empty, or that the library to read a map is missing; "" for none of these.
    """
    if not any(text.strip() for text in data.values()):
        return (), ""
    if not hosts:
        return (), f"none of {', '.join(HOST_ENVS)} says which host this is"
    try:
        from turnout.topology.map_formats import read_map  # with a YAML parser: only where there is a map
    except ModuleNotFoundError as error:
        return (), f"reading it needs pip install 'turnout[launcher]': {error}"
    reading = read_map(data)
    if reading.faults:
        first = reading.faults[0]
        return (), f"line {first.line}: {first.text} ({len(reading.faults)} in all)"
    paths = {entry.host: entry.path for entry in reading.entries}
    return next((paths[host] for host in hosts if host in paths), ()), ""


def _character(byte: str | None, short: str | None, long: str | None, plain: str | None) -> str:
    """Return the character for one escape of Go's %q.

    byte, short, long: hexadecimal digits after x, u and U. plain: another letter after the backslash. One of them is
    given, the others are None.
    """
    code = byte or short or long
    if code is None:
        return _PLAIN_ESCAPES.get(plain or "", plain or "")
    return chr(min(int(code, 16), 0x10FFFF))


log = logging.getLogger("turnout.launcher")


class SwitchPathReader:
    """Reads the worker's place on the fabric. A source given as "" is not read.

    environ: of the agent. path: from the command line; it overrides the environment. path_file: written by the downward
    API. map_folder: the mount of the topology ConfigMap.
    """

    def __init__(
        self, environ: Mapping[str, str], path: Sequence[str] = (), path_file: str = "", map_folder: str = ""
    ) -> None:
        self._given, self._hosts = path_text(path) or environ.get(PATH_ENV, ""), host_names(environ)
        self._file = pathlib.Path(path_file) if path_file else None
        self._map = pathlib.Path(map_folder) if map_folder else None
        self._texts: PodTexts | None = None
        self._sighting = SwitchPath()

    def look(self) -> SwitchPath:
        """Read the current place in the network. Blocks while it reads small files; raises nothing.

        New faults, and a place other than the last one, are logged. A place that cannot be read has an empty path.
        """
        from turnout.kube.labels import SWITCH_PATH

        texts = self._read()
        if texts == self._texts:  # parse the map of a large cluster once only
            return self._sighting
        before, self._sighting, self._texts = self._sighting, find_path(texts, SWITCH_PATH), texts
        now = self._sighting
        for fault in now.faults:
            if fault not in before.faults:
                log.warning("switch_path_unreadable", extra={"why": fault})
        if (now.path, now.source) != (before.path, before.source):
            log.info("switch_path_seen", extra={"path": path_text(now.path), "source": now.source.value})
        return now

    def _read(self) -> PodTexts:
        """Read the path file and the mounted map of this pod.

        The given path and the host's names stay as they were when this reader was made. Files that cannot be read are
        listed as faults.
        """
        faults: list[str] = []
        file = _text(self._file, MAX_FILE_BYTES, faults) if self._file else ""
        data = []
        if self._map:
            data = [(key, _text(self._map / key, MAX_MAP_BYTES, faults)) for key in MAP_KEYS]
        return PodTexts(self._given, file, tuple(data), self._hosts, tuple(faults))


def _text(file: pathlib.Path, max_bytes: int, faults: list[str]) -> str:
    """Return a file's text, "" if it does not exist.

    "" and one more text in `faults` if it is no regular file, is larger than `max_bytes`, or cannot be read as UTF-8.
    """
    try:
        if not file.exists():
            return ""
        if not file.is_file():
            faults.append(f"{file} is no file")
            return ""
        with file.open("rb") as stream:
            found = stream.read(max_bytes + 1)
        if len(found) > max_bytes:
            faults.append(f"{file} is larger than {max_bytes} bytes")
            return ""
        return found.decode()
    except FileNotFoundError:
        return ""  # the kubelet is exchanging the file right now
    except (OSError, ValueError) as error:
        faults.append(f"{file} cannot be read: {str(error)[:200]}")
        return ""
