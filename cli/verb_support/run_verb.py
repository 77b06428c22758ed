"""Runs a verb's work with an API client; reports each failure in one line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client


class NoSuch(Exception):
    """A thing that the user named does not exist. The message is printed for the user."""


class BadArgument(Exception):
    """An argument is invalid. The verb ends with ExitCode.USAGE. The message is printed for the user."""


def run_verb(
    verb: str,
    args: argparse.Namespace,
    work: Callable[[Client], Awaitable[ExitCode | None]],
    *further_errors: type[Exception],
) -> int:
    """Run `work` with a Kubernetes client, and return the exit code.

    NoSuch, CannotSee and errors of the Kubernetes client are printed in one line, and the code is FAILED. verb: for the
    message. args: with the flags of the cluster. work: returns the exit code, None for DONE. further_errors: reported
    in the same way. All others are raised, BadArgument among them.
    """
    import asyncio

    from turnout.cli.verb_support.listing import CannotSee
    from turnout.kube.client.api_client import Client
    from turnout.kube.errors import BadKubeconfig, KubeError

    async def run_to_exit() -> ExitCode:
        """Open the Kubernetes client, run the verb with it, and return the exit code."""
        open_ = Client.open(
            args.kubeconfig,
            args.context,
            minimal=True,
            max_call_s=args.request_timeout or None,
            as_user=args.as_user,
        )
        async with await open_ as client:
            return await work(client) or ExitCode.DONE

    reported: tuple[type[Exception], ...] = (NoSuch, CannotSee, KubeError, BadKubeconfig, *further_errors)
    try:
        return asyncio.run(run_to_exit())
    except reported as error:
        print(f"turnout {verb}: {error}", file=sys.stderr)
        return ExitCode.FAILED


def print_now(text: str) -> None:
    """Print a text and flush, since a reader of a pipe waits for it. Print nothing for "", not even a newline."""
    if text:
        print(text, flush=True)
