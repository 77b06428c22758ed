"""Small streams of jobs to replay, and eyes that look at every moment of it."""

from dataclasses import replace

from hypothesis import strategies as st

from turnout.autoscaler.model import Policy
from turnout.simulator.replay.cluster import startable_jobs
from turnout.simulator.replay.model import Submission

POLICY = Policy()
SOON = 1e-3  # what floats may be off by


def job(name, at_s=0.0, work_s=100.0, minimum=1, maximum=None, **more):
    return Submission(name, float(at_s), float(work_s), minimum, maximum or minimum, **more)


@st.composite
def streams(draw, gpus=(1,), pools=1, most_jobs=24):
    """(jobs, GPUs of each node): of any elasticity, at once or far apart, and one that holds whatever is left."""
    nodes = tuple(draw(st.lists(st.sampled_from([8, 12, 16]), min_size=pools, max_size=pools)))
    at_s, jobs = 0.0, [job("all", 0, 20_000, 1, sum(nodes))] if draw(st.booleans()) else []
    for number in range(draw(st.integers(2, most_jobs))):
        at_s += draw(st.sampled_from([0, 0, 0, 1, 7, 30, 120, 700, 2000]))
        each = draw(st.sampled_from(gpus))
        minimum = draw(st.integers(1, min(6, max(1, 8 // each))))
        maximum = minimum * draw(st.sampled_from([1, 1, 2, 4])) + draw(st.integers(0, 1))
        work_s = draw(st.sampled_from([1, 20, 100, 650, 3000]))
        jobs.append(job(f"j{number:03}", at_s, work_s, minimum, maximum, gpus=each))
    return tuple(jobs), nodes


class Eyes:
    """Looks at every moment and says what is wrong with it, from the workers alone."""

    def __init__(self, rules, mixed=False):
        """mixed: workers of several sizes on several nodes, so that where each stands decides who fits."""
        self.rules, self.mixed = rules, mixed
        self.could_start = {}

    def __call__(self, world):
        busy_gpus = [0] * len(self.rules.nodes)
        for life in world.running.values():
            submission = life.submission
            assert submission.minimum <= life.staying_workers <= submission.maximum, (
                f"{submission.name} has {life.staying_workers} workers"
            )
            for pod in life.pods:
                if pod.row is None:
                    homeless_s = world.now_s - pod.since_s
                    most_s = POLICY.pending_s + 2 * self.rules.tick_s if self.mixed else -1
                    assert homeless_s <= most_s + SOON, (
                        f"{submission.name} has had a worker without a node for {homeless_s} s"
                    )
                else:
                    busy_gpus[pod.row] += submission.gpus
        assert all(mine <= offered for mine, offered in zip(busy_gpus, self.rules.nodes, strict=True)), busy_gpus
        if not self.mixed:
            self._nobody_is_kept_waiting(world)

    def _nobody_is_kept_waiting(self, world):
        """Whoever would fit if no elastic worker were there starts within a grace and a tick."""
        patience = self.rules.grace_s + self.rules.tick_s
        fitting = {life.submission.name for life in startable_jobs(world.waiting, world.running.values(), world.free)}
        self.could_start = {name: self.could_start.get(name, world.now_s) for name in fitting}
        for name, since_s in self.could_start.items():
            waited = world.now_s - since_s
            assert waited <= patience + SOON, f"{name} has waited {waited} s for elastic workers"


def longer(jobs, by_s):
    """Return the same jobs, each longer by so much."""
    return [replace(each, work_s=each.work_s + by_s) for each in jobs]
