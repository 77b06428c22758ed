"""The faults of the day's second part: each is made in the programs, and an alert has to tell of it.

DIRECT lists the alerts whose cause cannot be produced in a test's process, with the reason. For these the test sets the
value in the exporter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.deploy.day.morning import EVENTS, delete, submit
from tests.deploy.day.programs import AutoscalerProgram, ControllerProgram, NominatorProgram
from turnout.kube import labels
from turnout.launcher.model import SaveOutcome
from turnout.scheduler_ext.planner.request import HardTerm

LEAF = {"gpus": 8, labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "1"}
FIRST = 180  # minute of the first fault: no alert fires before
_TERM = "no Lease runs here: the term ends as the program ends it"
_TWICE = "no Lease runs here: a second process is told that it leads"
DIRECT = {
    "AutoscalerNoLeader": _TERM,
    "NominatorNoLeader": _TERM,
    "ControllerNoLeader": _TERM,
    "AutoscalerTwoLeaders": _TWICE,
    "NominatorTwoLeaders": _TWICE,
    "ControllerTwoLeaders": _TWICE,
    "ExtenderSlow": "a slow CPU would need slow seconds: the clock of the HTTP handler is moved by hand",
    "JobHung": "no process hangs here: its monitor's words are logged, and the coordinator is told as by an agent",
    "DecisionsSlow": "a decision takes milliseconds: its histogram is told of decisions of 1.5 s",
    "SavesFail": "no disk fails here: agents read the frames that a checkpoint daemon writes on a failed save",
    "PlanRejected": "a fault of the planner that no known input produces: its count of rejected plans is raised",
    "JobCoordinator": "no fault of the network is made here: a second agent logs that its coordinator has begun",
}
ELSEWHERE = {
    "MetricsRejected": "Prometheus counts its own scrapes: test_hostile_exporter.py sees it fire while it scrapes",
}


@dataclass(frozen=True)
class Fault:
    """A fault and the alerts that it raises."""

    alerts: tuple[str, ...]  # without "Turnout"
    begins: int  # minute of the day
    ends: int  # minute of the day, > begins
    begin: Callable = lambda day: None
    end: Callable = lambda day: None
    each: dict = field(default_factory=dict)  # what happens meanwhile, by minute
    also: tuple[str, ...] = ()  # alerts that may fire too, because of the same cause


def _refuse(program, method, words, code):
    def begin(day):
        day.server.faults.append((program, method, words, code))

    return begin


def _serve_well(day):
    day.server.faults.clear()


def _cut_off(*programs):
    def begin(day):
        day.server.cut_off(*programs)

    return begin


def _reconnect(day):
    day.server.unreachable.clear()


def _end_terms(day):
    for name in ("autoscaler", "nominator", "controller"):
        day.programs[name].set_term(leads=False)


def _begin_terms(day):
    for name in ("autoscaler", "nominator", "controller"):
        day.programs[name].set_term(leads=True)


def _install_twice(day):
    for name, kind in (
        ("autoscaler", AutoscalerProgram),
        ("nominator", NominatorProgram),
        ("controller", ControllerProgram),
    ):
        day.programs[f"{name}-2"] = second = kind(day.server, name=f"{name}-2")
        second.leading.set(1)


async def _uninstall(day):
    for name in ("autoscaler-2", "nominator-2", "controller-2"):
        await day.programs.pop(name).end()


def _set_stuck(stuck):
    def do(day):
        day.programs["autoscaler"].stuck = stuck

    return do


def _decide_slowly(day):
    day.programs["autoscaler"].metrics.decide_s.observe(1.5)


async def _restart_cut_off(day):
    await day.stop_extender()
    day.server.cut_off("extender")
    await day.start_extender()


def _slow_down(slow_s):
    def do(day):
        day.programs["extender"].slow_s = slow_s

    return do


def _reject_a_plan(day):
    day.programs["extender"].extender.plans.rejected_plans[HardTerm.LEVEL] += 1


def _edit_map(change):
    def do(day):
        day.cluster.edit_map(change(day.cluster.map))

    return do


def _certify(days):
    def do(day):
        day.certify(days)

    return do


def _save(tier_outcome, each):
    def do(day):
        job = day.launchers["vision", "bert"]
        job.saves, job.save_each = tier_outcome, each

    return do


def _save_gpt_each(minutes):
    def do(day):
        day.launchers["speech", "gpt"].save_each = minutes

    return do


def _hang(why):
    def do(day):
        day.launchers["speech", "gpt"].hang("b", why)

    return do


def _fail(day):
    day.launchers["vision", "bert"].fail("b")


def _log_of_b(event):
    def do(day):
        day.launchers["vision", "bert"].agents["bert-worker-1"].log(event, {})

    return do


def _lose_worker(day):
    day.launchers["speech", "gpt"].leave("b")


def _fill_disk_queue(day):
    """Decide faster than the disk of the decision log takes it."""
    journal = day.journal
    before = journal.left_out
    while journal.left_out == before:
        journal.note(day.clock.wall(), ())


def _report_faults(day):
    day.cluster.report_fault("gpt-worker-0", "speech")
    day.cluster.report_fault("bert-worker-0", "vision")


def _hang_calls(day):
    day.server.hanging = "controller"
    for number in range(150):
        day.cluster.submit("audio", f"batch-{number}", 1, suspended=True)


def _end_calls(day):
    day.server.hanging = ""
    day.server.answered.set()
    for number in range(150):
        day.cluster.delete("audio", f"batch-{number}")


def _turn_clock(ahead_s):
    def do(day):
        day.programs["controller"].clock.ahead_s += ahead_s

    return do


def _scatter(day):
    for at, (node, free) in enumerate(sorted(day.cluster.free().items())):
        if free >= 8:
            day.cluster.plain_pod(f"half-{at}", node, 4)
    day.cluster.submit("speech", "el", 1)


def _gather(day):
    day.cluster.delete("speech", "el")
    for pod in day.cluster.pods():
        if pod["metadata"]["name"].startswith("half-"):
            day.cluster.delete_pod(pod["metadata"]["name"])


def _leave_slowly(leaving_s):
    def do(day):
        day.cluster.leaving_s["vision"] = leaving_s

    return do


def _short_jobs(first, last, period):
    """Return what submits short jobs and deletes them: each needs the room of elastic workers."""
    found = {}
    for number, minute in enumerate(range(first, last, period)):
        found[minute] = submit("speech", f"guest-{number}", 3)
        found[minute + 5] = delete("speech", f"guest-{number}")
    return found


def _move_a_host(text):
    """Return the map with the last host under the first leaf."""
    *lines, last = text.splitlines()
    return "\n".join([*lines, " ".join([*lines[0].split()[:2], last.split()[2]])]) + "\n"


FAULTS = (
    Fault(("AutoscalerNoLeader", "NominatorNoLeader", "ControllerNoLeader"), 180, 186, _end_terms, _begin_terms),
    Fault(("JobUnsaved", "SaveOverdue"), 181, 470, _save_gpt_each(0), _save_gpt_each(10), also=("GoodputBurn",)),
    Fault(
        ("AutoscalerTwoLeaders", "NominatorTwoLeaders", "ControllerTwoLeaders"), 190, 195, _install_twice, _uninstall
    ),
    Fault(("ExtenderGone",), 200, 210, lambda day: day.stop_extender(), lambda day: day.start_extender()),
    Fault(
        ("GangBreaksRule",),
        222,
        245,
        _edit_map(_move_a_host),
        _edit_map(str),
        {214: submit("speech", "leaf", 2, **LEAF), 246: delete("speech", "leaf")},
    ),
    Fault(
        ("AutoscalerViewStale", "PageStale", "WatchStale"),
        250,
        268,
        _cut_off("autoscaler", "page"),
        _reconnect,
        also=("ApiRefused",),
    ),
    Fault(("AutoscalerStuck",), 272, 277, _set_stuck(True), _set_stuck(False), also=("AutoscalerViewStale",)),
    Fault(("DecisionsSlow",), 280, 310, each=dict.fromkeys(range(280, 310), _decide_slowly)),
    Fault(
        ("ResizesRefused",),
        282,
        352,
        _refuse("autoscaler", "PATCH", "pytorchjobs", 422),
        _serve_well,
        {minute: submit("vision", f"sweep-{minute}", 1, 3, gpus=1) for minute in range(283, 289)}
        | {minute + 58: delete("vision", f"sweep-{minute}") for minute in range(283, 289)},
        ("ApiRefused",),
    ),
    Fault(
        ("JobStartLate",),
        350,
        425,
        submit("speech", "blocker", 3),
        delete("speech", "blocker"),
        {353: submit("speech", "late", 3), 424: delete("speech", "late")},
    ),
    Fault(
        ("PatchesRefused", "GateStuck", "ApiRefused"),
        356,
        372,
        _refuse("nominator", "PATCH", "/pods/", 403),
        _serve_well,
        {357: submit("vision", "gated", 4, gpus=1), 373: delete("vision", "gated")},
        ("QueueFlaps",),
    ),
    Fault(
        ("ExtenderNoAdvice",),
        380,
        395,
        _restart_cut_off,
        _reconnect,
        {381: submit("vision", "asks", 4, gpus=1, gated=False), 397: delete("vision", "asks")},
        ("WatchStale", "ApiRefused", "QueueFlaps"),
    ),
    Fault(
        ("ExtenderSlow",),
        400,
        412,
        _slow_down(0.15),
        _slow_down(0.0),
        {399: submit("vision", "huge", 9, gated=False), 413: delete("vision", "huge")},
    ),
    Fault(("PlanRejected",), 414, 415, _reject_a_plan),
    Fault(("Fragmented",), 430, 560, _scatter, _gather),
    Fault(("MapErrors",), 440, 455, _edit_map(lambda text: f"{text}asw-00\n"), _edit_map(str)),
    Fault(("CertificateExpires",), 456, 470, _certify(11), _certify(90), {463: _certify(1)}),
    Fault(
        ("SavesFail",),
        475,
        525,
        _save(SaveOutcome.FAILED, 2),
        _save(SaveOutcome.DONE, 10),
        also=("SaveOverdue",),
    ),
    Fault(("DecisionLogLosses",), 480, 481, _fill_disk_queue),
    Fault(("TaintLimit",), 490, 560, _report_faults),
    Fault(
        ("JobHung", "GoodputBurn"),
        526,
        600,
        _hang("no step for 300 s"),
        _hang(""),
        also=("SaveOverdue",),
    ),
    Fault(
        ("ControllerErrors",),
        562,
        564,
        lambda day: day.server.garbled.add("controller"),
        lambda day: day.server.garbled.clear(),
        {562: submit("vision", "odd", 1, gpus=1), 570: delete("vision", "odd")},
    ),
    Fault(("ControllerBacklog",), 572, 590, _hang_calls, _end_calls),
    Fault(("ClockJump",), 594, 602, each=dict.fromkeys(range(594, 602), _turn_clock(60.0))),
    Fault(("ReclaimSlow", "QueueFlaps"), 606, 700, _leave_slowly(100.0), _leave_slowly(0.0), _short_jobs(606, 695, 8)),
    Fault(("LendingLoses",), 608, 720, _lose_worker),
    Fault(("JobRestartsOften",), 610, 650, each=dict.fromkeys(range(610, 650, 5), _fail), also=("GoodputBurn",)),
    Fault(("JobCoordinator",), 660, 668, _log_of_b("coordinator_begun"), _log_of_b("stepped_down")),
    Fault(("QueueStarved",), 670, 685, submit("audio", "hungry", 9), delete("audio", "hungry")),
)


def happens():
    """Return what is done at each minute of the day."""
    found = {}
    for minute, do in EVENTS:
        found.setdefault(minute, []).append(do)
    for fault in FAULTS:
        found.setdefault(fault.begins, []).append(fault.begin)
        found.setdefault(fault.ends, []).append(fault.end)
        for minute, do in fault.each.items():
            found.setdefault(minute, []).append(do)
    return found
