"""Attacks on the autoscaler that a tenant can make with its own pods and jobs, and what it does instead without.

An attack is called at each look with the story and the seconds since it began. What it is held beside has the same pods
and jobs, with nothing said on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hack.bench.tenants.lending_story import BEGINS_S, GREEDY, LEADS_S, LOOK_S, LendingStory
from turnout.kube import labels

Attack = Callable[[LendingStory, int], None]


def nothing(story: LendingStory, second: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Named:
    """An attack with its name. beside: what the run without it does. fair: why others may get less."""

    name: str
    attack: Attack
    fair: str = ""
    beside: Attack = nothing


def _says(**notes: str | None) -> Attack:
    """Write these annotations on one's own job, again at each look."""

    def attack(story: LendingStory, second: int) -> None:
        story.says(GREEDY, "elastic", {getattr(labels, name): text for name, text in notes.items()})

    return attack


def _ghosts(spec: dict[str, object]) -> Attack:
    """Create pods that nobody binds."""

    def attack(story: LendingStory, second: int) -> None:
        for number in range(4):
            story.stray(f"ghost{number}", dict(spec))

    return attack


def _comes_and_goes(story: LendingStory, second: int) -> None:
    """Show a pod that looks bindable and is not, under another name each minute."""
    turn = second // 60
    story.drop(f"ghost{turn - 1}")
    story.stray(f"ghost{turn}", {})


def _groups(each: int) -> Attack:
    """Create PodGroups without pods, each of this many GPUs, under other names each minute."""

    def attack(story: LendingStory, second: int) -> None:
        if second % 60 == 0:
            for number in range(4):
                story.group(f"group{second}-{number}", each)

    return attack


def _strangers_pods(story: LendingStory, second: int) -> None:
    """Pods of another namespace that name honest jobs as their owners, and report steps that grow slower."""
    for victim in ("vision", "speech", "search"):
        owner = {"kind": "Job", "name": "elastic", "uid": f"{victim}/elastic", "controller": True}
        notes = {labels.STEP_SECONDS: "2:1,4:9,8:99", labels.JOB_INDEX: "0"}
        story.stray(f"liar-{victim}", {}, {"ownerReferences": [owner], "annotations": notes}, gpus=0)


def _raises_its_min_between_leaders(story: LendingStory, second: int) -> None:
    if second == LEADS_S - BEGINS_S - LOOK_S:
        story.says(GREEDY, "elastic", {labels.MIN_WORKERS: "24"})


def _jobs(notes: dict[str, str]) -> Attack:
    """Create jobs of 8 workers now and then, which run for a while."""

    def attack(story: LendingStory, second: int) -> None:
        if second % 300 == 0:
            story.put(GREEDY, f"job{second}", 8, 8, notes).lasts_s = 120.0

    return attack


_CLAIMS: dict[str, object] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "nobody-has-it"}}],
    "affinity": {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    },
}
_THERE_AND_BACK = "a resize there and back, until its namespace waits"
_FIRST = {labels.PRIORITY: "100", labels.DEADLINE: "2000-01-01T00:00:00Z"}
NONE = Named("none", nothing)
ATTACKS = (
    Named("words that are no numbers", _says(TERM="²", GAINED="²", CURVE="٣:1", PRIORITY="²")),
    Named("stamps of 2099", _says(TERM="99999999", RESIZED_AT="2099-01-01T00:00:00Z", GAINED="9" * 20)),
    Named("a job that must not shrink", _says(PAUSED="shrink")),
    Named("a min of all that it has", _says(MIN_WORKERS="24", UNIT="24")),
    Named("a min raised while nobody leads", _raises_its_min_between_leaders),
    Named("a curve of a million", _says(CURVE="1:1,16:1000000"), "it may say that it is linear: a better use"),
    Named("pods behind a gate", _ghosts({"schedulingGates": [{"name": "hold"}]})),
    Named("pods of an unknown scheduler", _ghosts({"schedulerName": "nobody"})),
    Named("pods that claim what is not there", _ghosts(_CLAIMS)),
    Named("pods that look bindable", _comes_and_goes, _THERE_AND_BACK),
    Named("PodGroups without pods", _groups(6), _THERE_AND_BACK),
    Named("a stranger's pods that speak for jobs", _strangers_pods),
    Named("jobs of priority 100", _jobs(_FIRST), "", _jobs({})),
)
