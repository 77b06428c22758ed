"""The requests that a program sends, counted by the API server's audit log: the same measure for any program.

Left out are Leases and what kubelets write, which no job controller is judged by, and watches, which last.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

_QUIET = [
    {
        "level": "None",
        "resources": [{"group": "coordination.k8s.io"}, {"group": "", "resources": ["nodes/*", "nodes"]}],
    },
    {"level": "None", "resources": [{"group": "", "resources": ["pods/status"]}]},
    {"level": "None", "verbs": ["watch"]},
    {"level": "None", "nonResourceURLs": ["*"]},
    {"level": "Metadata"},
]
READS = ("get", "list")


class _Ref(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Line(msgspec.Struct):
    verb: str
    user_agent: str = msgspec.field(name="userAgent", default="")
    what: _Ref = msgspec.field(name="objectRef", default_factory=_Ref)


_line = msgspec.json.Decoder(_Line)


class Audit:
    """One API server's audit log. folder: where it lies; it has to outlive the server."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "audit.log"
        self._policy = folder / "policy.json"
        policy: dict[str, Any] = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": _QUIET}
        self._policy.write_text(json.dumps({**policy, "omitStages": ["RequestReceived"]}))

    def flags(self) -> tuple[str, ...]:
        """Return the API server's flags for the audit log."""
        never = 1 << 16  # MiB, until a new file is begun
        files = (f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}")
        return (*files, f"--audit-log-maxsize={never}")

    def size_bytes(self) -> int:
        """Return the present size of the log in bytes, for `count_since`; 0 if it does not exist yet."""
        return self._log.stat().st_size if self._log.exists() else 0

    def count_since(self, at: int, agent: str) -> Counter[str]:
        """Count the requests of one program, as "verb resource" or "verb resource/subresource".

        at: position in the log, bytes; earlier requests are not counted. agent: how the program's user agent begins.
        Raises FileNotFoundError if there is no log yet.
        """
        with self._log.open("rb") as log:
            log.seek(at)
            lines = log.read().split(b"\n")[:-1]  # the last one may be half written
        found = Counter[str]()
        for raw in lines:
            line = _line.decode(raw)
            if line.user_agent.startswith(agent):
                parts = filter(None, (line.what.resource, line.what.subresource))
                found[f"{line.verb} {'/'.join(parts)}"] += 1
        return found


def count_writes(counted: Counter[str]) -> int:
    """Return how many of these requests, counted by "verb resource", change something."""
    return sum(count for name, count in counted.items() if name.partition(" ")[0] not in READS)
