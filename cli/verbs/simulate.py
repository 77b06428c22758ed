"""The verb `turnout simulate TRACE`: a trace of jobs replayed with lending and without."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb
from turnout.cli.verb_support.run_verb import BadArgument, print_now

if TYPE_CHECKING:
    from turnout.cli.simulate.model import Figures, SimulationOptions
    from turnout.cli.simulate.report import UseRecorder
    from turnout.simulator.replay.cluster import ReplayWorld
    from turnout.simulator.replay.model import Submission
    from turnout.simulator.replay.run import Comparison, Watch
    from turnout.simulator.replay.traces import TraceRow

DRAWN = "drawn"
_EXAMPLES = (
    ("simulate drawn --jobs 300 --seed 1", "jobs drawn by chance"),
    ("simulate trace.csv --nodes 32x8", "your own jobs"),
    ("simulate trace.csv --elastic 0.5 -o json", "half of the jobs are elastic; for a program"),
    ("simulate trace.csv --report report.html", "curves and tables for a browser, too"),
)
_MAX_NODES = 10_000
_DRAWN_JOBS, _DRAWN_GPUS, _DRAWN_LOAD = 500, 64, 0.7


def add(commands: Verbs) -> None:
    """Add the verb `simulate` to the command line."""
    simulate = add_verb(commands, "simulate", "replay a trace of jobs with lending and without, and compare", _EXAMPLES)
    simulate.add_argument(
        "trace",
        metavar="TRACE",
        help=f"CSV with submission_time, num_gpu and duration in seconds; - for stdin; `{DRAWN}`: one drawn by --seed",
    )
    simulate.add_argument("--nodes", metavar="NxGPUS", help="the cluster, as in 32x8 (default: a load of 65 %%)")
    simulate.add_argument("--jobs", type=int, default=0, help="only the first N jobs (default: all)", metavar="N")
    simulate.add_argument("--elastic", type=float, default=1.0, help="share of jobs that are elastic (%(default)s)")
    simulate.add_argument("--factor", type=int, default=4, help="their max over their min (%(default)s)")
    simulate.add_argument("--restart-s", type=float, default=60.0, help="cost of a change of size (%(default)s)")
    simulate.add_argument("--headroom-gpus", type=int, default=0, help="GPUs that lending leaves free (%(default)s)")
    simulate.add_argument("--backfill", action="store_true", help="a job may pass an older one that does not fit")
    simulate.add_argument("--seed", type=int, default=0, help="which jobs are elastic, what is drawn (%(default)s)")
    simulate.add_argument("--report", metavar="FILE", help="write curves and tables of both runs as one HTML file, too")
    simulate.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="output format (%(default)s)"
    )
    simulate.set_defaults(run=_simulate)


def _simulate(args: argparse.Namespace) -> int:
    """Replay a trace with lending and without, and print the figures of both.

    Returns the exit code: FAILED if the trace cannot be read or the report cannot be written. Raises BadArgument if an
    option is invalid, the trace has no job, or a job does not fit the cluster.
    """
    from dataclasses import asdict

    from turnout.cli.simulate import model
    from turnout.cli.simulate.model import lines, size_sentence, verdict
    from turnout.cli.views.listing import encode_values
    from turnout.simulator.replay.traces import BadTrace

    try:
        options = _options(args)
        submissions, rules = model.jobs_of(_trace_rows(args), options, args.jobs)
    except model.BadSimulation as error:
        raise BadArgument(str(error)) from error
    except (BadTrace, OSError, UnicodeDecodeError) as error:
        print(f"turnout simulate: {args.trace}: {error}", file=sys.stderr)
        return ExitCode.FAILED
    recorders = _recorders(submissions) if args.report else None
    with _progress(2 * len(submissions)) as ended:
        compared = model.simulate(submissions, rules, options, ended, recorders and _watches(recorders))
    figures = model.figures(compared)
    if args.output == "table":
        print_now("\n".join([size_sentence(figures), *lines(figures), verdict(figures)]))
    else:
        print_now(encode_values(asdict(figures), args.output))
    if recorders is not None:
        return _write_report(args, compared, figures, recorders)
    return ExitCode.DONE


def _recorders(submissions: Sequence[Submission]) -> tuple[UseRecorder, UseRecorder]:
    """Return a recorder of the run without lending, and one of the run with it. Both begin at the first submission.

    submissions: of the trace, at least one.
    """
    from turnout.cli.simulate.report import UseRecorder

    first_s = min(each.at_s for each in submissions)
    return UseRecorder(first_s), UseRecorder(first_s)


def _watches(recorders: tuple[UseRecorder, UseRecorder]) -> tuple[Watch, Watch]:
    """Return for each run the function that is called at each of its events, and records its use.

    recorders, and the result: (of the run without lending, of the run with it).
    """

    def watch(recorder: UseRecorder, world: ReplayWorld) -> None:
        recorder.add(world.now_s, world.rules.gpus - sum(world.free), len(world.waiting))

    without, lent = recorders
    return partial(watch, without), partial(watch, lent)


def _write_report(
    args: argparse.Namespace, compared: Comparison, figures: Figures, recorders: tuple[UseRecorder, UseRecorder]
) -> int:
    """Write the HTML report to the file of --report, and its path to stderr.

    recorders: of the run without lending and of that with it, in this order. Returns the exit code: FAILED if the file
    cannot be written.
    """
    from importlib import resources

    from turnout.cli.simulate.report import document, report

    static = resources.files("turnout.cli.page").joinpath("static")
    names = ("report.js", "page.css", "notices.txt")
    script, style, notices = (static.joinpath(name).read_text(encoding="utf-8") for name in names)
    without, lent = recorders
    values = report(args.trace, compared, figures, (without.curve(), lent.curve()))
    try:
        Path(args.report).write_text(document(values, script, style, notices), encoding="utf-8")
    except OSError as error:
        print(f"turnout simulate: --report: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print(f"the report is in {args.report}", file=sys.stderr)
    return ExitCode.DONE


def _options(args: argparse.Namespace) -> SimulationOptions:
    """Return the simulation's options by the command line. Raises BadSimulation if one of them is invalid."""
    from turnout.cli.simulate.model import BadSimulation, SimulationOptions

    nodes: tuple[int, ...] = ()
    if args.nodes is not None:
        found = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,2})", args.nodes)
        if found is None or int(found[1]) > _MAX_NODES:
            raise BadSimulation(f"--nodes is {args.nodes!r}: it must be NxGPUS, as in 32x8, {_MAX_NODES:,} at most")
        nodes = (int(found[2]),) * int(found[1])
    if args.jobs < 0:
        raise BadSimulation(f"--jobs is {args.jobs}: it must not be negative")
    more = (args.elastic, args.factor, args.restart_s, args.headroom_gpus, args.backfill, args.seed)
    return SimulationOptions(nodes, *more)


def _trace_rows(args: argparse.Namespace) -> Sequence[TraceRow]:
    """Return the rows of the trace file, of stdin for "-", or those generated from --jobs and --seed.

    Raises BadTrace if the text is no trace, OSError if the file cannot be read, and UnicodeDecodeError if it is no
    text.
    """
    from random import Random

    from turnout.simulator.replay.traces import draw_trace, rows_of

    if args.trace == DRAWN:
        return draw_trace(args.jobs or _DRAWN_JOBS, _DRAWN_GPUS, _DRAWN_LOAD, Random(args.seed))
    return rows_of(sys.stdin.read() if args.trace == "-" else Path(args.trace).read_text())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr, if it is a terminal, how many jobs of both runs have ended.

    Yields the function to call with this number. total: number of jobs of both runs.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("jobs replayed", total=total)
        yield lambda count: progress.update(task, completed=count)
