"""Laws of gates under seeds: whatever is killed, refused, away, deleted or doubled, gangs go whole, and once."""

import asyncio
import random
from collections import Counter

import pytest

from tests.kit import cluster
from tests.scheduler_ext.gates.gated_world import Api, Killed, Writer, gang
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.errors import Conflict

LEAVES = (4, 4, 2)


class Story:
    """Random gangs, created in parts, under random faults. writer: the process that leads now."""

    def __init__(self, seed):
        self.rng, self.api = random.Random(seed), Api()
        self.gangs = {f"g{at}": self._gang(f"g{at}") for at in range(self.rng.randint(2, 5))}
        self.coming = [pod for pods in self.gangs.values() for pod in pods]
        self.rng.shuffle(self.coming)
        self.deleted, self.writer = set(), Writer(self.api, *LEAVES)

    def _gang(self, name):
        notes = {labels.TOPOLOGY: "required"} if self.rng.random() < 0.4 else {}
        return gang(name, self.rng.randint(1, 4), priority=self.rng.choice([0, 0, 5]), notes=notes)

    async def work(self, for_s=0.0, in_background=False):
        """Let the leader work, beside another that believes to lead as well; whoever is killed has a successor."""
        writers = [self.writer, Writer(self.api, *LEAVES)] if in_background else [self.writer]
        ended = await asyncio.gather(*(each.work(for_s) for each in writers), return_exceptions=True)
        assert all(each is None or isinstance(each, Killed) for each in ended), ended
        if any(ended) or in_background:
            self.api.start_anew()
            self.writer = Writer(self.api, *LEAVES)

    async def step(self):
        rng, api = self.rng, self.api
        for _ in range(rng.randint(0, 4)):
            if self.coming:
                api.create(self.coming.pop())
        what = rng.choice(["kill", "kill", "conflict", "away", "delete", "two", "rest"])
        names = sorted(api.pods)
        if what == "kill":
            api.kill_at, api.kill_after = api.asked + rng.randint(1, 6), rng.random() < 0.5
        elif what == "conflict":
            api.faults = {name: Conflict("PATCH", "/", 409, "changed") for name in rng.sample(names, len(names) // 2)}
        elif what == "delete" and names:
            self.deleted.add(name := rng.choice(names))
            api.delete(name)
        api.away = what == "away"
        await self.work(in_background=what == "two")
        api.away, api.kill_at = False, None
        self.bind()

    def bind(self):
        """Do as a scheduler does: each pod without a gate goes to its nominated node, if that has room."""
        api = self.api
        busy_nodes = {pod["spec"].get("nodeName") for pod in api.pods.values()}
        for name, node in api.nominated().items():
            if name not in api.gated() and not api.pods[name]["spec"].get("nodeName"):
                assert node not in busy_nodes, f"{name} is let go to {node}, which another has"
                busy_nodes.add(node)
                api.bind(name, node)

    async def end(self):
        """Create what is left, and let one leader work in peace."""
        while self.coming:
            self.api.create(self.coming.pop())
        self.api.faults = {}
        for _ in range(2):
            await self.work(12)  # past the longest pause after failures
            self.bind()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.asyncio
async def test_gangs_go_whole_and_once_and_only_when_every_nomination_is_written(seed):
    story = Story(seed)
    for _ in range(story.rng.randint(3, 8)):
        await story.step()
    await story.end()
    api = story.api
    releases = Counter(name for name, what in api.writes if what == "lifted")
    assert max(releases.values(), default=0) <= 1
    for pods in story.gangs.values():
        names = [pod["metadata"]["name"] for pod in pods]
        left = [name for name in names if name in api.pods]
        assert len({name in api.gated() for name in left}) <= 1, "half of it is let go"
        first = next((at for at, (name, what) in enumerate(api.writes) if name in names and what == "lifted"), None)
        if first is not None:
            nominated_names = {name for name, what in api.writes[:first] if what.startswith("to ")}
            assert nominated_names.issuperset(names), "a gate was lifted before every nomination was written"


@pytest.mark.asyncio
async def test_a_gang_whose_podgroup_is_deleted_waits_and_is_told():
    first, *rest = gang("g", 4, make=cluster.volcano_gang)
    api = Api(*rest)
    writer = Writer(api, 4, 4, groups=[("g", 4)])
    await writer.work(1)
    writer.view.view.groups.drop_group(Dialect.VOLCANO, "default", "g")
    api.create(first)
    await writer.work(12)
    assert len(api.gated()) == 4
    assert {notice.reason.value for notice in writer.notices} == {"GangUnknown"}
    writer.put_group("g", 4)
    await writer.work(1)
    assert api.gated() == []
