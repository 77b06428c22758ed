"""Which queues start nobody before an older job, in every dialect."""

import pytest

from turnout.jobs.queues.registry import QUEUE_ORDER_READERS, QueueOrder, StrictQueues
from turnout.kube import labels

KUEUE, VOLCANO, KOORDINATOR, ELASTIC = QUEUE_ORDER_READERS
SAID = {labels.STRICT_ORDER: "true"}
ONLY_A = {labels.QUEUE_NAMESPACES: "a"}
GRANTS_A = SAID | {labels.QUEUE_NAMESPACES: "a"}


def queue(name, namespace="", notes=None, **spec):
    return {"metadata": {"name": name, "namespace": namespace, "annotations": notes or {}}, "spec": spec}


def read(path, raw):
    return QUEUE_ORDER_READERS[path](raw)


@pytest.mark.parametrize(
    ("path", "raw", "strict"),
    [
        pytest.param(KUEUE, queue("a", queueingStrategy="StrictFIFO"), True, id="StrictFIFO of Kueue"),
        pytest.param(KUEUE, queue("a", queueingStrategy="BestEffortFIFO"), False, id="BestEffortFIFO of Kueue"),
        pytest.param(KUEUE, queue("a", notes=SAID), True, id="our annotation on Kueue's"),
        pytest.param(VOLCANO, queue("a", notes=SAID), True, id="Volcano's, by the annotation"),
        pytest.param(VOLCANO, queue("a"), False, id="Volcano's, without"),
        pytest.param(VOLCANO, queue("a", notes={labels.STRICT_ORDER: "yes"}), False, id="another word"),
        pytest.param(VOLCANO, queue("a", notes={labels.STRICT_ORDER: ["true"]}), False, id="no text"),
        pytest.param(KOORDINATOR, queue("a", "ns", notes=SAID), True, id="koordinator's"),
        pytest.param(KOORDINATOR, queue("a", "ns"), False, id="koordinator's, without"),
        pytest.param(ELASTIC, queue("a", "ns", notes=SAID), True, id="scheduler-plugins'"),
        pytest.param(ELASTIC, queue("a", "ns"), False, id="scheduler-plugins', without"),
        pytest.param(KUEUE, {"spec": 7}, False, id="an object that cannot be read"),
    ],
)
def test_an_object_says_whether_its_order_is_strict(path, raw, strict):
    found = read(path, raw)
    assert (found is not None and found.is_strict) == strict


def known(*raw_queues, local=(), named=()):
    queues = StrictQueues(frozenset(named))
    for path, raw in raw_queues:
        queues.put(f"{path} {raw['metadata']['name']}", read(path, raw))
    for one, other in local:
        queues.set_cluster_queue(one, other)
    return queues


STRICT = (KUEUE, queue("gpus", queueingStrategy="StrictFIFO"))


@pytest.mark.parametrize(
    ("queues", "where", "name", "found"),
    [
        pytest.param(known(STRICT, local=[("ns/q", "gpus")]), "ns", "q", "kueue/gpus", id="through its LocalQueue"),
        pytest.param(known(STRICT, local=[("ns/q", "gpus")]), "other", "q", "", id="no such LocalQueue there"),
        pytest.param(known(STRICT, local=[("ns/q", "cpus")]), "ns", "q", "", id="it leads to another"),
        pytest.param(known(STRICT), "ns", "gpus", "", id="pods do not name a ClusterQueue"),
        pytest.param(known(STRICT), "ns", "kueue/gpus", "", id="nor by the name that we give it"),
        pytest.param(known((VOLCANO, queue("v", notes=SAID))), "ns", "v", "volcano/v", id="Volcano's by its name"),
        pytest.param(known((KOORDINATOR, queue("k", "n", notes=SAID))), "n", "k", "koordinator/k", id="a quota's name"),
        pytest.param(
            known((KOORDINATOR, queue("k", "n", notes=SAID))), "x", "k", "", id="a quota of others' namespace"
        ),
        pytest.param(known((VOLCANO, queue("v", notes=GRANTS_A))), "a", "v", "volcano/v", id="a Queue that grants it"),
        pytest.param(known((VOLCANO, queue("v", notes=GRANTS_A))), "b", "v", "", id="a Queue that grants it to others"),
        pytest.param(
            known((VOLCANO, queue("v", notes=GRANTS_A)), named=["v"]), "b", "v", "", id="nor where an admin names it"
        ),
        pytest.param(
            known((VOLCANO, queue("v", notes=GRANTS_A)), named=["b/v"]), "b", "v", "b/v", id="but with the namespace"
        ),
        pytest.param(
            known((VOLCANO, queue("v", notes=ONLY_A)), named=["v"]), "b", "v", "", id="named, and granted to others"
        ),
        pytest.param(
            known((VOLCANO, queue("v", notes=ONLY_A)), named=["v"]), "a", "v", "v", id="named, and granted to it"
        ),
        pytest.param(known((VOLCANO, queue("v", notes=ONLY_A))), "a", "v", "", id="granted, but not strict"),
        pytest.param(known((KOORDINATOR, queue("k", "n")), named=["k"]), "x", "k", "", id="named, a quota of others"),
        pytest.param(known((KOORDINATOR, queue("k", "n"))), "n", "", "", id="no name, a quota that is not strict"),
        pytest.param(
            known((VOLCANO, queue("v")), (KOORDINATOR, queue("v", "x")), named=["v"]),
            "a",
            "v",
            "v",
            id="a quota of that name in another namespace takes a named queue from nobody",
        ),
        pytest.param(
            known((VOLCANO, queue("v", notes=ONLY_A)), (KOORDINATOR, queue("v", "x", notes=SAID)), named=["v"]),
            "a",
            "v",
            "v",
            id="nor does one that is strict",
        ),
        pytest.param(
            known(
                (KOORDINATOR, queue("k", "n", notes=SAID)),
                (VOLCANO, queue("k", notes=SAID | {labels.QUEUE_NAMESPACES: "x"})),
            ),
            "n",
            "k",
            "koordinator/k",
            id="of two strict queues of one name, the one that admits the namespace",
        ),
        pytest.param(known((KOORDINATOR, queue("k", "k", notes=SAID))), "k", "", "koordinator/k", id="its namespace"),
        pytest.param(known((ELASTIC, queue("e", "ns", notes=SAID))), "ns", "", "namespace/ns", id="of a namespace"),
        pytest.param(known((ELASTIC, queue("e", "ns", notes=SAID))), "other", "", "", id="of another namespace"),
        pytest.param(known(named=["ns/q"]), "ns", "q", "ns/q", id="named with its namespace"),
        pytest.param(known(named=["q"]), "ns", "q", "q", id="named for all namespaces"),
        pytest.param(known(named=["q"]), "ns", "", "", id="nobody names one"),
    ],
)
def test_the_queue_of_a_gang(queues, where, name, found):
    assert queues.of(where, name) == found


def test_what_changes_nothing_is_told_so():
    queues = StrictQueues()
    assert queues.put("a", QueueOrder("kueue/a"))
    assert not queues.put("a", QueueOrder("kueue/a"))
    assert queues.put("a", None)
    assert not queues.put("a", None)
    assert queues.set_cluster_queue("ns/q", "a")
    assert not queues.set_cluster_queue("ns/q", "a")
    assert queues.set_cluster_queue("ns/q", "")
    assert not queues.set_cluster_queue("ns/q", "")
    assert not queues.set_cluster_queue("ns/never", "")
    assert queues.of("ns", "q") == ""


def test_a_change_of_a_queue_that_nobody_orders_makes_no_plan_invalid():
    queues = StrictQueues(frozenset(["named"]))
    assert not queues.put("a", QueueOrder("volcano/v", ("v",), is_strict=False))
    assert queues.put("b", QueueOrder("volcano/named", ("named",), is_strict=False))
