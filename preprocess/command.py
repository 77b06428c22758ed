"""The command line: make a dataset, or check one.

Exit codes: 0 done, 1 failed or not valid, 2 for a wrong command or a missing package, 130 after Ctrl-C,
141 if the reader of the output has closed it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnout.preprocess import options
from turnout.preprocess.errors import BadDocument, BadOption, BrokenDataset, PreprocessError
from turnout.preprocess.options import Options

if TYPE_CHECKING:  # numpy and msgspec take a tenth of a second, which a help does not need
    from turnout.preprocess.run import Totals

Runner = Callable[[Options], "Totals | None"]  # makes a dataset; None if another process will complete it

BROKEN_PIPE = 141  # the exit code that a shell reports for SIGPIPE
DESCRIPTION = "Turn text into Megatron's indexed datasets, <prefix>_<key>_document.bin and .idx."
CHECK_EPILOG = """examples:
  turnout preprocess check data/corpus_text_document  # the path without .bin and .idx

exit codes: 0 valid, 1 not valid, 2 wrong command"""
EPILOG = "If a run was stopped, the same command continues it from its finished shards."


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m turnout.preprocess` and return its exit code. argv: None for the arguments of the process.

    Exits with 2 if the arguments cannot be parsed. The code is 141 if the reader of stdout has closed it.
    """
    program = "python -m turnout.preprocess"
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False, description=DESCRIPTION, epilog=EPILOG)
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        status = run(arguments, program)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return BROKEN_PIPE
    return status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run to a parser, and the command `check`, which verifies a dataset."""
    options.add_arguments(parser, required=False)
    actions = parser.add_subparsers(dest="action", metavar="check")
    check = actions.add_parser(
        "check",
        help="verify a dataset and print a summary",
        description="Verify a dataset and print a summary; exit 1 and name the first thing that does not fit.",
        epilog=CHECK_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("prefix", help="path of the dataset without .bin and .idx")
    check.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="form of the summary (default: text)"
    )


def run(arguments: argparse.Namespace, program: str) -> int:
    """Make a dataset on this machine or check one, and return the exit code: 0, 1, 2 or 130.

    arguments: of a parser that add_arguments() has filled. program: the name of the program, for messages. Raises
    BrokenPipeError if the reader of the output has closed it.
    """
    if arguments.action == "check":
        return _check(arguments.prefix, arguments.output, f"{program} check")
    from turnout.preprocess.local_runner import run_local

    return make_dataset(arguments, program, run_local)


def make_dataset(arguments: argparse.Namespace, program: str, runner: Runner) -> int:
    """Make the dataset that a command line describes, print a summary, and return the exit code 0.

    arguments: of the options of a run. program: the name of the program, for messages. runner: makes the dataset, on
    one machine or on Spark. An expected error is printed to stderr, and the exit code is 2 for a wrong command or a
    missing package, 1 for a failure, and 130 after Ctrl-C. Any other error is raised.
    """
    try:
        run_options = options.read_options(arguments)
        with _logs_on_stderr():
            totals = runner(run_options)
    except BadOption as error:
        return _report_failure(program, str(error), 2)
    except ModuleNotFoundError as error:
        extra = "spark" if error.name == "pyspark" else "preprocess"
        return _report_failure(program, f"{error.name} is missing: pip install 'turnout[{extra}]'", 2)
    except BadDocument as error:
        return _report_failure(program, f"{error}; repair it, or leave it out with --on-error skip or quarantine", 1)
    except (PreprocessError, OSError) as error:
        return _report_failure(program, str(error), 1)
    except KeyboardInterrupt:
        return _report_failure(program, "stopped; run the same command again to continue from the finished shards", 130)
    print(_summary(run_options, totals))
    return 0


def _report_failure(program: str, message: str, status: int) -> int:
    """Print a message to stderr, and return the status."""
    print(f"{program}: {message}", file=sys.stderr)
    return status


def _summary(run_options: Options, totals: Totals | None) -> str:
    """Return the last line of a run's output: documents, tokens, the datasets, and the documents that were left out.

    totals: None if other processes of the run have not finished; then the line names this process's share of the work.
    """
    if totals is None:
        share = f"share {run_options.share.index} of {run_options.share.count}"
        return f"{share} is done; the last share to end merges the dataset"
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in totals.fault_counts.items())
    datasets = ", ".join(f"{run_options.output_prefix}_{key}_document" for key in run_options.keys)
    documents = "document" if totals.documents == 1 else "documents"
    summary = f"{totals.documents:,} {documents}, {totals.tokens:,} tokens in {datasets}"
    return f"{summary}; left out: {left_out}" if left_out else summary


def _check(prefix: str, output_format: str, program: str) -> int:
    """Check a dataset, print its summary to stdout or its first fault to stderr, and return the exit code: 0 or 1,
    and 2 for a URL that cannot be opened here.

    prefix: the path of the dataset without suffix. output_format: text or json. program: the name of the command, for
    messages.
    """
    from turnout.preprocess import dataset

    try:
        summary = dataset.check_dataset(prefix)
    except BadOption as error:
        return _report_failure(program, str(error), 2)
    except (BrokenDataset, OSError) as error:
        return _report_failure(program, str(error), 1)
    print(summary.text() if output_format == "text" else json.dumps(dataclasses.asdict(summary)))
    return 0


class _LineFormatter(logging.Formatter):
    """A log line of an event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a log record, then its extra fields as name=value. A traceback is not written."""
        standard_fields = logging.makeLogRecord({}).__dict__
        fields = " ".join(
            f"{name}={value}"
            for name, value in record.__dict__.items()
            if name not in standard_fields and name != "message"
        )
        return f"{record.getMessage()} {fields}".rstrip()


@contextmanager
def _logs_on_stderr() -> Iterator[None]:
    """Write log lines of this package to stderr while the block runs, and not to handlers of parent loggers.

    The logger keeps the level INFO afterwards.
    """
    logger, handler = logging.getLogger("turnout.preprocess"), logging.StreamHandler()
    handler.setFormatter(_LineFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
