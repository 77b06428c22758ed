"""Attacks on the autoscaler that a tenant can make with its own pods and jobs, and the runs to compare them with.

An attack is called before each decision with the simulation and the seconds since the attack began. The comparison run
has the same pods and jobs, without the annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hack.bench.tenants.lending_story import BEGINS_S, GREEDY, LEADS_S, LOOK_S, LendingStory
from turnout.kube import labels

Attack = Callable[[LendingStory, int], None]


def no_attack(story: LendingStory, second: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class NamedLendingAttack:
    """An attack with its name."""

    name: str
    attack: Attack
    fair: str = ""  # why it is no fault if others get less; "" if they must not
    comparison: Attack = no_attack  # what the same tenant does in the run for comparison


def _annotations(**texts: str | None) -> Attack:
    """Return an attack that writes these annotations on the attacker's elastic job before each decision.

    texts: by the name of the constant in turnout.kube.labels; None removes the annotation.
    """

    def attack(story: LendingStory, second: int) -> None:
        story.annotate(GREEDY, "elastic", {getattr(labels, name): text for name, text in texts.items()})

    return attack


def _pods_never_bound(spec: dict[str, object]) -> Attack:
    """Return an attack that creates four pods which no scheduler binds. spec: further fields of their spec."""

    def attack(story: LendingStory, second: int) -> None:
        for number in range(4):
            story.create_ownerless_pod(f"ghost{number}", dict(spec))

    return attack


def _pod_of_new_name(story: LendingStory, second: int) -> None:
    """Replace the attacker's pending pod by one of another name each minute. It looks bindable, and nobody binds it."""
    turn = second // 60
    story.drop(f"ghost{turn - 1}")
    story.create_ownerless_pod(f"ghost{turn}", {})


def _empty_groups(gpus: int) -> Attack:
    """Return an attack that creates four PodGroups without pods each minute, with new names. gpus: of each."""

    def attack(story: LendingStory, second: int) -> None:
        if second % 60 == 0:
            for number in range(4):
                story.create_group(f"group{second}-{number}", gpus)

    return attack


def _strangers_pods(story: LendingStory, second: int) -> None:
    """Create pods that name honest tenants' jobs as their owners, and report falsely that those scale badly."""
    for victim in ("vision", "speech", "search"):
        owner = {"kind": "Job", "name": "elastic", "uid": f"{victim}/elastic", "controller": True}
        notes = {labels.STEP_SECONDS: "2:1,4:9,8:99", labels.JOB_INDEX: "0"}
        story.create_ownerless_pod(f"liar-{victim}", {}, {"ownerReferences": [owner], "annotations": notes}, gpus=0)


def _raise_min_between_leaders(story: LendingStory, second: int) -> None:
    """Raise the min of the attacker's job to 24 just before the new leader begins."""
    if second == LEADS_S - BEGINS_S - LOOK_S:
        story.annotate(GREEDY, "elastic", {labels.MIN_WORKERS: "24"})


def _short_jobs(annotations: dict[str, str]) -> Attack:
    """Return an attack that creates a rigid job of 8 workers every 300 s, which runs for 120 s. annotations: of
    these jobs.
    """

    def attack(story: LendingStory, second: int) -> None:
        if second % 300 == 0:
            story.create_job(GREEDY, f"job{second}", 8, 8, annotations).lasts_s = 120.0

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
NONE = NamedLendingAttack("none", no_attack)
ATTACKS = (
    NamedLendingAttack("words that are no numbers", _annotations(TERM="²", GAINED="²", CURVE="٣:1", PRIORITY="²")),
    NamedLendingAttack(
        "stamps of 2099", _annotations(TERM="99999999", RESIZED_AT="2099-01-01T00:00:00Z", GAINED="9" * 20)
    ),
    NamedLendingAttack("a job that must not shrink", _annotations(PAUSED="shrink")),
    NamedLendingAttack("a min of all that it has", _annotations(MIN_WORKERS="24", UNIT="24")),
    NamedLendingAttack("a min raised while nobody leads", _raise_min_between_leaders),
    NamedLendingAttack(
        "a curve of a million", _annotations(CURVE="1:1,16:1000000"), "it may say that it is linear: a better use"
    ),
    NamedLendingAttack("pods behind a gate", _pods_never_bound({"schedulingGates": [{"name": "hold"}]})),
    NamedLendingAttack("pods of an unknown scheduler", _pods_never_bound({"schedulerName": "nobody"})),
    NamedLendingAttack("pods that claim what is not there", _pods_never_bound(_CLAIMS)),
    NamedLendingAttack("pods that look bindable", _pod_of_new_name, _THERE_AND_BACK),
    NamedLendingAttack("PodGroups without pods", _empty_groups(6), _THERE_AND_BACK),
    NamedLendingAttack("a stranger's pods that speak for jobs", _strangers_pods),
    NamedLendingAttack("jobs of priority 100", _short_jobs(_FIRST), "", _short_jobs({})),
)
