"""Volcano's `extender` plugin asks for the decisions that kube-scheduler gets: its requests, as Go writes them."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler_ext.wishes.stage import GPU, HOSTS, Stage, pod
from turnout.jobs.gang import Dialect
from turnout.kube.labels import TOPOLOGY, VOLCANO_GROUP
from turnout.kube.objects import PodGroup
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.server.requests import Outcome, Verb
from turnout.scheduler_ext.wire.volcano_v1 import ABSTAIN, POINT, REJECT, SUCCESS, UNRESOLVABLE, UNSCHEDULABLE

REQUIRED_LEAF = {TOPOLOGY: "required", "turnout.dev/topology-tier": "1"}


def task(raw_pod):
    """A TaskInfo: Go's field names without tags, and the whole pod. Scalars are in thousandths."""
    meta = raw_pod["metadata"]
    asks = {"MilliCPU": 1000, "Memory": 0, "ScalarResources": {GPU: 8000}, "MaxTaskNum": None}
    return {
        "UID": meta["uid"], "Job": f"default/{meta['annotations'].get(VOLCANO_GROUP, '')}", "Name": meta["name"],
        "Namespace": "default", "TaskRole": "worker", "Resreq": asks, "InitResreq": asks, "NodeName": "", "Status": 1,
        "Priority": 1, "VolumeReady": False, "Preemptable": False, "BestEffort": False, "HasRestartableInitContainer":
        False, "SchGated": False, "RevocableZone": "", "NumaInfo": None, "Pod": raw_pod, "CustomBindErrHandler": None,
    }  # fmt: skip


def node(name):
    """A NodeInfo, with the pods that it has."""
    room = {"MilliCPU": 64000, "Memory": 1e11, "ScalarResources": {GPU: 8000}, "MaxTaskNum": 110}
    tasks = {"default/other": task(pod("other"))}
    return {"Name": name, "Node": {"metadata": {"name": name}}, "Idle": room, "Used": {}, "Releasing": {},
            "Pipelined": {}, "Allocatable": room, "Capacity": room, "Tasks": tasks}  # fmt: skip


def job(name, namespace="default"):
    """A JobInfo."""
    return {"UID": f"{namespace}/{name}", "Name": name, "Namespace": namespace, "Queue": "default", "MinAvailable": 4,
            "TaskStatusIndex": {"1": {}}, "PodGroup": {"metadata": {"name": name}}}  # fmt: skip


class Volcano:
    """A Volcano whose session asks a Turnout that has seen some gangs."""

    def __init__(self, busy=()):
        self.stage = Stage(busy)

    def gang(self, name, pods, minimum=None, notes=None, is_shown=True):
        """Show a gang's pods, and its PodGroup if it is `seen`; return the pods."""
        gang_pods = [pod(f"{name}-{at}", notes={VOLCANO_GROUP: name, **(notes or {})}) for at in range(pods)]
        if is_shown:
            group = {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
                     "spec": {"minMember": minimum or pods}}  # fmt: skip
            self.stage.view.view.groups.put_group(Dialect.VOLCANO, msgspec.convert(group, PodGroup))
        for each in gang_pods:
            self.stage.show(each)
        return gang_pods

    def asks(self, verb, request):
        reply = self.stage.dispatcher.answer(verb, json.dumps(request).encode())
        assert (reply.status, reply.outcome) == (200, Outcome.ANSWERED)
        return json.loads(reply.body)

    def predicate(self, raw_pod, name):
        return self.asks(Verb.VOLCANO_PREDICATE, {"task": task(raw_pod), "node": node(name)})

    def scores(self, raw_pod, names):
        question = {"task": task(raw_pod), "nodes": [node(name) for name in names]}
        answer = self.asks(Verb.VOLCANO_PRIORITIZE, question)
        assert answer["errorMessage"] == ""
        return answer["nodeScore"]

    def enqueueable(self, name):
        return self.asks(Verb.VOLCANO_JOB_ENQUEUEABLE, {"job": job(name)})["status"]

    def session(self, pods, liked=()):
        """Allocate a gang as a session does: the node with the highest sum of all plugins' scores, one after another.

        liked: nodes to which other plugins give a hundred each.
        """
        free, node_by_pod = [name for name in HOSTS if self.stage.free[name] >= 8], {}
        for raw_pod in pods:
            fit = [name for name in free if self.predicate(raw_pod, name)["code"] == SUCCESS]
            ours = self.scores(raw_pod, fit)
            best = max(fit, key=lambda name: (ours.get(name, 0.0) + 100.0 * (name in liked), name))
            node_by_pod[raw_pod["metadata"]["name"]] = best
            free.remove(best)
        return node_by_pod

    @property
    def words(self):
        return [notice.reason for notice in self.stage.told]


@pytest.mark.contract("CS-10")
def test_a_gang_lands_under_one_leaf_though_other_plugins_spread_it():
    volcano = Volcano()
    node_by_pod = volcano.session(
        volcano.gang("bert", 4), liked=[f"s{spine}l{leaf}h0" for spine in (0, 1) for leaf in range(3)]
    )
    assert len(set(node_by_pod.values())) == 4
    assert len({name[:4] for name in node_by_pod.values()}) == 1


@pytest.mark.contract("CS-10")
def test_the_planned_node_is_the_one_that_kube_scheduler_would_be_told():
    volcano = Volcano(busy={"s0l0h0": 8})
    first = volcano.gang("bert", 4)[0]
    scores = volcano.scores(first, HOSTS)
    arguments = {"Pod": first, "Nodes": None, "NodeNames": HOSTS}
    nodes = volcano.asks(Verb.FILTER, arguments)["NodeNames"]
    assert [name for name, score in scores.items() if score == 10 * POINT] == nodes
    assert all(0 < score <= 10 * POINT for score in scores.values())


def test_scores_are_of_nodes_in_the_request_and_there_even_if_none_is():
    volcano = Volcano()
    (first, *_), lone = volcano.gang("bert", 4), pod("web", gpus=0)
    assert set(volcano.scores(first, HOSTS[-4:])) <= set(HOSTS[-4:])
    assert volcano.scores(lone, HOSTS) == {}


@pytest.mark.contract("CS-10")
def test_no_task_is_refused_a_node_because_it_is_planned_on_another():
    volcano = Volcano()  # Volcano remembers a refusal for all tasks of the role
    codes = {volcano.predicate(each, name)["code"] for each in volcano.gang("bert", 4) for name in HOSTS}
    assert codes == {SUCCESS}


@pytest.mark.contract("CS-10")
@pytest.mark.parametrize(("pods", "busy", "code", "vote", "word"), [
    pytest.param(4, {f"s{s}l{x}h0": 8 for s in (0, 1) for x in range(3)}, UNSCHEDULABLE, ABSTAIN,
                 EventReason.TIER_TOO_NARROW, id="once others have left a leaf would hold it"),
    pytest.param(5, {}, UNRESOLVABLE, REJECT, EventReason.TIER_TOO_NARROW, id="no leaf holds it, whoever leaves"),
])  # fmt: skip
def test_a_gang_that_cannot_start_is_refused_everywhere_with_one_word(pods, busy, code, vote, word):
    volcano = Volcano(busy)
    gang_pods = volcano.gang("bert", pods, notes=REQUIRED_LEAF)
    answers = [volcano.predicate(gang_pods[0], name) for name in HOSTS]
    assert {answer["code"] for answer in answers} == {code}
    assert all(answer["status"].startswith(f"{word.value}: ") for answer in answers)
    assert set(volcano.words) == {word}
    assert volcano.enqueueable("bert") == vote


@pytest.mark.contract("CS-10")
@pytest.mark.parametrize("name", [
    pytest.param("bert", id="it fits: other plugins, such as its queue's quota, still have their say"),
    pytest.param("nobody", id="its pods do not exist yet"),
])  # fmt: skip
def test_a_job_is_voted_for_by_nobody_and_waits_only_where_it_cannot_start(name):
    volcano = Volcano()
    volcano.gang("bert", 4)
    assert volcano.enqueueable(name) == ABSTAIN


def test_a_gang_that_runs_is_not_voted_against():
    volcano = Volcano()
    for at, each in enumerate(volcano.gang("bert", 2)):
        volcano.stage.show({**each, "spec": {**each["spec"], "nodeName": HOSTS[at]}})
    assert volcano.enqueueable("bert") == ABSTAIN


def test_from_an_old_view_a_task_is_refused_for_now_and_nobody_is_told():
    volcano = Volcano()
    gang_pods = volcano.gang("bert", 5, notes=REQUIRED_LEAF)
    volcano.stage.view.watches.old = True
    answer = volcano.predicate(gang_pods[0], HOSTS[0])
    assert answer["status"].startswith("OldView: TierTooNarrow: ")
    assert volcano.enqueueable("bert") == ABSTAIN
    assert volcano.words == []


def test_a_task_whose_podgroup_no_watch_has_shown_waits_for_it_a_moment():
    volcano = Volcano()
    volcano.stage.view.watches.serves = True
    gang_pods = volcano.gang("bert", 4, is_shown=False)
    answer = volcano.predicate(gang_pods[0], HOSTS[0])
    assert (answer["code"], answer["status"].split(":")[0]) == (UNSCHEDULABLE, "OldView")


def test_a_malformed_annotation_is_told_though_only_scores_are_asked_for():
    volcano = Volcano()
    (raw_pod,) = volcano.gang("bert", 1, notes={TOPOLOGY: "soon"})
    volcano.scores(raw_pod, HOSTS)
    assert volcano.words == [EventReason.BAD_ANNOTATION]


VERBS = [Verb.VOLCANO_PREDICATE, Verb.VOLCANO_PRIORITIZE, Verb.VOLCANO_JOB_ENQUEUEABLE]
WHOLE = {"task": task(pod("bert-0")), "node": node("s0l0h0"), "nodes": [node("s0l0h0")], "job": job("bert")}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.value)
@pytest.mark.parametrize("body", [
    pytest.param(b"", id="nothing"),
    pytest.param(b"[]", id="a list"),
    pytest.param(b"{}", id="an empty object"),
    pytest.param(b'{"task": null, "node": null, "nodes": null, "job": null}', id="nothing is said"),
    pytest.param(b'{"task": {"Pod": {}}, "node": {"Name": 1}, "nodes": [null], "job": {"UID": 1}}', id="wrong types"),
    pytest.param(b'{"task": {"Pod": {}}, "node": {}, "nodes": {}, "job": {"UID": "bert"}}', id="nobody is named"),
    pytest.param(json.dumps(WHOLE).encode()[:-9], id="cut off"),
    pytest.param(json.dumps(WHOLE).encode().replace(b"bert", b"\xff\xfe"), id="not UTF-8"),
    pytest.param(b'{"task":' * 5000, id="nested too deep"),
])  # fmt: skip
def test_a_body_that_is_no_such_request_gets_a_400_that_quotes_nothing(verb, body):
    reply = Volcano().stage.dispatcher.answer(verb, body)
    assert (reply.status, reply.outcome) == (400, Outcome.BAD_REQUEST)
    assert b"bert" not in reply.body


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(verb=st.sampled_from(VERBS), key=st.sampled_from(sorted(WHOLE)),
       inner=st.sampled_from(["", "Pod", "Name", "UID"]), value=_json)  # fmt: skip
def test_whatever_stands_in_a_field_is_answered_or_refused(verb, key, inner, value):
    field_value = WHOLE[key]
    changed = {**field_value, inner: value} if inner and isinstance(field_value, dict) else value
    reply = Volcano().stage.dispatcher.answer(verb, json.dumps({**WHOLE, key: changed}).encode())
    assert reply.outcome in (Outcome.ANSWERED, Outcome.BAD_REQUEST)
    assert isinstance(json.loads(reply.body), dict)
