"""What people do on the day: jobs come, grow, give back, fail, wait and end. No fault of this table needs a person."""

from __future__ import annotations

from tests.kit.clock import settle
from turnout.kube import labels


def submit(namespace, name, minimum, maximum=None, **more):
    """Return what submits a job."""
    return lambda day: day.cluster.submit(namespace, name, minimum, maximum, **more)


def delete(namespace, name):
    """Return what deletes a job."""
    return lambda day: day.cluster.delete(namespace, name)


def launch(namespace, name, minimum, maximum):
    """Return what begins the launchers of a job whose pods run."""
    return lambda day: day.launch(namespace, name, minimum, maximum)


def end_pods(namespace, *names, phase="Succeeded", code=0):
    """Return what ends pods with an exit code."""

    def do(day):
        for name in names:
            day.cluster.phase(namespace, name, phase, code)

    return do


async def fail_gpt(day):
    """Let a training process of the job gpt fail: its launchers start a new round, and its pod stays."""
    day.launchers["speech", "gpt"].fail("b")


def report_fault(day):
    """Let a pod report that its node is faulty."""
    day.cluster.report_fault("gpt-worker-1", "speech")


def edit_map(day):
    """Write the map once more, with a comment."""
    day.cluster.edit_map(day.cluster.map + "# reviewed\n")


def set_viewers(count):
    """Return what lets so many browsers follow the page."""

    def do(day):
        day.programs["page"].viewers = count

    return do


async def lose_coordinator_link(day):
    """Let a worker lose its coordinator for a moment, and a worker that forks no processes start its round."""
    agent = day.launchers["speech", "gpt"].agents["gpt-worker-1"]
    agent.log("coordinator_lost", {"reason": "member_silent"})
    agent.log("processes_spawned", {})
    await settle()


EVENTS = (  # (minute, what is done)
    (0, set_viewers(3)),
    (1, submit("vision", "bert", 2, 4)),
    (2, submit("speech", "gpt", 2)),
    (4, launch("vision", "bert", 2, 4)),
    (4, launch("speech", "gpt", 2, 2)),
    (8, submit("speech", "eval", 1, gpus=4)),
    (20, end_pods("speech", "eval-worker-0")),
    (30, submit("speech", "llama", 3)),
    (70, end_pods("speech", "llama-worker-0", "llama-worker-1", "llama-worker-2")),
    (80, submit("speech", "large", 5)),
    (95, delete("speech", "large")),
    (100, submit("vision", "sweep", 1, gpus=4, suspended=True)),
    (102, submit("vision", "loner", 1, gpus=4, gated=False)),
    (104, end_pods("vision", "loner-worker-0", phase="Failed", code=1)),
    (110, edit_map),
    (120, report_fault),
    (130, fail_gpt),
    (135, lose_coordinator_link),
    (140, delete("vision", "loner")),
    (150, submit("speech", "strict", 2, **{labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "1"})),
    (170, delete("speech", "strict")),
)
