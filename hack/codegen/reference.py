"""Write docs/reference/ from the code: `python -m hack.codegen.reference --write`; without --write it only compares.

Each page has one source: parsers, registries of metrics, kube/reasons.py, kube/labels.py, values.yaml, exit codes. A
flag, a metric or a value without a text in its source is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from hack.codegen import chart
from turnout.autoscaler import settings as autoscaler
from turnout.autoscaler.controller.metrics import Metrics as AutoscalerMetrics
from turnout.cli import exit_codes
from turnout.cli.__main__ import parser as cli_parser
from turnout.cli.page.metrics import PageMetrics
from turnout.controllers import settings as controllers
from turnout.controllers.runtime.controller import Metrics as ControllerMetrics
from turnout.kube.client.clock import RealClock
from turnout.kube.reasons import GROUPS
from turnout.launcher.agent.goodput_metrics import GoodputMetrics
from turnout.launcher.agent.metrics import Metrics as LauncherMetrics
from turnout.launcher.agent.save_metrics import SaveMetrics
from turnout.launcher.cli.help import EXITS
from turnout.launcher.goodput.job_time import JobTime
from turnout.scheduler_ext import nominator
from turnout.scheduler_ext import settings as extender
from turnout.scheduler_ext.server.metrics import Metrics as ExtenderMetrics
from turnout.scheduler_ext.server.metrics import NominatorMetrics

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
VALUES = ROOT / "deploy" / "charts" / "turnout" / "values.yaml"
HEADER = "<!-- Made by `python -m hack.codegen.reference --write`: change the source that is named below. -->"


class Undocumented(Exception):
    """A flag, a metric or another item of a page has no text. Write one in the source that the message names."""


def pages() -> Mapping[str, str]:
    """Return the text of each page by its file name. Raises Undocumented for the first item without a text."""
    writers: Mapping[str, Callable[[], str]] = {
        "README.md": _index,
        "flags.md": flags_page,
        "commands.md": commands_page,
        "values.md": lambda: values_page(VALUES.read_text()),
        "metrics.md": metrics_page,
        "reasons.md": reasons_page,
        "annotations.md": lambda: labels_page((ROOT / "kube/labels.py").read_text()),
        "exit-codes.md": exits_page,
    }
    return {name: f"{HEADER}\n\n{write().rstrip()}\n" for name, write in writers.items()}


def _index() -> str:
    """Return the page that links to the other pages."""
    rows = [
        ("[Commands](commands.md)", "every command of `turnout`"),
        ("[Flags of the services](flags.md)", "extender, nominator, autoscaler and job controllers"),
        ("[Options of turnout-run](../launcher-options.md)", "the launcher of training processes"),
        ("[Chart values](values.md)", "the Helm chart"),
        ("[Reasons](reasons.md)", "the words of Events, of `turnout why`, of logs and metrics"),
        ("[Metrics](metrics.md)", "what each program serves to Prometheus"),
        ("[Labels and annotations](annotations.md)", "ours, and those of others that we read"),
        ("[Exit codes](exit-codes.md)", "of every program"),
    ]
    return "# Reference\n\nThese pages are made from the code.\n\n" + _table(("page", "about"), rows)


# -- flags


def flags_page() -> str:
    """Return the page of the services' flags. Raises Undocumented for a flag without help."""
    services = (extender.parser(), nominator.parser(), autoscaler.parser(), controllers.parser())
    parts = ["# Flags of the services", "Made from the parsers of the programs."]
    for each in services:
        parts += [f"## {each.prog}", str(each.description), options(each.prog, each)]
    return "\n\n".join(parts)


def commands_page() -> str:
    """Return the page of the commands of `turnout`. Raises Undocumented for a command or an option without help."""
    parts = ["# Commands of turnout", "Made from the parsers of the commands. [How to use them](../cli.md)."]
    for name, about, each in _commands_below(cli_parser()):
        parts += [f"## {name}", _sentence(each.description or about), f"`{_usage(each)}`"]
        if rows := options(name, each):
            parts.append(rows)
    return "\n\n".join(parts)


def _commands_below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield all commands below a parser as (full name, help text, parser), depth first.

    A command that has subcommands is left out, unless it also has options of its own. Raises Undocumented for a command
    without help.
    """
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        help_texts = {each.dest: each.help or "" for each in action._choices_actions}
        for name, each in action.choices.items():
            if name not in help_texts:
                raise Undocumented(f"`{parser.prog} {name}` has no help: give it one in its add_parser call")
            subcommands = list(_commands_below(each))
            if not subcommands or len(each._actions) > 2:
                yield each.prog, help_texts[name], each
            yield from subcommands


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage line of a command: its name, [OPTIONS] if it has any, and its positional arguments."""
    words = [_value(each) for each in parser._actions if not each.option_strings and each.help != argparse.SUPPRESS]
    return " ".join([parser.prog, "[OPTIONS]" if len(parser._actions) > len(words) + 1 else "", *words]).replace(
        "  ", " "
    )


def options(program: str, parser: argparse.ArgumentParser) -> str:
    """Return the table of a parser's options and positional arguments, without hidden ones; "" if it has none.

    program: name in error messages. Raises Undocumented for an option or an argument without help.
    """
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        names = action.option_strings or [_value(action)]
        if not action.help:
            raise Undocumented(f"{program}: {names[0]} has no help: give it one in its add_argument call")
        text = re.sub(r" \(%\(default\)\w\)", "", action.help) % {**vars(action), "prog": parser.prog}
        rows.append((_flag(names, action), _sentence(text), _default(action)))
    return _table(("option", "what it does", "default"), rows) if rows else ""


def _flag(names: Sequence[str], action: argparse.Action) -> str:
    """Return the first column of an option: its spellings, each with its value's name if it takes one."""
    takes = bool(action.option_strings) and action.nargs != 0
    return ", ".join(f"`{name} {_value(action)}`" if takes else f"`{name}`" for name in names)


def _value(action: argparse.Action) -> str:
    """Return the name of an argument's value: its metavar, its choices separated by "|", or its name in upper case."""
    if action.metavar:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "\\|".join(map(str, action.choices)) if action.choices else action.dest.upper().replace("_", "-")


def _default(action: argparse.Action) -> str:
    """Return an option's default as code; "" if it has none, takes no value, or is positional."""
    default = action.default
    if not action.option_strings or action.nargs == 0 or default in (None, "", (), [], argparse.SUPPRESS):
        return ""
    return f"`{','.join(map(str, default)) if isinstance(default, list | tuple) else default}`"


# -- values


def values_page(text: str) -> str:
    """Return the page of the chart's values, a section for each top-level key. text: of values.yaml."""
    parts = ["# Values of the chart", "Made from the comments of `deploy/charts/turnout/values.yaml`."]
    sections: dict[str, list[tuple[str, str, str]]] = {"of all programs": []}
    for path, about, default in chart.values(text):
        section = path.partition(".")[0] if "." in path else "of all programs"
        sections.setdefault(section, []).append((f"`{path}`", about, f"`{default}`"))
    for section, rows in sections.items():
        parts += [f"## {section}", _table(("value", "what it does", "default"), rows)] if rows else []
    return "\n\n".join(parts)


# -- metrics


def registries() -> Mapping[str, CollectorRegistry]:
    """Return the registry of each program, by its name, with all metrics that the program can serve."""
    page = ExtenderMetrics()
    page.set_certificate_expiry(0.0)
    page.show_client(dict, list, RealClock())
    page_server = PageMetrics(float, int)
    page_server.show_client(dict, list, RealClock())
    writer = CollectorRegistry()
    gates = NominatorMetrics(writer)
    gates.show_gated_pods(int)
    gates.show_oldest_gates(list)
    return {
        "turnout-extender": page.registry,
        "turnout-nominator, besides those of the extender": writer,
        "turnout-autoscaler": AutoscalerMetrics(("nvidia.com/gpu",)).registry,
        "turnout-controller": ControllerMetrics(int).registry,
        "turnout page --serve": page_server.registry,
        "turnout-run": _launcher_registry(),
    }


def _launcher_registry() -> CollectorRegistry:
    """Return the registry of the agent that coordinates a job: it has more metrics than the other agents."""
    registry = LauncherMetrics("bert").registry
    GoodputMetrics(registry, "bert").count_event("job_time_measured", {"record": JobTime()})
    SaveMetrics(registry, "bert")
    return registry


def metrics_page() -> str:
    """Return the page of metrics as Markdown, a section for each program. Raises Undocumented for a metric without
    help.
    """
    parts = [
        "# Metrics",
        "Made from the registries of the programs. A histogram also serves `_bucket`, `_sum` and `_count`.",
    ]
    for program, registry in registries().items():
        rows = []
        for metric, labels in families(registry):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            if not metric.documentation:
                raise Undocumented(f"the metric {name} has no help: give it one where it is made")
            rows.append((f"`{name}`", metric.type, ", ".join(f"`{each}`" for each in labels), metric.documentation))
        parts += [f"## {program}", _table(("metric", "type", "labels", "what it tells"), rows)]
    return "\n\n".join(parts)


def families(registry: CollectorRegistry) -> Iterator[tuple[Metric, Sequence[str]]]:
    """Yield each metric whose name begins with turnout_, with the names of its labels."""
    for collector in registry._collector_to_names:
        for metric in collector.collect():
            if metric.name.startswith("turnout_"):
                labels: Sequence[str] = getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ())
                yield metric, labels


# -- reasons, annotations, exit codes


def reasons_page() -> str:
    """Return the page of reasons, with one heading, and so one anchor, for each reason word."""
    parts = [
        "# Reasons",
        "The same word is in the Event, in `turnout why`, in the log and in the metric. `turnout explain WORD` prints "
        "the text of a word. Made from `kube/reasons.py`.",
    ]
    words = sorted({word for group in GROUPS for word in group.meanings}, key=str.lower)
    for group in GROUPS:
        links = ", ".join(f"[`{word}`](#{word.lower()})" for word in sorted(group.meanings, key=str.lower))
        parts.append(f"**{group.program}.** {group.about} {links}")
    for word in words:
        parts.append(f"## {word}")
        for group in GROUPS:
            if (meaning := group.meanings.get(word)) is None:
                continue
            rows = [
                ("what it means", _mark_code(meaning.means)),
                ("where to look", _mark_code(meaning.look or group.look)),
                ("what to do", _mark_code(meaning.next)),
            ]
            parts.append(_table((group.program, ""), rows))
    return "\n\n".join(parts)


_CODE = re.compile(
    r"\bturnout (?:topo(?:logy)? check|[a-z]+(?:-[a-z]+)*)(?: PODSxGPUS| JOB| FILE| --[a-z]+(?: N)?)*"
    r"|\bkubectl (?:describe|get \w+)|--[a-z][a-z-]+|\bturnout\.dev/[a-z-]+(?:: [a-z-]+)?|\bturnout_\w+"
    r"|\bspec\.\w+(?:\.\w+)?|\b[a-z]+\.[a-z]+[A-Z]\w+|\bpercentageOfNodesToScore: 100"
)


def _mark_code(text: str) -> str:
    """Return the sentence with its commands, flags, fields and names in backquotes."""
    return _CODE.sub(lambda match: f"`{match[0]}`", text)


def labels_page(text: str) -> str:
    """Return the page of labels and annotations. text: of kube/labels.py.

    Raises Undocumented for a name without a comment of the form "object: meaning", beside or above it.
    """
    parts = [
        "# Labels and annotations",
        "Made from `kube/labels.py`. A name is that of an annotation where nothing else is said.",
    ]
    title, rows, comment = "", list[tuple[str, str, str]](), list[str]()

    def section() -> list[str]:
        return [f"## {title}", _table(("name", "of", "meaning"), rows)] if rows else []

    for line in text.splitlines():
        if match := re.fullmatch(r'([A-Z_]+) = "([\w.-]+/[\w.-]+|pod-[\w.-]+)"(?:  # (.*))?', line):
            about = match[3] or " ".join(comment)
            of, colon, meaning = about.partition(": ")
            if not colon:
                raise Undocumented(f"kube/labels.py: {match[1]} has no comment `# pod: what it means`")
            rows.append((f"`{match[2]}`", of, meaning))
        if match := re.fullmatch(r"# ([A-Z][\w -]*)\.", line):
            parts += section()
            title, rows, comment = match[1], [], []
            continue
        comment = [*comment, line[2:]] if line.startswith("# ") else []
    return "\n\n".join([*parts, *section()])


def exits_page() -> str:
    """Return the page of exit codes, a section for each program."""
    table = [(f"`{code.value}`", _sentence(exit_codes.MEANS[code])) for code in exit_codes.ExitCode]
    run = [(f"`{code.value}`", _sentence(text)) for code, text in EXITS.items()]
    services = [
        ("`0`", "Ended because it was asked to, by SIGTERM or SIGINT."),
        ("`1`", "It cannot start, or it ended although nobody asked. The log has the reason."),
        ("`2`", "The command line is invalid; the message names the option."),
    ]
    parts = ["# Exit codes", "## turnout", _table(("code", "means"), table)]
    parts += ["## turnout-run", _table(("code", "means"), run)]
    parts += [
        "## turnout-extender, turnout-nominator, turnout-autoscaler, turnout-controller",
        _table(("code", "means"), services),
    ]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. head: headings of the columns."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: str) -> str:
    """Return a text for a table's cell: on one line, with "|" escaped."""
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("\n", " "))


def _sentence(text: str) -> str:
    """Return the text with a capital at the beginning and a full stop at the end."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?', ':')) else '.'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the pages with the code, or with --write rewrite the stale ones.

    Return 1 if something is undocumented, or if a page is stale and was not written; else 0. argv: None for that of
    this process.
    """
    parser = argparse.ArgumentParser(prog="reference", description="Make docs/reference from the code.")
    parser.add_argument("--write", action="store_true", help="write the pages")
    args = parser.parse_args(argv)
    try:
        texts = pages()
    except Undocumented as error:
        print(error, file=sys.stderr)
        return 1
    stale = [
        name for name, text in texts.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text
    ]
    if args.write:
        FOLDER.mkdir(exist_ok=True)
        for name in stale:
            (FOLDER / name).write_text(texts[name])
        return 0
    for name in stale:
        print(f"docs/reference/{name} is stale: python -m hack.codegen.reference --write", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
