"""How much one question plans: bounded, shared by namespace, and finished between the questions."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.scheduler_ext.cluster.view import MAX_PATIENCE_S, PATIENCE_S
from turnout.scheduler_ext.model import Victims
from turnout.scheduler_ext.planner.answers import answer_preempt
from turnout.scheduler_ext.planner.batches import GANG_STEPS, HOST_STEPS, QUESTION_STEPS

# What a question may take at a thousand nodes: those ahead, the last of them begun within the bound, and its own gang.
MOST_STEPS = QUESTION_STEPS + 1_000 * HOST_STEPS + 2 * GANG_STEPS


def asks(pods, **more):
    """Let each pod ask for more of everything than the one before, so that no two are alike."""
    for at, pod in enumerate(pods):
        for container in pod.spec.containers:
            for part in (container.resources.requests, container.resources.limits):
                part |= {"cpu": f"{1000 + at}m", **{name: amount.format(at) for name, amount in more.items()}}
    return pods


def made_up(pods):
    """Let each pod ask for a resource that no node has."""
    for at, pod in enumerate(pods):
        for container in pod.spec.containers:
            container.resources.requests[f"example.com/r{at}"] = container.resources.limits[f"example.com/r{at}"] = "1"
    return pods


def gangs(count, size=1, namespace="flood", **more):
    """Many gangs of one tenant, older than everybody's."""
    return [
        pod
        for at in range(count)
        for pod in world.koordinator(f"flood{at}", size, namespace=namespace, created=1, **more)
    ]


FLOODS = {
    "gangs that fit": lambda: gangs(300, gpus=1),
    "gangs of which no two are alike and none fits": lambda: asks(gangs(300, minimum=9_000)),
    "gangs that hope for a thousand members each": lambda: gangs(100, gpus=1, minimum=1, total=1_000),
    "gangs that ask for what no node has": lambda: made_up(gangs(300, gpus=1)),
    "a gang of a hundred shapes": lambda: asks(gangs(1, 100, gpus=1)),
    "a gang of a hundred shapes under one switch": lambda: asks(gangs(1, 100, notes=REQUIRED)),
    "gangs of many shapes under one switch": lambda: asks(gangs(10, 60, notes=REQUIRED)),
}


class TestOneQuestion:
    @pytest.mark.parametrize("flood", FLOODS)
    def test_plans_so_much_and_no_more_beside(self, flood):
        w, honest = World(*[40] * 25), world.volcano("honest", 8, created=50)
        tenant = FLOODS[flood]()
        w.put(*tenant, *honest)
        for at, pod in enumerate(pod for pair in zip(tenant, honest, strict=False) for pod in pair):
            before = w.plans.steps
            nodes = w.fit(pod, w.names).nodes
            assert w.plans.steps - before < MOST_STEPS
            if at % 2:
                assert len(nodes) == 1
                w.bind(pod, nodes[0])
                w.view.drop_pod(tenant[at // 2].metadata.uid)  # so that whoever was refused hopes again

    def test_of_a_preemption_looks_at_some_domains_only(self):
        w, pods = World(*[10] * 20), asks(gangs(1, 60, notes=REQUIRED, priority=5))
        w.put(*(world.pod(f"busy{name}", 8, at=name) for name in w.names), *pods)
        w.view.settle(w.now_s)
        rooms, snapshot = [], w.view.snapshot
        before = snapshot.room_after_preemption
        snapshot.room_after_preemption = lambda *asked: rooms.append(asked) or before(*asked)
        answer_preempt(w.plans, w.member(pods[0]), {"a0": Victims(("u",))}, w.now_s)
        assert len(rooms) < 300  # 60 shapes under each of 20 leaves would be 1,200

    def test_is_answered_with_its_own_host_though_others_ahead_have_no_plan(self):
        w, honest = World(*[40] * 25), world.volcano("honest", 8, created=50)
        w.put(*asks(gangs(300, minimum=9_000)), *honest)
        assert len(w.schedule(*honest)) == 8

    def test_of_one_tenant_waits_for_its_share_of_anothers_and_not_for_all(self):
        w = World(*[40] * 25)
        few = [pod for at in range(5) for pod in world.koordinator(f"few{at}", 1, namespace="few", created=40 + at)]
        honest = world.volcano("honest", 8, created=50)
        w.put(*asks(gangs(300, minimum=9_000)), *few, *honest)
        w.fit(honest[0], w.names)
        planned = {plan.key.namespace for plan in w.plans.current_plans()}
        assert planned == {"flood", "few", "default"}
        assert sum(plan.key.namespace == "few" for plan in w.plans.current_plans()) == 5

    def test_what_it_left_is_planned_in_turns_until_everybody_has_a_plan(self):
        w, pods = World(*[40] * 25), asks(gangs(300, minimum=9_000))
        w.put(*pods)
        turns = 0
        while w.plans.plan_some(w.now_s):
            turns += 1
            assert turns < 300
        assert turns > 1
        assert len(w.plans.current_plans()) == 300

    def test_in_a_small_queue_goes_by_the_order_of_all(self):
        w, low, high = World(2), world.volcano("low", 2, created=1), world.volcano("high", 2, created=2, priority=5)
        w.put(*low, *high)
        assert not w.schedule(*low)
        assert len(w.schedule(*high)) == 2


class TestPatience:
    def missing(self, w, name):
        w.view.settle(w.now_s)
        return {key.name: w.view.awaited_members.missing_pods(gang) for key, gang in w.view.gangs.items()}[name]

    def test_of_a_gang_that_says_another_size_again_and_again_is_spent_once(self):
        """Let the gang be whole, then lack sixty members, with a new pod each time."""
        w, waited_s = World(8), 0.0
        for turn in range(40):
            size = 2 if turn % 2 else 62
            pods = world.koordinator("turn", 2, minimum=size, total=size, gpus=1, at=["a0"])
            pods[1].metadata.uid = f"turn{turn}"
            w.put(*pods)
            if turn:
                w.view.drop_pod(f"turn{turn - 1}")
            for _ in range(29):
                waited_s += self.missing(w, "turn") > 0
                w.now_s += 1.0
        assert 40 * (PATIENCE_S - 1) > 2 * MAX_PATIENCE_S
        assert waited_s <= MAX_PATIENCE_S

    def test_a_gang_whose_group_says_its_min_is_not_made_larger_by_its_pods(self):
        w, pods = World(2), world.koordinator("bert", 2, minimum=999_999, gpus=1)
        w.put(*pods).put_group("bert", 2, dialect=Dialect.KOORDINATOR)
        assert self.missing(w, "bert") == 0
        assert len(w.schedule(*pods)) == 2

    def test_a_gang_whose_owner_says_its_size_is_not_made_larger_by_its_pods(self):
        w = World(8)
        w.view.groups.put_owner("Job", world.owner("Job", "job", completions=2, parallelism=2))
        env = {labels.JOB_INDEX: "0"}
        w.put(world.pod("job-0", 8, marks=env, owner="Job/job", notes={labels.MIN_WORKERS: "2"}))
        assert self.missing(w, "Job/job") == 1


@pytest.mark.parametrize("notes", [{}, REQUIRED], ids=["preferred", "required"])
def test_a_gang_of_two_shapes_counts_the_hosts_that_are_looked_at(notes):
    steps = []
    for leaves in (5, 50):
        w, pods = World(*[40] * leaves), asks(world.volcano("two", 2, notes=notes))
        w.put(*pods).plan(pods[0])
        steps.append(w.plans.steps)
    assert steps[1] - steps[0] >= 2 * 45 * 40 // 4
