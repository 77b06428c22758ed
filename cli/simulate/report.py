"""The report of `turnout simulate --report`: both runs as curves and tables, in one HTML file that needs no network.

The views are those of `turnout page`: this module computes their values and puts them into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from turnout.cli.simulate.model import Figures, size_sentence, table_rows, verdict
from turnout.simulator.replay.model import JobResult
from turnout.simulator.replay.run import Comparison

MAX_POINTS = 600  # of a curve
PERCENTILES = tuple(range(101))
LISTED_JOBS = 20  # those that gained most, and as many that lost most


class Curve(msgspec.Struct, frozen=True):
    """What a run used over time. All tuples have one value for each point."""

    at_s: tuple[float, ...]  # since the first submission, in seconds, rising
    used_gpus: tuple[float, ...]  # GPUs that jobs hold, leaving workers included
    waiting_jobs: tuple[float, ...]  # jobs that wait for their min


class JobOutcome(msgspec.Struct, frozen=True):
    """One job in both runs. Times are in seconds."""

    name: str
    min_gpus: int
    max_gpus: int
    wait_without_s: float
    wait_s: float
    completion_without_s: float
    completion_s: float
    resizes: int


class Report(msgspec.Struct, frozen=True):
    """Everything that the report shows."""

    trace: str  # the name of the trace, as it was typed
    scene: str  # the size of the replay, in words
    verdict: str  # what lending gave, in words
    gpus: int  # of the cluster
    rows: tuple[tuple[str, str, str], ...]  # the table of figures: name, without lending, with lending
    without: Curve
    lent: Curve
    wait_without_s: tuple[float, ...]  # by PERCENTILES
    wait_s: tuple[float, ...]
    completion_without_s: tuple[float, ...]
    completion_s: tuple[float, ...]
    winners: tuple[JobOutcome, ...]  # those that ended earlier by most, first
    losers: tuple[JobOutcome, ...]  # those that ended later by most, first


class UseRecorder:
    """Records what a run uses, event by event, in memory that does not grow with the length of the trace."""

    def __init__(self, first_s: float) -> None:
        self._points: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)]  # at_s since first_s, GPUs, waiting jobs
        self._first_s, self._step_s = first_s, 0.0

    def add(self, now_s: float, used_gpus: float, waiting_jobs: float) -> None:
        """Record the state from `now_s` on (seconds of the trace).

        Of several states in one step of the curve the last one counts.
        """
        at_s = max(0.0, now_s - self._first_s)
        point = at_s, used_gpus, waiting_jobs
        if at_s - self._points[-1][0] < self._step_s or at_s == self._points[-1][0]:
            self._points[-1] = self._points[-1][0], used_gpus, waiting_jobs
            return
        self._points.append(point)
        if len(self._points) >= 2 * MAX_POINTS:
            self._step_s = at_s / MAX_POINTS
            self._points = thin(self._points, self._step_s)

    def curve(self) -> Curve:
        """Return the recorded curve, with at most MAX_POINTS points."""
        points = self._points
        if len(points) > MAX_POINTS:
            points = thin(points, points[-1][0] / (MAX_POINTS - 2))
        at_s, used_gpus, waiting_jobs = zip(*points, strict=True)
        return Curve(at_s, used_gpus, waiting_jobs)


def thin(points: Sequence[tuple[float, float, float]], step_s: float) -> list[tuple[float, float, float]]:
    """Return points that are at least `step_s` apart, each with the last state before the next one.

    points: (seconds, GPUs, waiting jobs), at least one, in ascending time.
    """
    kept_points = [points[0]]
    for at_s, used_gpus, waiting_jobs in points[1:]:
        if at_s - kept_points[-1][0] < step_s:
            kept_points[-1] = kept_points[-1][0], used_gpus, waiting_jobs
        else:
            kept_points.append((at_s, used_gpus, waiting_jobs))
    return kept_points


def report(trace: str, compared: Comparison, figures: Figures, curves: tuple[Curve, Curve]) -> Report:
    """Return the values of the report. trace: its name. compared: both runs, with the same jobs in the same order.

    figures: of `compared`. curves: of the run without lending, of that with it.
    """
    outcomes = sorted(
        (
            _outcome(before, after)
            for before, after in zip(compared.without.results, compared.lent.results, strict=True)
        ),
        key=lambda each: (each.completion_s - each.completion_without_s, each.name),
    )
    return Report(
        trace=trace,
        scene=size_sentence(figures),
        verdict=verdict(figures),
        gpus=figures.gpus,
        rows=table_rows(figures),
        without=curves[0],
        lent=curves[1],
        wait_without_s=_percentiles(compared.without.results, lambda each: each.waited_s),
        wait_s=_percentiles(compared.lent.results, lambda each: each.waited_s),
        completion_without_s=_percentiles(compared.without.results, lambda each: each.took_s),
        completion_s=_percentiles(compared.lent.results, lambda each: each.took_s),
        winners=tuple(each for each in outcomes[:LISTED_JOBS] if each.completion_s < each.completion_without_s),
        losers=tuple(
            each for each in outcomes[: -LISTED_JOBS - 1 : -1] if each.completion_s > each.completion_without_s
        ),
    )


def _outcome(before: JobResult, after: JobResult) -> JobOutcome:
    """Return one job's times in both runs. before: without lending. after: with lending."""
    submitted = after.submitted
    return JobOutcome(
        submitted.name,
        submitted.min_gpus,
        submitted.maximum * submitted.gpus,
        before.waited_s,
        after.waited_s,
        before.took_s,
        after.took_s,
        after.restarts,
    )


def _percentiles(ran: Sequence[JobResult], value: Callable[[JobResult], float]) -> tuple[float, ...]:
    """Return the value of the job at each of PERCENTILES, ascending, by the nearest rank. ran: at least one job.

    value: returns that of a job.
    """
    ordered = sorted(map(value, ran))
    return tuple(ordered[round(percent / 100 * (len(ordered) - 1))] for percent in PERCENTILES)


def document(values: Report, script: str, style: str, notices: str) -> str:
    """Return the HTML document that contains everything: values, script, style, and the notices of the libraries."""
    text = msgspec.json.encode(values).decode().replace("<", "\\u003c")  # no name can end the element
    style, script = style.replace("</", "<\\/"), script.replace("</", "<\\/")
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Turnout: report of a replay</title>\n'
        f"<style>{style}</style>\n"
        '<body>\n<div id="app"><p class="loading">The report needs JavaScript.</p></div>\n'
        f'<script type="text/plain" id="notices">\n{notices}</script>\n'
        f'<script type="application/json" id="report">{text}</script>\n'
        f'<script type="module">{script}</script>\n'
    )
