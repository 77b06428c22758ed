"""`turnout-run`, which replaces torchrun. `python -m turnout.launcher --help`."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Sequence

from turnout.launcher.agent.coordinator_only import run_coordinator
from turnout.launcher.agent.start_agent import CannotListen, check_command, check_metrics, run_agent
from turnout.launcher.cli.help import explain
from turnout.launcher.cli.to_settings import CommandAnswer, read
from turnout.launcher.errors import BadMember, BadSettings
from turnout.launcher.event_log import log_to
from turnout.launcher.model import Exit
from turnout.launcher.rendezvous.arbiter import LockRefused
from turnout.launcher.settings import Settings
from turnout.launcher.torch_version import TorchTooOld, check_torch

log = logging.getLogger("turnout.launcher")
log_event = log_to(log, quiet=["member_joined", "job_time_measured", "save_ended"])  # too many lines in a large job


def main(argv: Sequence[str] | None = None, program: str = "turnout-run") -> int:
    """Run one worker's agent, or only a coordinator, until the job is over; return an exit code of model.Exit.

    An invalid command line, and settings that cannot be used on this machine, give USAGE and a message on stderr.
    argv: the arguments, None for those of this process. program: the name in messages.
    """
    settings = read(sys.argv[1:] if argv is None else argv, os.environ, program, _version)
    if isinstance(settings, CommandAnswer):
        print(settings.text, file=sys.stdout if settings.exit is Exit.DONE else sys.stderr)
        return int(settings.exit)
    if settings.explain:
        print(explain(settings))
        return int(Exit.DONE)
    try:
        _log_to_stderr(settings)
        _raise_file_limit()
        for note in settings.notes:
            log.warning("noted", extra={"about": note.about, "word": note.word.value, "detail": note.why})
        check_metrics(settings.output.metrics_port)
        if not settings.coordinates:
            check_command(settings.command)
            check_torch()
        try:
            if settings.coordinates:
                return int(asyncio.run(run_coordinator(settings, log_event)))
            return int(asyncio.run(run_agent(settings, os.environ, log_event)))
        finally:
            _discard_unwritable_output()
    except (BadMember, BadSettings, CannotListen, LockRefused, TorchTooOld) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return int(Exit.USAGE)


def dlrover_run() -> int:
    """Run the launcher under the guide's name. Source: DL-42"""
    return main(program="dlrover-run")


def _version() -> object:
    """Return the description of the installed build, which --version prints."""
    from turnout.kube.version import installed_build

    return installed_build()


def _discard_unwritable_output() -> None:
    """Drop what stdout and stderr hold and cannot write, so that Python does not end with exit code 120 for it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # None: it was closed when this process started
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _raise_file_limit() -> None:
    """Raise this process's limit of open files to its maximum, since a coordinator has one connection per worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log.debug("files_limited", extra={"most": hard})


def _log_to_stderr(settings: Settings) -> None:
    """Send the launcher's log to stderr, as JSON or plain lines.

    The environment variable LOGLEVEL sets the level; its default is INFO. Raises BadSettings for a level that
    logging does not know.
    """
    from turnout.kube.client.logs import JsonFormatter, PlainFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.output.json else PlainFormatter())
    log.addHandler(handler)
    level = os.environ.get("LOGLEVEL", "INFO")
    try:
        log.setLevel(level.upper())
    except ValueError:
        raise BadSettings(f"LOGLEVEL is {level!r}: a level such as DEBUG or INFO is needed") from None
    log.propagate = False


if __name__ == "__main__":
    sys.exit(main())
