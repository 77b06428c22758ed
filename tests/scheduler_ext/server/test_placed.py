"""A gang that landed is reported once, on the object that owns it, with what default scheduling would have given."""

from __future__ import annotations

import pytest

from tests.kit import world
from tests.kit.world import World
from tests.scheduler_ext.server.test_extender import Story
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.scheduler_ext.cluster.member import member_of
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.planner.placement_report import default_hosts

TIDY_S = 5.0


def indexed(size, at=(), minimum=None):
    """The pods of an Indexed Job that says how many start together."""
    places = [*at, *[""] * size][:size]
    notes = {labels.MIN_WORKERS: str(minimum or size)}
    return [
        world.pod(f"j-{i}", 8, place, marks={labels.JOB_INDEX: str(i)}, notes=notes, owner="Job/j")
        for i, place in enumerate(places)
    ]


def ask_about(story, pods):
    """A story in which a scheduler has asked about these pods, none of which was bound."""
    story.show(*pods)
    story.view.filter(pods[0], story.stage.names)
    return story


def reports(story):
    return [notice for notice in story.told if notice.reason is EventReason.PLACED]


def test_a_gang_is_reported_once_on_the_object_that_owns_it():
    story = ask_about(Story(4, 4, 4), indexed(4))
    story.wait(TIDY_S)
    assert reports(story) == []
    story.show(*indexed(4, at=["a0", "a1", "a2", "a3"]))
    story.wait(TIDY_S)
    (notice,) = reports(story)
    assert (notice.kind, notice.name, notice.uid, notice.namespace) == ("Job", "j", "uid-j", "default")
    landed, _, estimate = notice.detail.partition("; default scheduling would give about ")
    assert landed == "4 pods under 1 leaf switch, 1 spine switch, 0 ring crossings"
    assert "ring crossing" in estimate
    story.wait(TIDY_S)
    assert len(reports(story)) == 1


@pytest.mark.parametrize(
    ("bound", "minimum", "count"),
    [
        pytest.param(["a0", "a1", "a2", "a3"], 4, 1, id="all members are bound"),
        pytest.param(["a0", "a1", "a2"], 4, 0, id="one of the minimum still waits"),
        pytest.param(["a0", "a1"], 2, 0, id="the minimum is bound and others still wait"),
    ],
)
def test_when_a_gang_counts_as_placed(bound, minimum, count):
    story = ask_about(Story(4, 4), indexed(4, minimum=minimum))
    story.show(*indexed(4, at=bound, minimum=minimum)).wait(TIDY_S)
    assert len(reports(story)) == count


def test_a_replica_that_no_scheduler_asked_reports_nothing():
    story = Story(4, 4).show(*indexed(4))
    story.show(*indexed(4, at=["a0", "a1", "a2", "a3"])).wait(TIDY_S)
    assert reports(story) == []


def test_a_gang_that_had_started_before_the_question_is_not_reported():
    story = Story(4, 4)
    pods = indexed(4, at=["a0", "a1", "a2"])
    story.show(*pods)
    story.view.filter(pods[3], story.stage.names)
    story.show(*indexed(4, at=["a0", "a1", "a2", "a3"])).wait(TIDY_S)
    assert reports(story) == []


def test_a_gang_whose_pods_have_no_controller_is_reported_on_its_podgroup():
    story = Story(4, 4)
    story.view.view.groups.put_group(Dialect.VOLCANO, world.group("g", 2))
    ask_about(story, world.volcano("g", 2))
    story.show(*world.volcano("g", 2, at=["a0", "a1"])).wait(TIDY_S)
    (notice,) = reports(story)
    assert (notice.kind, notice.api_version) == ("PodGroup", "scheduling.volcano.sh/v1beta1")
    assert (notice.name, notice.uid) == ("g", "uid-group-g")


def test_an_owner_with_a_name_longer_than_kubernetes_has_is_not_kept():
    (pod, *_) = indexed(1)
    pod.metadata.owner_references[0].api_version = "v" * 100_000
    assert member_of(pod).controller is None


def test_nothing_is_reported_where_the_map_knows_no_node():
    story = ask_about(Story(4, 4, mapped=False), indexed(2))
    story.show(*indexed(2, at=["a0", "a1"])).wait(TIDY_S)
    assert reports(story) == []


def leaves_by_default(w, name):
    (gang,) = [gang for gang in w.view.gangs.values() if gang.key.name == name]
    w.view.settle(w.now_s)
    hosts = default_hosts(w.view, gang)
    return hosts and sorted(w.view.fabric.hosts[host] for host in hosts)


def test_default_scheduling_is_estimated_on_the_emptiest_nodes():
    busy = [world.pod(f"busy-{i}", 6, node) for i, node in enumerate(["a0", "b0", "b1"])]
    w = World(2, 2).put(*busy, *world.volcano("g", 3, gpus=2, at=["a0", "b0", "b1"]))
    assert leaves_by_default(w, "g") == ["a1", "a1", "a1"]


def test_there_is_no_estimate_for_a_gang_that_does_not_fit_any_more():
    w = World(2).put(*world.volcano("g", 2, at=["a0", "a1"]), world.pod("late", 8, "a1"))
    assert leaves_by_default(w, "g") is None
