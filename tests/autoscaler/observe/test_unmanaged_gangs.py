"""Gangs of kinds that we do not know: they wait, and are served, and nobody resizes them. XD-03."""

import msgspec
import pytest

from tests.autoscaler.test_cache import job as indexed
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Policy, Reason
from turnout.autoscaler.observe import unmanaged_gangs
from turnout.jobs.gang import Dialect
from turnout.jobs.kinds.registry import KINDS
from turnout.kube import labels
from turnout.kube.objects import Node, OwnerReference, Pod, PodCondition

GPU = "nvidia.com/gpu"


def node(name, gpus=4):
    return msgspec.convert(
        {"metadata": {"name": name}, "status": {"allocatable": {GPU: str(gpus), "pods": "110"}}}, Node
    )


def pod(name, gpus=1, node=None, gang=None, owner=None, **notes):
    limits = {GPU: str(gpus)} if gpus else {"cpu": "1"}
    meta = {"name": name, "namespace": "ns", "uid": name, "annotations": notes, "labels": {}}
    if gang:
        meta["annotations"][labels.VOLCANO_GROUP] = gang
    if owner:
        meta["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": owner, "controller": True}]
    spec = {"containers": [{"name": "m", "resources": {"limits": limits}}], "nodeName": node or ""}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod)


def hidden(raw_pod, gates=None, scheduler="", message=""):
    """The pod, behind gates or for a scheduler, which has said so of it."""
    raw_pod.spec.scheduling_gates, raw_pod.spec.scheduler_name = gates, scheduler
    raw_pod.status.conditions = [PodCondition("PodScheduled", "False", message)] if message else None
    return raw_pod


def group(name, minimum=2, phase="Pending", resources=None, owner=None, **spec):
    meta = {"name": name, "namespace": "ns", "uid": f"group-{name}"}
    if owner:
        meta["ownerReferences"] = [{"uid": owner}]
    spec_fields = {"minMember": minimum, "minResources": resources or {GPU: str(2 * minimum)}, **spec}
    return unmanaged_gangs.read_pod_group(
        Dialect.VOLCANO, {"metadata": meta, "spec": spec_fields, "status": {"phase": phase}}
    )


def owned(name, kind, owner, **labels):
    """A running pod of some controller."""
    one_pod = pod(name, node="a")
    one_pod.metadata.owner_references = [OwnerReference(kind, owner, f"uid-{owner}", "apps/v1", True)]
    one_pod.metadata.labels = labels
    return one_pod


def queues_of_scraped_jobs(view):
    """The queue of each owner that Prometheus attaches to series, as the metrics ask for it."""
    return ((key, view.usage.queue_of(pod)) for key, pod in view.unmanaged.scraped_jobs())


def test_the_queue_of_pods_whose_owner_is_no_known_job(view):
    for each in (
        owned("web-0", "StatefulSet", "web"), owned("web-1", "StatefulSet", "web"), pod("alone", node="a"),
        owned("llm-0-1", "StatefulSet", "llm-0", **{labels.LWS_NAME: "llm"}), pod("cpu", gpus=0, node="a"),
    ):  # fmt: skip
        view.put_pod(each)
    assert dict(queues_of_scraped_jobs(view)) == {
        ("Pod", "ns", "alone"): "namespace/ns",
        ("StatefulSet", "ns", "web"): "namespace/ns",
        ("LeaderWorkerSet", "ns", "llm"): "namespace/ns",
    }
    view.drop_pod("web-0")
    view.drop_pod("alone")
    assert [key.name for key, _ in queues_of_scraped_jobs(view)] == ["llm", "web"]


def test_a_tenant_with_many_owners_gets_a_bounded_number_of_names(view):
    for at in range(unmanaged_gangs.MAX_SCRAPED_JOBS + 5):
        view.put_pod(pod(f"p{at}", node="a"))
    assert len(list(queues_of_scraped_jobs(view))) == unmanaged_gangs.MAX_SCRAPED_JOBS


@pytest.fixture
def view():
    cache = Cache(KINDS)
    cache.put_node(node("a"))
    return cache


def waiting_gangs(view):
    """Return what waits: how many pods of what size, by name."""
    found = view.observation(0.0).jobs
    return {
        str(each.job.key): (each.job.bounds.minimum - each.bound_workers, each.job.shape.gpus())
        for each in found
        if each.is_waiting
    }


def test_a_lone_pod_waits(view):
    view.put_pod(pod("p", 2))
    assert waiting_gangs(view) == {"Pod/ns/p": (1, 2)}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("p", 0), id="one that asks for no GPU"),
        pytest.param(pod("p", 2, node="a"), id="one that has a node"),
        pytest.param(pod("p", 2, owner="u"), id="a worker of a job that we know"),
    ],
)
def test_who_does_not_wait_here(view, other):
    view.put_job("Job", indexed())
    view.put_pod(other)
    assert not [name for name in waiting_gangs(view) if name.startswith("Pod")]


def test_a_gang_waits_for_its_min_and_not_for_more(view):
    view.unmanaged.put_group(group("g", minimum=3))
    for at, where in enumerate(["a", None, None, None]):
        view.put_pod(pod(f"p{at}", 1, node=where, gang="g"))
    assert waiting_gangs(view) == {"PodGroup/ns/g": (2, 1)}
    for at in (1, 2):
        view.put_pod(pod(f"p{at}", 1, node="a", gang="g"))
    assert waiting_gangs(view) == {}


def test_a_podgroup_waits_before_any_of_its_pods_is_there(view):
    """Volcano creates a job's pods only once its PodGroup is Inqueue."""
    for phase in ("Pending", "Inqueue"):
        view.unmanaged.put_group(group("g", phase=phase))
        assert waiting_gangs(view) == {"PodGroup/ns/g": (2, 2)}
    view.unmanaged.put_group(group("g", phase="Running"))
    assert waiting_gangs(view) == {}


def test_the_podgroup_of_a_job_that_we_know_is_its_own(view):
    view.put_job("Job", indexed())
    view.unmanaged.put_group(group("g", owner="u"))
    assert "PodGroup/ns/g" not in waiting_gangs(view)


@pytest.mark.parametrize(
    "raw_spec", [{"minMember": "two"}, {"minMember": -1}, {"minResources": {GPU: "many"}}, {"minResources": []}, {}]
)
def test_a_podgroup_that_cannot_be_read_says_nothing(view, raw_spec):
    view.unmanaged.put_group(
        unmanaged_gangs.read_pod_group(
            Dialect.VOLCANO, {"metadata": {"name": "g", "namespace": "ns"}, "spec": raw_spec}
        )
    )
    assert waiting_gangs(view) == {}


@pytest.mark.parametrize(("raw_spec", "minimum"), [
    pytest.param({"minMember": 4}, 4, id="without subgroups"),
    pytest.param({"minMember": 9, "subGroups": [{"name": "a", "minMember": 2}, {"name": "b", "minMember": 3}]}, 5,
        id="with subgroups, whose minimums count"),
    pytest.param({"subGroups": 5}, 1, id="unread subgroups are none"),
    pytest.param({}, 1, id="without a minimum"),
])  # fmt: skip
def test_a_podgroup_of_kai_says_how_many_start_together(raw_spec, minimum):
    raw = {"metadata": {"name": "g", "namespace": "ns"}, "spec": raw_spec}
    assert unmanaged_gangs.read_pod_group(Dialect.KAI, raw).minimum == minimum


def test_roles_of_several_shapes_wait_together(view):
    view.put_pod(pod("p0", 1, gang="g", **{labels.KOORD_MIN: "2"}))
    view.put_pod(pod("p1", 4, gang="g"))
    observation = next(each for each in view.observation(0.0).jobs if each.is_waiting)
    assert observation.job.shape.gpus() + sum(shape.gpus() * count for shape, count in observation.job.other_roles) == 5


@pytest.mark.contract("XD-03")
def test_room_is_made_for_it_and_it_is_never_resized(view):
    view.put_job("Job", indexed(replicas=2, **{labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "8"}))
    for at in range(2):
        view.put_pod(pod(f"j-{at}", 2, node="a", owner="u", **{labels.JOB_INDEX: str(at)}))
    view.put_pod(pod("p", 2))
    steps = {str(step.key): step for step in decide(view.observation(0.0), Policy(), 1000.0)}
    assert steps["Pod/ns/p"].reason is Reason.WAITS_FOR_ROOM
    assert not steps["Pod/ns/p"].changes
    shrunk = next(step for step in steps.values() if step.changes)
    assert (shrunk.target, shrunk.reason, str(shrunk.beneficiary)) == (1, Reason.MAKES_ROOM, "Pod/ns/p")


GATE = [{"name": "hold"}]


@pytest.mark.parametrize(
    ("raw_pod", "why"),
    [
        pytest.param(hidden(pod("p")), "", id="a plain pod"),
        pytest.param(hidden(pod("p"), [{"name": labels.PLACEMENT_GATE}]), "", id="one behind our gate"),
        pytest.param(hidden(pod("p"), GATE), "pod p waits behind a scheduling gate", id="one behind a gate"),
        pytest.param(
            hidden(pod("p"), GATE, message="SchedulingGated"), "pod p waits behind a scheduling gate", id="told"
        ),
        pytest.param(
            hidden(pod("p"), scheduler="nobody"),
            "pod p waits for scheduler 'nobody', which has never tried it",
            id="one of a scheduler that nobody is known to run",
        ),
        pytest.param(hidden(pod("p"), scheduler="mine", message="Unschedulable"), "", id="unless it has looked"),
        pytest.param(hidden(pod("p"), scheduler="volcano"), "", id="one of a scheduler that is known"),
    ],
)
def test_room_is_made_only_for_a_pod_that_can_be_bound(view, raw_pod, why):
    view.put_pod(raw_pod)
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.is_waiting, observed_job.unbindable) == (True, why)
    reason = Reason.UNSCHEDULABLE if why else Reason.SCHEDULERS_TURN
    assert [step.reason for step in decide(view.observation(0.0), Policy(), 0.0)] == [reason]


@pytest.mark.parametrize(
    ("behind", "able"),
    [
        pytest.param(0, True, id="all can be bound"),
        pytest.param(1, True, id="as many as it needs can"),
        pytest.param(2, False, id="fewer can than it needs"),
    ],
)
def test_a_gang_needs_its_min_of_pods_that_can_be_bound(view, behind, able):
    view.unmanaged.put_group(group("g", minimum=2))
    for at in range(3):
        view.put_pod(hidden(pod(f"p{at}", gang="g"), GATE if at < behind else None))
    (observed_job,) = view.observation(0.0).jobs
    assert (not observed_job.unbindable) is able


def test_a_job_of_a_known_kind_needs_its_min_of_pods_that_can_be_bound(view):
    view.put_job("Job", indexed(replicas=2, **{labels.MIN_WORKERS: "2"}))
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.is_waiting, observed_job.unbindable) == (True, "")  # its controller has not made them yet
    view.put_pod(hidden(pod("j-0", owner="u", **{labels.JOB_INDEX: "0"}), GATE))
    (observed_job,) = view.observation(0.0).jobs
    assert observed_job.unbindable == "pod j-0 waits behind a scheduling gate"


@pytest.mark.parametrize(
    ("raw_group", "able"),
    [
        pytest.param(group("g", owner="somebody"), True, id="one that somebody owns and its scheduler has seen"),
        pytest.param(group("g"), False, id="one of nobody"),
        pytest.param(group("g", phase="", owner="somebody"), False, id="one that no scheduler has seen"),
    ],
)
def test_a_podgroup_without_pods_is_believed_when_somebody_has_taken_it_up(view, raw_group, able):
    view.unmanaged.put_group(raw_group)
    (observed_job,) = view.observation(0.0).jobs
    assert (observed_job.is_waiting, not observed_job.unbindable) == (True, able)


def test_a_gang_has_started_once_a_member_has_a_node(view):
    view.put_pod(pod("p", 2))
    (observed_job,) = view.observation(0.0).jobs
    assert view.starts.has_started(observed_job.job.key) is False
    view.put_pod(pod("p", 2, node="a"))
    assert (view.starts.has_started(observed_job.job.key), view.observation(0.0).jobs) == (True, ())
    view.drop_pod("p")
    assert view.starts.has_started(observed_job.job.key), "it has come and gone between two looks"


@pytest.mark.parametrize(("node", "began"), [("a", True), (None, False)], ids=["it had a node", "it never had one"])
def test_a_job_that_is_gone_has_started_if_a_pod_of_it_had_a_node(view, node, began):
    view.put_job("Job", indexed(replicas=1))
    (key,) = view.jobs.raw
    view.put_pod(pod("j-0", owner="u", node=node, **{labels.JOB_INDEX: "0"}))
    view.drop_job("u")
    assert view.starts.has_started(key) is began


def test_what_is_gone_waits_no_more(view):
    view.put_pod(pod("p", 2))
    view.unmanaged.put_group(group("g"))
    view.drop_pod("p")
    view.unmanaged.drop_group(group("g").key)
    assert waiting_gangs(view) == {}
