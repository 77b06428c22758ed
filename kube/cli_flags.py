"""The command lines of our programs: flags that are checked when they are built, and a bad one named."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class BadSetting(ValueError):
    """A flag that cannot be obeyed. Say so and end with exit code 2."""


def address(text: str, flag: str) -> tuple[str, int]:
    """host:port, with IPv6 hosts in brackets. Raises BadSetting."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise BadSetting(f"{flag} is {text!r}: it must be host:port")
    return host.strip("[]"), int(port)


def check_name(text: str, flag: str) -> None:
    """namespace/name. Raises BadSetting."""
    if text.count("/") != 1 or not all(text.split("/")):
        raise BadSetting(f"{flag} is {text!r}: it must be namespace/name")


def check_url(text: str, flag: str) -> None:
    """Check that a text is empty or the address of a site. Raises BadSetting."""
    if text and not re.fullmatch(r"https?://[^\s\"<>]{1,200}", text):
        raise BadSetting(f"{flag} is {text!r}: it must be an http or https address of at most 200 characters")


def add_reporting(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is logged, and where the reasons of Events are explained."""
    parser.add_argument(
        "--docs-base-url",
        default="",
        metavar="URL",
        help="of the docs site: Events link to it; where it is empty they name `turnout explain REASON`",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what is logged (%(default)s)",
    )


def build(parser: argparse.ArgumentParser, kind: type[T], argv: Sequence[str] | None) -> T:
    """Parse and check. Ends the program with code 2 on a bad command line."""
    values = vars(parser.parse_args(argv))
    for key in [key for key, value in values.items() if isinstance(value, list)]:
        values[key] = tuple(values[key])
    values = {key: value for key, value in values.items() if value is not None}
    try:
        return kind(**values)
    except BadSetting as error:
        parser.error(str(error))
