"""Reads the worker's place on the fabric at each look, and reports once what it cannot read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnout.launcher.agent.switch_path import (
    MAP_KEYS,
    MOST_FILE_BYTES,
    MOST_MAP_BYTES,
    PATH_ENV,
    PodTexts,
    SwitchPath,
    find_path,
    hosts,
)
from turnout.topology.switch_paths import path_text

log = logging.getLogger("turnout.launcher")


class SwitchPathReader:
    """Reads the worker's place on the fabric. A source given as "" is not read.

    environ: of the agent. path: from the command line; it overrides the environment.
    path_file: written by the downward API. map_folder: the mount of the topology ConfigMap.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        path: Sequence[str] = (),
        path_file: str = "",
        map_folder: str = "",
    ) -> None:
        self._given, self._hosts = path_text(path) or environ.get(PATH_ENV, ""), hosts(environ)
        self._file = Path(path_file) if path_file else None
        self._map = Path(map_folder) if map_folder else None
        self._texts: PodTexts | None = None
        self._sighting = SwitchPath()

    def look(self) -> SwitchPath:
        """Read the current place. Blocks while it reads small files; raises nothing."""
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
        faults: list[str] = []
        file = _text(self._file, MOST_FILE_BYTES, faults) if self._file else ""
        data = []
        if self._map:
            data = [(key, _text(self._map / key, MOST_MAP_BYTES, faults)) for key in MAP_KEYS]
        return PodTexts(self._given, file, tuple(data), self._hosts, tuple(faults))


def _text(file: Path, most_bytes: int, faults: list[str]) -> str:
    """Return a file's text, "" if it does not exist or cannot be read. A read error is added to `faults`."""
    try:
        if not file.exists():
            return ""
        if not file.is_file():
            faults.append(f"{file} is no file")
            return ""
        with file.open("rb") as stream:
            found = stream.read(most_bytes + 1)
        if len(found) > most_bytes:
            faults.append(f"{file} is larger than {most_bytes} bytes")
            return ""
        return found.decode()
    except FileNotFoundError:
        return ""  # the kubelet is exchanging the file right now
    except (OSError, ValueError) as error:
        faults.append(f"{file} cannot be read: {str(error)[:200]}")
        return ""
