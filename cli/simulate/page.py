"""The report of a simulation as one HTML file: figures, plots, the jobs that won and lost most. It loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from turnout.cli.simulate.model import Figures, Simulated
from turnout.cli.simulate.plots import gains, harms, later, utilisation, waits
from turnout.cli.why import count, lasting
from turnout.simulator.replay.model import Ran

_MOST_JOBS = 8  # in each table
_STYLE = """
:root{--ink:#1b1f24;--soft:#5b6570;--paper:#fff;--card:#f5f7f9;--grid:#dfe4ea;--with:#1f63d8;--without:#7b8490;
--harm:#d1490c;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#e8ebef;--soft:#9aa5b1;--paper:#14181d;--card:#1d232a;--grid:#2d353e;
--with:#6ea2ff;--without:#98a2ae;--harm:#ff8a52}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:860px;padding:32px 20px 64px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:25px;line-height:1.25;margin:0 0 4px}h2{font-size:17px;margin:36px 0 2px}
p{margin:4px 0 10px;color:var(--soft)}p.verdict{color:var(--ink);font-size:17px;margin:14px 0 18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:12px;margin:16px 0}
.tile{background:var(--card);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:21px;white-space:nowrap;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
figure{margin:8px 0 0}svg{width:100%;height:auto;display:block}
.legend{display:flex;gap:18px;font-size:13px;color:var(--soft);margin:2px 0 4px}
.legend i{display:inline-block;width:16px;height:0;border-top:3px solid;margin-right:6px;vertical-align:middle}
.legend i.with,.legend i.gain{border-color:var(--with)}
.legend i.without{border-color:var(--without);border-top-style:dashed}
.legend i.harm{border-color:var(--harm)}
.grid{stroke:var(--grid);stroke-width:1;fill:none}.rule{stroke:var(--soft);stroke-width:1;fill:none}
.tick,.axis{fill:var(--soft);font-size:12px}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.with{stroke:var(--with)}
.line.without{stroke:var(--without);stroke-dasharray:5 4}
.area{stroke:none}.area.with{fill:var(--with);opacity:.13}
.bar.gain{fill:var(--with)}.bar.harm{fill:var(--harm)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}
footer{margin-top:40px;border-top:1px solid var(--grid);padding-top:10px;color:var(--soft);font-size:13px}
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The trace that was replayed, and with which program. command: that makes the same page again."""

    trace: str
    command: str
    version: str


def page(told: Simulated, found: Figures, origin: Origin) -> str:
    """Return the whole page."""
    title = f"Lending, replayed: {origin.trace}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_scene(told, found))}</p>",
        f'<p class="verdict">{escape(verdict(found))}</p>',
        _tiles(found),
        _figure(
            "How full the cluster was",
            "GPUs that jobs held, those of restarts and of leaving workers included.",
            utilisation(told),
        ),
        _figure("How long jobs waited", "From submission until the job ran with its min.", waits(told)),
        _figure(
            "What each job won or lost",
            "Time from submission to end, without lending over with it. Point at a bar to read its job.",
            gains(told),
            (("gain", "faster with lending"), ("harm", "slower with lending")),
        ),
        _harm(told),
        _jobs("Jobs that won most", _ordered(told)[:_MOST_JOBS]),
        _jobs("Jobs that lost most", [each for each in reversed(_ordered(told)) if _lost_s(each) > 1][:_MOST_JOBS]),
        _assumed(told),
        f"<footer>Made by Turnout {escape(origin.version)}: <code>{escape(origin.command)}</code></footer>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def verdict(found: Figures) -> str:
    """Say in a sentence or two what lending gave, and who paid."""
    gain = f"Jobs end {found.faster:.2f} times as fast on average" if found.faster >= 1.005 else "Jobs end no faster"
    used = f"the cluster is busy to {found.busy:.0%} rather than {found.busy_without:.0%}"
    paid = "no job ends later by more than a minute"
    if found.worse:
        number = round(found.worse * found.jobs)
        paid = f"{count(number, 'job')} of {found.jobs:,} ({found.worse:.1%}) end more than a minute later"
    return f"{gain}, and {used}; {paid}."


def _scene(told: Simulated, found: Figures) -> str:
    wanted = told.wanted
    queue = "backfill" if wanted.backfill else "strict FIFO"
    elastic = "all jobs elastic" if wanted.elastic == 1 else f"{wanted.elastic:.0%} of the jobs elastic"
    cluster = f"{count(found.nodes, 'node')}, {found.gpus:,} GPUs"
    return f"{found.jobs:,} jobs on {cluster}; {elastic}, up to {wanted.factor} times their min; {queue}."


def _tiles(found: Figures) -> str:
    tiles = (
        (f"{found.faster:.2f}x", "as fast, from submission to end, on average"),
        (f"{found.busy_without:.0%} → {found.busy:.0%}", "of GPU time with progress"),
        (f"{lasting(found.mean_wait_without_s)} → {lasting(found.mean_wait_s)}", "mean wait"),
        (f"{lasting(found.p99_wait_without_s)} → {lasting(found.p99_wait_s)}", "wait that 99 of 100 do not exceed"),
        (f"{found.gained:,} / {found.lost:,}", "jobs that won / lost more than a second"),
        (f"{found.restarts:.2f}", "changes of size a job"),
    )
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles
    )
    return f'<div class="tiles">{cells}</div>'


_BOTH = (("with", "with lending"), ("without", "without"))


def _figure(title: str, text: str, plot: str, legend: Sequence[tuple[str, str]] = _BOTH) -> str:
    keys = "".join(f'<span><i class="{style}"></i>{escape(what)}</span>' for style, what in legend)
    return f'<h2>{escape(title)}</h2><p>{escape(text)}</p><figure><div class="legend">{keys}</div>{plot}</figure>'


def _harm(told: Simulated) -> str:
    """Draw the harm done, in seconds: beside gains of hours it would not be seen."""
    most = later(told.most_harm_s)
    if not (plot := harms(told)):
        return "<h2>What harm was done</h2><p>No job ended later by more than a second.</p>"
    text = f"Jobs that ended later than without lending. The line: two restarts and a grace, {most}."
    return _figure("What harm was done", text, plot, (("harm", "ended so much later"),))


Pair = tuple[Ran, Ran]  # without lending, with it


def _ordered(told: Simulated) -> list[Pair]:
    """Sort the jobs by what they won, the most first."""
    pairs = zip(told.compared.without.ran, told.compared.lent.ran, strict=True)
    return sorted(pairs, key=lambda each: (_lost_s(each), each[0].submitted.name))


def _lost_s(pair: Pair) -> float:
    return pair[1].took_s - pair[0].took_s


def _jobs(title: str, pairs: Iterable[Pair]) -> str:
    rows = [
        (
            after.submitted.name,
            f"{after.submitted.min_gpus}",
            lasting(before.waited_s),
            lasting(after.waited_s),
            lasting(before.took_s),
            lasting(after.took_s),
            f"{'−' if after.took_s < before.took_s else '+'}{lasting(abs(after.took_s - before.took_s))}",
            f"{after.restarts}",
            f"{after.robbed}",
        )
        for before, after in pairs
    ]
    if not rows:
        return f"<h2>{escape(title)}</h2><p>None by more than a second.</p>"
    heads = ("job", "min GPUs", "wait", "with", "took", "with", "change", "restarts", "gave way")
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _assumed(told: Simulated) -> str:
    rules = told.compared.lent.rules
    lines = (
        "The autoscaler's own decision makes every change of size, from what it would see of a cluster.",
        "No trace says which job is elastic. Its GPUs are the min; its speed grows as workers to the power 0.9.",
        f"A change of size stops a job for {lasting(rules.restart_s)}; a worker that leaves holds its GPUs for "
        f"{lasting(rules.grace_s)}; the autoscaler looks every {lasting(rules.tick_s)}.",
        f"A job may start {lasting(told.compared.patience_s)} later than without lending: one such grace and one look.",
    )
    return "<h2>What is assumed</h2>" + "".join(f"<p>{escape(each)}</p>" for each in lines)
