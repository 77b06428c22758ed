"""The verb `turnout why JOB`: lists once what the autoscaler sees, decides as the autoscaler does, and prints the
reasons.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnout.cli.verb_support.cluster_flags import (
    DECIDING,
    Verbs,
    add_cluster,
    add_flags,
    add_job,
    add_verb,
    job_of,
    settings_of,
)
from turnout.cli.verb_support.run_verb import run_verb

if TYPE_CHECKING:
    from turnout.autoscaler.reporting.why import Chain
    from turnout.autoscaler.settings import Settings
    from turnout.cli.controller_status import ControllerReport
    from turnout.cli.job_names import JobName
    from turnout.cli.release.gate import Gate
    from turnout.cli.verb_support.autoscaler_view import AutoscalerSnapshot
    from turnout.cli.verb_support.terminal import TerminalPage
    from turnout.cli.why import LimitedView
    from turnout.jobs.model import JobKey
    from turnout.kube.client.api_client import Client
    from turnout.kube.objects import Pod

    Explanation = Chain | LimitedView | str  # a sentence for a job of which nothing is decided

_LABEL = 11  # columns
_EXAMPLES = (
    ("why bert", "a job of the namespace of your context"),
    ("why job/bert -n team-a", "where several kinds have a job of that name"),
    ("why VolcanoJob/team-a/bert -o json", "for a program"),
)


def add(commands: Verbs) -> None:
    """Add the verb `why` to the command line."""
    why = add_verb(commands, "why", "why a job waits, or is as large as it is, and when it may start", _EXAMPLES)
    add_job(why)
    why.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        default="text",
        help="output format (%(default)s); in json and yaml times are in seconds since 1970, null for never",
    )
    why.add_argument("--plain", action="store_true", help="plain text, as for a file")
    add_cluster(why)
    add_flags(why, DECIDING)
    why.add_argument(
        "--docs-base-url",
        default=os.environ.get("TURNOUT_DOCS_BASE_URL", ""),
        metavar="URL",
        help="of the docs site, for a link to the reason (the variable TURNOUT_DOCS_BASE_URL)",
    )
    why.set_defaults(run=_why)


def _why(args: argparse.Namespace) -> int:
    """Print why a job has its state and size. Return the exit code: FAILED if there is no such job.

    Raises BadArgument if the name or an option is invalid.
    """
    from turnout.cli.release.facts import gate_facts
    from turnout.cli.verb_support.autoscaler_view import look
    from turnout.cli.verb_support.listing import controller_report_of
    from turnout.cli.why import NoSuchJob, known_words

    settings, name = settings_of(args, DECIDING), job_of(args, known_words())

    async def work(client: Client) -> None:
        """Print why a job has its size or waits.

        Raises NoSuchJob if no job or several have the name, and CannotSee if a list failed for a reason other than
        missing rights.
        """
        cluster_view = await look(client, settings, name.namespace)
        key = _job_key(name, cluster_view)
        controller_report = await controller_report_of(client, key)
        gate = await gate_facts(client, _pods(cluster_view, key))
        explanation = explanation_of(settings, cluster_view, key)
        _print_explanation(
            args, cluster_view, explanation, controller_report, gate, _repair(cluster_view, key, explanation)
        )

    return run_verb("why", args, work, NoSuchJob)


def _job_key(name: JobName, cluster_view: AutoscalerSnapshot) -> JobKey:
    """Return the key of the job with this name. Raises NoSuchJob if there is none, or several."""
    from turnout.cli.verb_support.listing import may_not
    from turnout.cli.why import NoSuchJob, resolve_job

    listed = {job.key for job in cluster_view.view.jobs.by_uid.values()}
    observed = {each.job.key for each in cluster_view.observation.jobs}
    try:
        return resolve_job(name, {*listed, *observed, *cluster_view.faults, *cluster_view.gangs})
    except NoSuchJob as error:
        raise NoSuchJob(f"{error}; {may_not(cluster_view.missing)}" if cluster_view.missing else str(error)) from None


def explanation_of(settings: Settings, cluster_view: AutoscalerSnapshot, key: JobKey) -> Chain | LimitedView | str:
    """Return why a job has its state: its chain of causes, or a limited view if lists were forbidden.

    A sentence is returned for a job on which the autoscaler decides nothing: unreadable, ended, or a gang that no job
    of a known kind owns. key: as `_job_key` returns it; a key that is not in the snapshot counts as an ended job.
    """
    from turnout.cli.why import unmanaged_gang_text
    from turnout.jobs.model import JobLifecycle

    view = cluster_view.view
    observation, bare = cluster_view.observation, cluster_view.gangs
    ended = {job.key: uid for uid, job in view.jobs.by_uid.items() if job.lifecycle is JobLifecycle.DONE}
    keys = {each.job.key for each in observation.jobs}
    if key in cluster_view.faults:
        return f"{key} cannot be read, so it is left alone: {cluster_view.faults[key]}"
    if key in keys:
        if cluster_view.missing:
            return _limited_view(cluster_view, key)
        return _chain(settings, cluster_view, key, ended)
    if key in bare:
        return unmanaged_gang_text(bare[key], settings.gpu_resource)
    return f"{key} has ended: nothing is decided on it any more"


def _chain(
    settings: Settings,
    cluster_view: AutoscalerSnapshot,
    key: JobKey,
    ended: Mapping[JobKey, str],
) -> Chain:
    """Return the chain of causes of the job's state, by the autoscaler's own decision.

    key: of a job in the snapshot that has not ended. ended: keys of ended jobs -> UID.
    """
    from turnout.autoscaler.decide import decide
    from turnout.autoscaler.reporting.forecast import RuntimeStats, forecast
    from turnout.autoscaler.reporting.why import ClusterContext, chain

    view, policy, lives = cluster_view.view, settings.policy(), RuntimeStats()
    observation, now_s = cluster_view.observation, cluster_view.now_s
    lives.add_ended(
        (uid, view.jobs.by_uid[uid].queue, view.jobs.raw[done]) for done, uid in ended.items() if done in view.jobs.raw
    )
    steps = decide(observation, policy, now_s)
    start = forecast(observation, steps, lives, now_s).get(key)
    map_seen = not any(settings.configmap.partition("/")[0] in path.split("/") for path in cluster_view.unknown)
    context = ClusterContext(cluster_view.gangs, map_seen)
    answer = chain(key, observation, steps, policy, now_s, cluster_view.nodes, settings.gpu_resource, start, context)
    assert answer is not None
    return answer


def _limited_view(cluster_view: AutoscalerSnapshot, key: JobKey) -> LimitedView:
    """Return what the job's own pods show, for a user who may not list the whole cluster. key: of an observed job."""
    from turnout.autoscaler.reporting.why import ClusterContext, members
    from turnout.cli.why import LimitedView

    state = next(each for each in cluster_view.observation.jobs if each.job.key == key)
    pods = _pods(cluster_view, key)
    pod_count = members(state, ClusterContext(cluster_view.gangs))
    return LimitedView.of(state, pods, pod_count, cluster_view.missing, cluster_view.now_s)


def _pods(cluster_view: AutoscalerSnapshot, key: JobKey) -> list[Pod]:
    """Return the pods of the job, or of the gang that no job owns, with this key; [] if there are none."""
    view = cluster_view.view
    return view.pods.of_job(view.jobs.uid(key)) or [
        pod for name, _, entries in view.unmanaged.all_gangs() if name == key for pod, _ in entries
    ]


def _repair(cluster_view: AutoscalerSnapshot, key: JobKey, explanation: Explanation) -> str | None:
    """Return a sentence on how a broken gang is repaired: some of its pods run, fewer than its min, and others wait.

    None for a gang in any other state, and unless `explanation` is a full chain of causes. key: of the job.
    """
    from turnout.autoscaler.reporting.why import Chain
    from turnout.cli.why import repair_of_job

    return repair_of_job(_pods(cluster_view, key), explanation.gang.minimum) if isinstance(explanation, Chain) else None


def _print_explanation(
    args: argparse.Namespace,
    cluster_view: AutoscalerSnapshot,
    explanation: Explanation,
    controller_report: ControllerReport | None,
    gate: Gate | None,
    repair: str | None,
) -> None:
    """Print why a job has its state, as text or in the format of --output.

    explanation: chain, limited view or sentence. controller_report: of the job's controller. gate: of its pods. repair:
    a sentence; None: no such row.
    """
    from turnout.autoscaler.reporting.why import Chain
    from turnout.cli import why
    from turnout.cli.release.gate import with_gate
    from turnout.cli.verb_support.terminal import TerminalPage
    from turnout.cli.views.listing import encode_values
    from turnout.kube.client.logs import printable
    from turnout.kube.reasons import pointer

    if args.output != "text":
        print(encode_values(_document(explanation, controller_report, gate, repair), args.output))
        return
    page = TerminalPage.of_stdout(args.plain)
    if isinstance(explanation, str):
        head, rows = explanation, list[why.Row]()
    elif isinstance(explanation, why.LimitedView):
        head, rows = why.limited_title(explanation), why.limited_rows(explanation)
    else:
        head, rows = why.title(explanation), why.rows(explanation)
    rows = with_gate(rows, gate)
    if repair is not None:
        rows.append(("repair", repair))
    if controller_report is not None:
        rows = why.with_controller_report(rows, controller_report.text, controller_report.next)
    print(printable(head) if isinstance(explanation, str) else page.bold(printable(head)))
    if not isinstance(explanation, str):
        rows += _unknown_rows(cluster_view)
        rows += (
            [("docs", pointer(explanation.reason.value, args.docs_base_url))] if isinstance(explanation, Chain) else []
        )
    for label, text in rows:
        _print_row(page, label, printable(text))


def _print_row(page: TerminalPage, label: str, text: str) -> None:
    """Print a row, wrapped to the width of the page, with its label in front of the first line; nothing for "".

    text: without control characters.
    """
    width = max(40, page.columns - _LABEL)
    for number, line in enumerate(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)):
        head = page.cyan((label if not number else "").ljust(_LABEL))
        print(f"{head}{page.bold(line) if label == 'decision' else line}")


def _document(
    explanation: Explanation, controller_report: ControllerReport | None, gate: Gate | None, repair: str | None
) -> Mapping[str, Any]:
    """Return the explanation as a value for JSON or YAML. Arguments that are None are null in it.

    An explanation that is a sentence becomes {"job": null, "says": sentence}. A time that never comes is null. repair:
    the next step for the job's owner.
    """
    import msgspec

    document = {"job": None, "says": explanation} if isinstance(explanation, str) else msgspec.to_builtins(explanation)
    document["controller"] = None if controller_report is None else msgspec.to_builtins(controller_report)
    document["gate"] = None if gate is None else msgspec.to_builtins(gate)
    document["repair"] = repair
    plain: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(document))  # null for never
    return plain


def _unknown_rows(cluster_view: AutoscalerSnapshot) -> list[tuple[str, str]]:
    """Return up to two rows: the lists that may not be read, with the facts that are unknown because of that.

    [] if all could be read. The first row names ConfigMaps, the second resources without which nothing can be decided.
    """
    from turnout.cli.verb_support.listing import may_not

    rows = []
    if cluster_view.unknown:
        rows.append(("unknown", f"you may not list {', '.join(cluster_view.unknown)}: no map, no orders of an admin"))
    if cluster_view.missing:
        rows.append(("unknown", f"its room, its queue and what is decided on it: {may_not(cluster_view.missing)}"))
    return rows
