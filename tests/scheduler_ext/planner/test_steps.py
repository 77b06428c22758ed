"""Steps of planning, which are the same on every machine: a change of them is a change of what a question may take."""

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from tests.scheduler_ext.planner.test_work import asks
from turnout.kube import labels
from turnout.scheduler_ext.planner.batches import Work


def two_shapes(**more):
    return [*world.volcano("bert", 3, gpus=8, **more), *world.volcano("bert", 7, gpus=2, **more)[3:]]


SCENES = {
    "one pod": lambda: world.volcano("bert", 1),
    "eight pods": lambda: world.volcano("bert", 8),
    "pods that must stay together": lambda: world.volcano("bert", 4, notes=REQUIRED),
    "members to come": lambda: world.koordinator("bert", 2, minimum=2, total=6),
    "two shapes": lambda: two_shapes(),
    "ten shapes": lambda: asks(world.volcano("bert", 10, gpus=1)),
    "eight shapes that are too many for a switch": lambda: asks(world.volcano("bert", 8, notes=REQUIRED)),
    "two gangs": lambda: [*world.volcano("gpt", 2, created=1), *world.volcano("bert", 4, created=2)],
    "seven gangs": lambda: [pod for at in range(7) for pod in world.volcano(f"g{at}", 1, created=at)],
    "more than there is room for": lambda: world.volcano("bert", 40),
    "multiples": lambda: world.volcano("bert", 8, gpus=2, notes={labels.PODS_PER_HOST_MULTIPLE: "2"}),
}
ALONE = [214, 428, 642]
MEASURED = {
    "one pod": 524,
    "eight pods": 664,
    "pods that must stay together": 584,
    "members to come": 592,
    "two shapes": 1268,
    "ten shapes": 2720,
    "eight shapes that are too many for a switch": 29636,
    "two gangs": 1128,
    "seven gangs": 3671,
    "more than there is room for": 824,
    "multiples": 664,
}


@pytest.mark.parametrize("scene", SCENES)
def test_what_planning_takes_is_as_it_was_measured(scene):
    w, pods = World(4, 4, 4, 4), SCENES[scene]()
    w.put(*pods)
    w.plan(pods[-1])
    assert w.plans.steps == MEASURED[scene]


def test_steps_of_pods_by_themselves_are_counted_too():
    w, pods = World(4, 4), [world.pod(f"p{at}", 1) for at in range(3)]
    w.put(*pods)
    steps = []
    for pod in pods:
        w.fit(pod)
        steps.append(w.plans.steps)
    assert steps == ALONE


def test_a_limit_only_ever_narrows_and_what_is_left_may_be_overdrawn():
    work = Work(10)
    work.limit(20)
    assert work.steps_left == 10
    work.limit(5)
    work.spend(3)
    work.spend(4)
    assert (work.steps_left, work.spent_steps, Work().spent_steps) == (-2, 7, 0)
