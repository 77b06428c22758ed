"""Command-line flags of our programs. They are validated when the settings are constructed; an error names the flag."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"  # of DNS
_NAMESPACE = rf"(?=.{{1,63}}\Z){_LABEL}"
_NAME = rf"{_LABEL}(\.{_LABEL})*"


class BadSetting(ValueError):
    """A flag with an invalid value. Print the message and exit with code 2."""


def parse_address(text: str, flag: str) -> tuple[str, int]:
    """Return (host, port) of "HOST:PORT". Brackets around the host, as IPv6 needs them, are removed.

    flag: the name of the flag, for the message. Raises BadSetting if the host is missing or the port is not 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise BadSetting(f"{flag} is {text!r}: it must be host:port")
    return host.strip("[]"), int(port)


def check_name(text: str, flag: str) -> None:
    """Raise BadSetting if a text is not namespace/name, as Kubernetes allows them. flag: for the message."""
    namespace, slash, name = text.partition("/")
    if not slash or not re.fullmatch(_NAMESPACE, namespace) or not re.fullmatch(_NAME, name) or len(name) > 253:
        raise BadSetting(f"{flag} is {text!r}: it must be namespace/name, of small letters, digits, dashes and dots")


def check_url(text: str, flag: str) -> None:
    """Raise BadSetting if a text is neither empty nor an http or https URL. flag: for the message."""
    if text and not re.fullmatch(r"https?://[^\s\"<>]{1,200}", text):
        raise BadSetting(f"{flag} is {text!r}: it must be an http or https address, of 200 characters at most")


def add_log_and_docs_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags --log-level and --docs-base-url to a parser."""
    parser.add_argument(
        "--docs-base-url",
        default="",
        metavar="URL",
        help="URL of the docs site, to which Events link; if it is empty, Events name `turnout explain REASON`",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what is logged (%(default)s)",
    )


def parse_settings(parser: argparse.ArgumentParser, kind: type[T], argv: Sequence[str] | None) -> T:
    """Return the settings of a command line. If it is invalid, print the fault to stderr and exit with code 2.

    kind: the class of the settings, which has a field for the destination of each flag and raises BadSetting for a
    wrong value. A flag that is not given has the parser's default, or that of the class if the parser's is None. Lists
    become tuples. argv: the arguments, None for those of the process.
    """
    values = vars(parser.parse_args(argv))
    for key in [key for key, value in values.items() if isinstance(value, list)]:
        values[key] = tuple(values[key])
    values = {key: value for key, value in values.items() if value is not None}
    try:
        return kind(**values)
    except BadSetting as error:
        parser.error(str(error))
