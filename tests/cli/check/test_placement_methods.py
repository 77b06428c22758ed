"""Which of the three ways a plan reaches a scheduler by: what can be used, what is, and what to do."""

from dataclasses import replace

import pytest

from tests.cli.check.test_verdicts import FINE, deployment, page
from turnout.cli.check.verdicts import Level, MethodFacts, lines

POLICY = {"metadata": {"name": "turnout-nominator-gates-pods"}}
SERVED = MethodFacts(served=True, policies=[POLICY], webhooks=[], namespaces=["ml"], gated=3)
NOTHING = MethodFacts(served=False, policies=None, webhooks=[], namespaces=[], gated=0)
GATES = deployment("nominator", args=["--gates"])
SILENT = {"turnout-extender-a": page(0)}


def only(*deployments, extender_metrics=None, **more):
    """A cluster with these Deployments alone."""
    return replace(FINE, deployments=deployments, extender_metrics=extender_metrics or {}, **more)


# What is seen, the number of the line, its verdict, a part of the text, a part of the remedy.
CASES = {
    "the extender is asked": (FINE, 0, "fine", "extender: used", ""),
    "beside it nominations are a choice": (FINE, 1, "fine", "nominations: not used", "nominator.enabled=true"),
    "beside it gates are a choice": (
        replace(FINE, methods=NOTHING), 2, "fine", "gates: not used", "nominator.gates=true",
    ),
    "the extender is never asked": (
        only(deployment("extender"), extender_metrics=SILENT), 0, "doubtful", "not used", "use gates"
    ),
    "whether it is asked cannot be seen": (
        only(deployment("extender"), extender_metrics={"turnout-extender-a": None}), 0, "unknown", "cannot be seen",
        "lines above"
    ),
    "whether it is asked cannot be seen without the right to list pods": (
        only(deployment("extender"), refused={"/api/v1/namespaces/turnout/pods": "no"}), 0, "unknown", "cannot be seen",
        "lines above",
    ),
    "a scheduler of ours asks it": (
        only(deployment("scheduler"), extender_metrics={"a": page(3)}), 0, "fine", "used", ""
    ),
    "nothing places": (only(deployment("autoscaler")), 0, "doubtful", "not installed", "extender.enabled=true"),
    "a nominator is there": (only(deployment("nominator")), 1, "fine", "nominations: used", ""),
    "beside a nominator the extender is a choice": (only(deployment("nominator")), 0, "fine", "not installed", ""),
    "none of its replicas is ready": (
        only(deployment("nominator", 0)), 1, "wrong", "no replica is ready", "describe deployment turnout-nominator"
    ),
    "no replica of the extender is ready": (
        only(deployment("extender", 0)), 0, "wrong", "no replica is ready", "describe deployment turnout-extender"
    ),
    "no replica lifts gates": (
        only(deployment("nominator", 0, args=["--gates"]), methods=SERVED), 2, "wrong",
        "gates: 3 pods wait; the nominator is installed, no replica is ready", "describe deployment",
    ),
    "beside a nominator that is not ready nothing places": (
        only(deployment("nominator", 0)), 0, "doubtful", "not installed", ""
    ),
    "an extender that was scaled to 0": (
        only({**deployment("extender", 0), "spec": {"replicas": 0}}), 0, "doubtful", "with 0 replicas", "scale"
    ),
    "too old for nominations": (
        only(deployment("autoscaler"), server_version="v1.29.3"), 1, "doubtful", "cannot use them", "1.30"
    ),
    "too old for gates": (
        only(deployment("autoscaler"), server_version="v1.29.3"), 2, "doubtful", "cannot use them", "1.30"
    ),
    "gates, by our policy": (
        only(GATES, methods=SERVED), 2, "fine", "3 pods wait; put by the policy turnout-nominator-gates-pods", ""
    ),
    "gates, by our webhook": (
        only(GATES, methods=replace(NOTHING, webhooks=[POLICY], namespaces=["ml"])), 2, "fine", "put by the webhook", ""
    ),
    "gates, by templates": (only(GATES, methods=NOTHING), 2, "fine", "put by templates of pods alone", ""),
    "gates, by our controllers": (
        only(GATES, deployment("controller", args=["--gate-pods"]), methods=NOTHING), 2, "fine", "controllers", ""
    ),
    "a policy, and no namespace asks": (
        only(GATES, methods=replace(SERVED, namespaces=[])), 2, "doubtful", "in no namespace", "kubectl label namespace"
    ),
    "a namespace asks, and nothing obeys": (
        only(GATES, methods=replace(NOTHING, namespaces=["ml"])), 2, "doubtful", "nothing obeys: ml", "gatePods=true"
    ),
    "pods wait, and nobody lifts": (
        only(deployment("nominator"), methods=replace(NOTHING, gated=2)), 2, "wrong", "2 pods wait", "turnout release"
    ),
    "a policy can be used": (
        only(deployment("autoscaler"), methods=replace(SERVED, gated=0)), 2, "doubtful", "a policy of this API", ""
    ),
    "only a webhook can": (
        only(deployment("autoscaler"), methods=NOTHING), 2, "doubtful", "a webhook, or templates", "",
    ),
    "what cannot be seen is taken from the version": (
        only(deployment("autoscaler"), server_version="v1.37.2"), 2, "doubtful", "a policy of this API", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "number", "word", "text", "remedy"), CASES.values(), ids=CASES)
def test_a_placement_method(facts, number, word, text, remedy):
    line = [line for line in lines(facts) if line.about == "way"][number]
    assert (line.level, text in line.text, remedy in line.remedy) == (Level(word), True, True), line


def test_each_way_has_one_line_once_something_is_installed():
    assert [line.text.partition(":")[0] for line in lines(FINE) if line.about == "way"] == [
        *("extender", "nominations", "gates")
    ]
    assert not [line for line in lines(replace(FINE, deployments=[])) if line.about == "way"]
