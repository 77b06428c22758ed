"""Logging of our programs: one JSON object a line for machines, one plain line for a person at a terminal.

The message is the name of the event; its fields are `extra` fields. Values that look like secrets are hidden.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SECRET_FIELD = re.compile(r"token|secret|password|authorization|private_?key|credential", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"  # an Authorization header
    # A service account's JSON web token. The lookahead keeps the search linear, because a text may be long.
    r"|(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.)[A-Za-z0-9_-]*?"
    r"\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = "[hidden]"
_MAX_VALUE_CHARS = 4096  # of one message or field
_MAX_TRACE_CHARS = 16_384  # of a traceback


def setup(level: str | int = "INFO", stream: TextIO | None = None) -> None:
    """Send log records of `level` and above to a stream, and Python's warnings too.

    Earlier handlers of the root logger are removed. stream: None for standard error. A terminal gets plain lines, any
    other stream JSON. Raises ValueError for an unknown level, after the handlers were replaced.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter() if stream.isatty() else JsonFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, event, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON, in which secrets are replaced by [hidden].

        If a field of the event has the name of a fixed field (time, level, logger, event, trace), an underscore is
        added to the name of that field: `time_`.
        """
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _without_secrets(record.getMessage()),
        }
        for name, value in _extra_fields(record).items():
            line[f"{name}_" if name in line or name == "trace" else name] = value
        if record.exc_info:
            line["trace"] = _end_of_trace(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True, default=_text)


class PlainFormatter(logging.Formatter):
    """One plain line: `12:00:00 warning lease_lost lease=...`. Control characters are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one plain line: time, level, message and fields. Only a traceback adds further lines.

        Secrets are replaced by [hidden]. Control characters are escaped, except in the traceback. The time is local.
        """
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f" {name}={printable(_text(value))}" for name, value in _extra_fields(record).items())
        line = f"{when} {record.levelname.lower():7} {printable(_without_secrets(record.getMessage()))}{fields}"
        if record.exc_info:
            line += "\n" + _end_of_trace(self.formatException(record.exc_info))
        return line


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of `extra` in their order, without those whose name begins with `_`.

    The whole value of a field whose name means a secret is replaced by [hidden]; in other texts only tokens and private
    keys are. A text is cut to _MAX_VALUE_CHARS. Finite numbers, booleans and None keep their type; all other values
    become texts.
    """
    fields = {}
    for name, value in vars(record).items():
        if name not in _STANDARD_FIELDS and not name.startswith("_"):
            is_json = value is None or (isinstance(value, bool | int | float) and math.isfinite(value))  # no NaN
            shown_value = value if is_json else _without_secrets(_text(value))
            fields[name] = _HIDDEN if _SECRET_FIELD.search(name) else shown_value
    return fields


def _text(value: object) -> str:
    """Return a value as text. Never raises: a value whose str() fails becomes a text with its class and the class of
    the error.
    """
    try:
        return value if isinstance(value, str) else str(value)
    except Exception as error:  # a log line must never break the work that it reports
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _without_secrets(text: str) -> str:
    """Return the first _MAX_VALUE_CHARS characters of a text whose tokens and private keys are replaced by [hidden].

    The secrets are searched before the text is cut, because a part of a secret is not recognized.
    """
    return _SECRET_VALUE.sub(_HIDDEN, text)[:_MAX_VALUE_CHARS]


def _end_of_trace(trace: str) -> str:
    """Return the last _MAX_TRACE_CHARS characters of a traceback whose secrets are replaced as in _without_secrets().

    The end is shown, because the error is there.
    """
    return _SECRET_VALUE.sub(_HIDDEN, trace)[-_MAX_TRACE_CHARS:]


def printable(text: str) -> str:
    """Return a text with its control characters escaped, so that a tenant's text cannot move the cursor."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
