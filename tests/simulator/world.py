"""Small things to build a local cluster from: nodes, pods, clusters."""

import random

from turnout.kube.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, Resources, Taint
from turnout.simulator.cluster.cluster import Cluster, pod_info_of

GPU = "nvidia.com/gpu"


def node(name, cpu="16", memory="64Gi", gpus=8, labels=None, taints=(), unschedulable=False):
    raw_node = Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": memory, "pods": "110", GPU: str(gpus)}),
    )
    raw_node.spec.taints = [Taint(key=key, effect=effect) for key, effect in taints]
    raw_node.spec.unschedulable = unschedulable
    return raw_node


def pod(name, cpu="2", memory="4Gi", gpus=1, priority=0, nominated="", labels=None, **spec):
    asks = {k: v for k, v in {"cpu": cpu, "memory": memory, GPU: gpus and str(gpus)}.items() if v}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, labels=labels),
        spec=PodSpec(containers=[Container(resources=Resources(requests=asks))], priority=priority, **spec),
        status=PodStatus(nominated_node_name=nominated),
    )


def pod_info(name, spread=None, **more):
    return pod_info_of(pod(name, **more), spread)


def cluster(*nodes, bound_pods=()):
    state = Cluster()
    for each in nodes:
        state.put_node(each if isinstance(each, Node) else node(each))
    for pod, where in bound_pods:
        state.place(pod, where)
    return state


class InOrder(random.Random):
    """Dice that leave the sixteen workers to finish in the order in which they began."""

    def shuffle(self, x):
        """Nothing moves."""


UNRACED = InOrder()
