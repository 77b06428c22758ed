"""Never two leaders, whatever the network, the clocks and the scheduler do; and one again once they behave."""

import asyncio
import json
import random
import re

import pytest

from tests.kit.clock import ManualClock, settle
from tests.kube.world import Dice, running
from turnout.kube.client.lease import Elector, LeaseSettings
from turnout.kube.errors import Conflict, NotFound, Unreachable

pytestmark = pytest.mark.asyncio
PATH = "/apis/coordination.k8s.io/v1/namespaces/turnout/leases/autoscaler"


class LeaseServer:
    """The Lease as an API server keeps it: one object, a version, a precondition."""

    def __init__(self):
        self.lease, self.version, self.writes = None, 0, []

    @property
    def spec(self):
        return self.lease["spec"]

    def get(self):
        if self.lease is None:
            raise NotFound("GET", PATH, 404, "")
        return json.dumps(self.lease).encode()

    def create(self, body):
        if self.lease is not None:
            raise Conflict("POST", PATH, 409, "", reason="AlreadyExists")
        self.lease = body
        return self._written()

    def patch(self, body):
        self.get()
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("PATCH", PATH, 409, "")
        self.lease = {**self.lease, "spec": {**self.spec, **body["spec"]}}
        return self._written()

    def touch(self, **spec):
        """Somebody else writes."""
        self.lease = {**self.lease, "spec": {**self.spec, **spec}}
        self._written()

    def _written(self):
        self.version += 1
        self.lease = {**self.lease, "metadata": {"name": "autoscaler", "resourceVersion": str(self.version)}}
        self.writes.append(dict(self.spec))
        return self.get()


class Link:
    """A candidate's way to the server. mode: ok, refused, hangs, deaf (done, but the answer is lost), late, noise."""

    def __init__(self, server):
        self.server, self.mode, self.next, self.calls, self.late = (
            server,
            "ok",
            {},
            [],
            [],
        )  # next: mode of one call, by verb

    async def get(self, path, *, urgent=False):
        return await self._through("get", path, urgent, self.server.get)

    async def create(self, path, body, *, urgent=False):
        return await self._through("create", path, urgent, lambda: self.server.create(body))

    async def patch(self, path, body, *, urgent=False):
        return await self._through("patch", path, urgent, lambda: self.server.patch(body))

    async def _through(self, verb, path, urgent, do):
        assert urgent, "a Lease never queues behind other calls"
        self.calls.append((verb, path))
        mode = self.next.pop(verb, self.mode)
        if mode == "refused":
            raise Unreachable(verb, path, 0, "connection refused")
        if mode == "noise":
            return b"<html>"
        if mode in ("deaf", "late"):
            self.late.append(do)
            if mode == "deaf":
                self.arrive()
        if mode in ("hangs", "deaf", "late"):
            await asyncio.get_running_loop().create_future()
        return do()

    def arrive(self):
        """Let late calls reach the server now."""
        for do in self.late:
            try:
                do()
            except (Conflict, NotFound):
                continue
        self.late.clear()


class Ended(BaseException):
    """os._exit, as far as a test can show it."""


class Candidate:
    """An elector with a clock, a link and a piece of work of its own."""

    def __init__(self, server, name, fall=0.5, linger_s=0.0, rng=None, **settings):
        self.clock = ManualClock(random.Random(name).uniform(0, 1e6), random.Random(name).uniform(1e9, 2e9))
        self.link, self.name, self.linger_s = Link(server), name, linger_s
        self.terms, self.working, self.exits, self.written = [], False, [], 0
        self.elector = Elector(
            self.link,
            "turnout",
            "autoscaler",
            name,
            clock=self.clock,
            rng=rng or Dice(fall),
            settings=LeaseSettings(**settings),
            abort=self._abort,
        )

    def _abort(self, code):
        self.exits.append((code, self.clock.monotonic()))
        raise Ended

    async def work(self, transitions):
        self.terms.append(transitions)
        self.working = True
        try:
            while True:
                await self.clock.sleep(0.5)
                self.written += self.elector.is_leading
        finally:
            try:
                if self.linger_s:
                    await self.clock.sleep(self.linger_s)
            finally:
                self.working = False

    def run(self):
        return running(self.elector.run(self.work))


async def pass_time(seconds, *candidates, step_s=0.5):
    """Pass time for all candidates, in small steps; a paused candidate's clock runs on but wakes nobody."""
    for _ in range(round(seconds / step_s)):
        for candidate in candidates:
            await candidate.clock.advance(step_s)


async def test_the_first_one_makes_the_lease():
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run():
        await settle()
        assert (one.elector.is_leading, one.terms, one.elector.transitions) == (True, [0], 0)
        assert server.spec["holderIdentity"] == "one"
        assert (server.spec["leaseDurationSeconds"], server.spec["leaseTransitions"]) == (15, 0)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", server.spec["renewTime"])
        assert one.link.calls[:2] == [("get", PATH), ("create", PATH.rsplit("/", 1)[0])]


@pytest.mark.parametrize(("fall", "every_s"), [(0.0, 1.6), (0.5, 2.0), (1.0, 2.4)], ids=["early", "middling", "late"])
async def test_it_is_renewed_every_two_seconds_give_or_take_a_fifth(fall, every_s):
    server = LeaseServer()
    one = Candidate(server, "one", fall)
    async with one.run():
        await pass_time(24, one, step_s=0.1)
        assert len(server.writes) - 1 == pytest.approx(24 / every_s, abs=1)
        assert {write["leaseTransitions"] for write in server.writes} == {0}
        assert len({write["renewTime"] for write in server.writes}) == len(server.writes)


async def test_a_follower_waits_for_the_whole_lease_by_its_own_clock():
    server = LeaseServer()
    one, two = Candidate(server, "one"), Candidate(server, "two")
    assert abs(one.clock.wall() - two.clock.wall()) > 3600
    async with one.run(), two.run():
        await pass_time(60, one, two)
        assert (one.elector.is_leading, two.elector.is_leading, two.elector.record.holder) == (True, False, "one")
        one.link.mode = "refused"
        await pass_time(12, one, two)
        assert (one.elector.is_leading, one.working, two.elector.is_leading) == (False, False, False)
        await pass_time(8, one, two)
        assert (two.elector.is_leading, two.terms, server.spec["leaseTransitions"]) == (True, [1], 1)
        one.link.mode = "ok"
        await pass_time(60, one, two)
        assert (one.elector.is_leading, two.elector.is_leading) == (False, True)


@pytest.mark.parametrize("mode", ["refused", "hangs", "late", "noise"])
async def test_a_leader_that_cannot_renew_stops_by_its_deadline(mode):
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run():
        await pass_time(20, one)
        began_s, one.link.mode = one.clock.monotonic(), mode
        while one.working and one.clock.monotonic() < began_s + 60:
            await pass_time(0.5, one)
        assert 7.5 <= one.clock.monotonic() - began_s <= 10.5
        assert not one.elector.is_leading
        assert one.exits == []


async def test_an_answer_that_is_lost_does_not_lose_the_lease():
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run():
        await pass_time(3, one)
        one.link.mode = "deaf"
        await pass_time(6, one)
        one.link.mode = "ok"
        await pass_time(60, one)
        assert (one.elector.is_leading, one.terms, one.working) == (True, [0], True)


async def test_a_lost_first_answer_makes_a_new_term_without_waiting_for_itself():
    server = LeaseServer()
    one = Candidate(server, "one")
    one.link.next["create"] = "deaf"
    async with one.run():
        await pass_time(4.5, one)
        assert (server.spec["holderIdentity"], one.elector.is_leading) == ("one", False)
        await pass_time(3, one)
        assert (one.elector.is_leading, one.terms, server.spec["leaseTransitions"]) == (True, [1], 1)


async def test_a_stranger_who_only_annotates_is_no_rival():
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run():
        await pass_time(3, one)
        server.touch()
        await pass_time(30, one)
        assert (one.elector.is_leading, one.terms) == (True, [0])


@pytest.mark.parametrize("how", ["stolen", "deleted", "same name, another term"])
async def test_a_lease_that_is_taken_away_ends_the_work_at_the_next_renewal(how):
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run():
        await pass_time(3, one)
        if how == "stolen":
            server.touch(holderIdentity="thief", leaseTransitions=1)
        elif how == "deleted":
            server.lease = None
        else:
            server.touch(leaseTransitions=7)
        await pass_time(2.5, one)
        assert one.terms != [0] or not one.working
        await pass_time(20, one)
        assert one.terms == {"stolen": [0, 2], "deleted": [0, 1], "same name, another term": [0, 8]}[how]


async def test_a_paused_leader_that_wakes_cannot_go_on():
    server = LeaseServer()
    one, two = Candidate(server, "one"), Candidate(server, "two")
    async with one.run(), two.run():
        await pass_time(20, one, two)
        one.clock.jump(30)
        await pass_time(30, two)
        assert two.elector.is_leading
        count = one.written
        assert not one.elector.is_leading, "it reads so before anything of it has run"
        await one.clock.advance(0)
        assert (one.working, one.written) == (False, count)
        assert server.spec["holderIdentity"] == "two"
        await pass_time(60, one, two)
        assert (one.elector.is_leading, two.elector.is_leading) == (False, True)


async def test_work_that_will_not_end_ends_the_process_before_anybody_follows():
    server = LeaseServer()
    one = Candidate(server, "one", linger_s=1e6)
    task = asyncio.create_task(one.elector.run(one.work))
    await pass_time(20, one)
    began_s, one.link.mode = one.clock.monotonic(), "refused"
    while not task.done() and one.clock.monotonic() < began_s + 60:
        await pass_time(0.5, one)
    assert task.done()
    with pytest.raises(Ended):
        task.result()
    ((code, at_s),) = one.exits
    assert code == 70
    assert 12.5 <= at_s - began_s <= 15


async def test_a_clean_stop_gives_the_lease_up_but_only_after_the_work_has_ended():
    server = LeaseServer()
    one, two = Candidate(server, "one", linger_s=2.0), Candidate(server, "two")
    async with one.run() as task:
        await pass_time(5, one)
        async with two.run():
            task.cancel()
            await pass_time(1.5, one, two)
            assert (one.working, two.elector.is_leading, task.done()) == (True, False, False)
            await pass_time(4, one, two)
            assert (one.working, two.elector.is_leading, two.terms) == (False, True, [1])
            assert task.cancelled()


@pytest.mark.parametrize("error", [None, ValueError("broken")], ids=["it returns", "it raises"])
async def test_work_that_ends_gives_the_lease_back(error):
    server = LeaseServer()
    one = Candidate(server, "one")

    async def work(transitions):
        if error:
            raise error

    if error:
        with pytest.raises(ValueError, match="broken"):
            await one.elector.run(work)
    else:
        await one.elector.run(work)
    assert (server.spec["holderIdentity"], server.spec["leaseDurationSeconds"]) == ("", 1)
    assert not one.elector.is_leading


async def test_no_term_has_the_number_of_an_earlier_one():
    server = LeaseServer()
    numbers = []
    for name in ("a", "b", "a", "c"):
        one = Candidate(server, name)

        async def work(transitions):
            numbers.append(transitions)

        await one.elector.run(work)
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="an empty one"),
        pytest.param({"holderIdentity": "", "leaseTransitions": 3}, id="one that was given back"),
        pytest.param({"holderIdentity": None, "leaseDurationSeconds": None, "renewTime": None}, id="one of nulls"),
    ],
)
async def test_a_lease_of_nobody_is_taken_at_once(spec):
    server = LeaseServer()
    server.create({"spec": spec})
    one = Candidate(server, "one")
    async with one.run():
        await settle()
        assert one.terms == [spec.get("leaseTransitions", 0) + 1]


@pytest.mark.parametrize(("claimed_s", "wait_s"), [(4, 4), (10**9, 15), (0, 15), (None, 15), (40, 40)])
async def test_a_dead_holder_is_waited_for_as_long_as_it_claimed_within_reason(claimed_s, wait_s):
    server = LeaseServer()
    server.create({"spec": {"holderIdentity": "dead", "leaseDurationSeconds": claimed_s, "renewTime": "2199-01-01"}})
    one = Candidate(server, "one")
    async with one.run():
        await pass_time(wait_s - 0.5, one)
        assert not one.elector.is_leading
        await pass_time(3, one)
        assert one.elector.is_leading


async def test_a_follower_lives_through_anything():
    server = LeaseServer()
    one = Candidate(server, "one")
    async with one.run() as task:
        for mode in ("refused", "hangs", "noise", "ok"):
            assert not one.elector.is_leading
            one.link.mode = mode
            await pass_time(20, one)
        assert (task.done(), one.elector.is_leading) == (False, True)


@pytest.mark.parametrize(
    "wrong",
    [{"renew_s": 2.0}, {"renew_s": 15.0}, {"grace_s": 6.0}, {"retry_s": 0}, {"jitter": 1.5}, {"call_s": 0}],
    ids=["renews too rarely", "as long as the lease", "grace past the lease", "no pause", "jitter", "no time to call"],
)
async def test_settings_that_could_make_two_leaders_cannot_be_built(wrong):
    with pytest.raises(ValueError, match="a lease needs"):
        LeaseSettings(**wrong)


class Crowd:
    """Three candidates and seeded faults: links that fail in every mode, pauses of up to 30 s, clocks 4 % off."""

    def __init__(self, seed):
        self.rng, self.server = random.Random(seed), LeaseServer()
        self.all = [
            Candidate(self.server, f"{seed}-{n}", linger_s=self.rng.choice([0, 0, 3]), rng=self.rng) for n in range(3)
        ]
        self.rate = {one.name: self.rng.choice([1.0, 1.0, 0.96, 1.04]) for one in self.all}
        self.paused = dict.fromkeys(self.rate, 0)  # steps left
        self.late = dict.fromkeys(self.rate, False)  # was paused in this term: its work may end late, without writing

    async def step(self, calm):
        for one in self.rng.sample(self.all, len(self.all)):
            if calm:
                one.link.mode, self.paused[one.name] = "ok", 0
            elif self.rng.random() < 0.04:
                one.link.mode = self.rng.choice(["ok", "ok", "refused", "hangs", "deaf", "late"])
            elif self.rng.random() < 0.01:
                self.paused[one.name] = self.rng.randrange(60)
            if self.rng.random() < 0.1:
                one.link.arrive()
            await self._move(one)
            assert sum(other.elector.is_leading for other in self.all) <= 1
            assert sum(other.working and not self.late[other.name] for other in self.all) <= 1

    async def _move(self, one):
        if self.paused[one.name]:
            self.paused[one.name] -= 1
            self.late[one.name] = True
            one.clock.jump(0.5 * self.rate[one.name])
        else:
            await one.clock.advance(0.5 * self.rate[one.name])
            self.late[one.name] = self.late[one.name] and one.working and not one.elector.is_leading


@pytest.mark.parametrize("seed", range(24))
async def test_never_two_leaders_under_random_faults_pauses_and_drift(seed):
    crowd = Crowd(seed)
    tasks = [asyncio.create_task(one.elector.run(one.work)) for one in crowd.all]
    for step in range(400):
        await crowd.step(calm=step >= 300)
    assert sum(one.elector.is_leading for one in crowd.all) == 1, "calm again, and somebody leads"
    terms = [number for one in crowd.all for number in one.terms]
    assert len(set(terms)) == len(terms), "no two terms share a number"
    assert len(terms) > 1, "there was a change"
    assert sum(one.written for one in crowd.all) > 100, "work was done"
    for task in tasks:
        task.cancel()
    await pass_time(10, *crowd.all)
    assert all(task.cancelled() for task in tasks), "nobody had to be aborted"
