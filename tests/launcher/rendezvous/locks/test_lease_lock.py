"""A Lease on a real API server: one winner, the truth for kubectl, nothing lost with the pods, no rights beyond."""

import asyncio
import json
import logging
import re
import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.launcher.rendezvous.locks.world import Clock, record
from turnout.kube.client.api_client import Client
from turnout.kube.errors import Unreachable
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.arbiter import (
    ROUND,
    ClaimReason,
    HeldRound,
    LockRefused,
    LockUnreachable,
    StaleRound,
    may_claim,
    next_round,
)
from turnout.launcher.rendezvous.locks.lease_lock import LeaseLock

pytestmark = [pytest.mark.asyncio, pytest.mark.real]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MANIFESTS = Path(__file__).parents[4] / "deploy/manifests/launcher"


@pytest_asyncio.fixture
async def client(module_plane):
    async with await Client.open(str(module_plane.kubeconfig)) as client:
        yield client


@pytest.fixture
def job(request):
    """The Lease of this test alone."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:60].strip("-")


def member(client, job, run="bert", **more):
    """One of many in one process: its client is closed by the fixture."""
    return LeaseLock(client, f"default/{job}", run, **more)


async def take(arbiter, name="anna", **more):
    """Look and claim the next round, which is free."""
    view = await arbiter.look()
    ours = await arbiter.claim(record(next_round(view), name, **more), view)
    assert ours is not None
    return ours


async def shown(client, job):
    return json.loads(await client.get(f"{LEASES}/{job}"))


async def test_each_round_has_one_winner_and_kubectl_sees_who(client, job):
    names = ("anna", "bob", "carl")
    arbiters = {name: member(client, job) for name in names}
    holders = []
    for round_ in range(1, 7):  # the first one makes the Lease
        views = {name: await arbiters[name].look() for name in names}
        claims = [arbiters[name].claim(record(round_, name), views[name]) for name in names]
        (ours,) = [granted for granted in await asyncio.gather(*claims) if granted]
        holders.append(ours.record.coordinator)
        lease = await shown(client, job)
        assert lease["spec"]["holderIdentity"] == holders[-1]
        assert lease["spec"]["leaseDurationSeconds"] == 15
        assert lease["spec"]["leaseTransitions"] == sum(a != b for a, b in pairwise(holders))
        assert (await arbiters["anna"].look()).record == ours.record


async def test_who_claims_again_has_held_it_since_the_first_time(client, job):
    clock = Clock()
    anna = member(client, job, wall=clock.wall)
    await take(anna)
    clock.wall_s += 60
    await anna.renew(await take(anna))
    spec = (await shown(client, job))["spec"]
    assert (spec["acquireTime"], spec["renewTime"]) == ("2027-01-15T08:00:00.000000Z", "2027-01-15T08:01:00.000000Z")
    assert spec["leaseTransitions"] == 0


async def test_who_lost_its_round_is_told_at_its_next_renewal(client, job):
    anna, bob = member(client, job), member(client, job)
    annas = await take(anna)
    annas = await anna.renew(annas)
    old = await bob.look()
    bobs = await take(bob, "bob")
    assert await anna.renew(annas) is None
    assert await bob.claim(record(9, "bob"), old) is None
    with pytest.raises(StaleRound):
        await bob.claim(record(2, "bob"), bobs)
    assert (await bob.renew(bobs)).record == bobs.record


async def test_a_renewal_under_way_does_not_cost_its_holder_the_next_round(client, job):
    anna, bob = member(client, job), member(client, job)
    ours = await take(anna)
    view = await bob.look()
    old_view = replace(ours, record=replace(ours.record, budget=RestartBudget(1, 9, 100)))
    _, second = await asyncio.gather(anna.renew(old_view), anna.claim(record(2), ours))
    assert (second.record.round, second.record.budget) == (2, RestartBudget(1, 9, 100))
    assert await anna.renew(ours) is None
    assert (await anna.renew(second)).record == second.record
    assert await bob.claim(record(3, "bob"), view) is None


async def test_a_holder_that_has_renewed_after_all_keeps_its_round(client, job):
    anna, bob = member(client, job), member(client, job)
    ours = await take(anna)
    view = await bob.look()
    ours = await anna.renew(ours)
    assert await bob.claim(record(2, "bob"), view) is None
    assert (await anna.renew(ours)).record == ours.record


async def test_a_label_of_somebody_else_costs_nobody_a_round_and_a_deletion_does(client, job):
    anna = member(client, job)
    ours = await take(anna)
    await client.patch(f"{LEASES}/{job}", {"metadata": {"labels": {"team": "a"}}})
    assert (ours := await anna.renew(ours)).record.round == 1
    await client.delete(f"{LEASES}/{job}")
    assert await anna.renew(ours) is None
    assert await anna.claim(record(2), ours) is None
    assert (await anna.look()).record is None
    assert (await take(anna)).record.round == 1


async def test_a_holder_is_quiet_by_our_own_clock_whatever_the_others_tell(client, job):
    annas, bobs = Clock(), Clock(5.0, 0.0)
    anna, bob = member(client, job, wall=annas.wall), member(client, job, monotonic=bobs.monotonic, wall=bobs.wall)
    ours = await take(anna)
    for hours in (-9_000, 9_000, 0, 0):
        annas.wall_s += 3600 * hours
        ours = await anna.renew(ours)
        assert (await bob.look()).unrenewed_s == 0
        bobs.now_s += 10
        assert (await bob.look()).unrenewed_s == 10
    bobs.now_s += 6
    view = await bob.look()
    assert may_claim(view, "bert", "bob").reason == ClaimReason.HOLDER_QUIET
    assert (await bob.claim(record(2, "bob"), view)).unrenewed_s == 0


async def test_the_budget_outlives_every_member_and_ends_with_the_run(client, job):
    anna = member(client, job)
    ours = await take(anna, budget=RestartBudget(2, 5, 100))
    newer = replace(ours.record, budget=ours.record.budget.refill(200), totals='{"time_ns":[1]}')
    await anna.renew(replace(ours, record=newer))
    bob = member(client, job)  # all pods were started again
    assert (await bob.look()).record.totals == newer.totals
    assert (await take(bob, "bob", budget=RestartBudget())).record.budget == RestartBudget(0, 5, 200)
    greta = member(client, job, run="gpt")
    view = await greta.look()
    assert (view.record, view.newest_round) == (None, 2)
    ours = await greta.claim(record(next_round(view), "greta", run="gpt", budget=RestartBudget()), view)
    assert (ours.record.round, ours.record.budget) == (3, RestartBudget())


class Deaf:
    """A client that does as told, and then loses the answer."""

    def __init__(self, client):
        self.get, self._client = client.get, client

    async def create(self, *args, **more):
        await self._client.create(*args, **more)
        raise Unreachable("POST", "", 0, "the answer broke off")

    async def patch(self, *args, **more):
        await self._client.patch(*args, **more)
        raise Unreachable("PATCH", "", 0, "the answer broke off")


async def test_a_write_whose_answer_was_lost_is_found_to_be_ours(client, job):
    deaf, anna = member(Deaf(client), job), member(client, job)
    for round_ in (1, 2):  # created, then patched
        view = await deaf.look()
        with pytest.raises(LockUnreachable, match="the answer broke off"):
            await deaf.claim(record(round_), view)
        assert may_claim(await deaf.look(), "bert", "anna").reason == ClaimReason.MINE
    ours = await take(anna)
    with pytest.raises(LockUnreachable):
        await deaf.renew(ours)
    assert (await anna.renew(ours)).record == ours.record


async def test_a_record_that_was_changed_by_hand_is_told_and_passed(client, job, caplog):
    anna = member(client, job)
    ours = await take(anna)
    await client.patch(f"{LEASES}/{job}", {"metadata": {"annotations": {ROUND: '{"round": 99}'}}})
    with caplog.at_level(logging.WARNING):
        assert (await anna.look()).record is None
        assert await anna.renew(ours) is None
    assert [each.message for each in caplog.records] == ["round_unreadable"]
    assert (await take(anna)).record.round == 1


async def test_a_lease_of_another_program_is_left_alone(client, job):
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": job}}
    await client.create(LEASES, {**body, "spec": {"holderIdentity": "scheduler-0"}})
    with pytest.raises(LockRefused, match=r"'scheduler-0' holds it, .*; name another Lease, or delete this one"):
        await member(client, job).look()


def documents(file, job):
    text = (MANIFESTS / file).read_text().replace("example-job", job).replace("example-namespace", "default")
    return list(yaml.safe_load_all(text))


async def test_the_account_of_a_job_may_use_its_own_lease_and_no_other(module_plane, client):
    async with module_plane.api() as api:
        for each in documents("job.yaml", "bert"):
            await api.apply(each)
        await api.create(documents("job-token.yaml", "bert")[0])
        config = str(module_plane.service_account_kubeconfig("default", "bert"))
        bert, gpt = [await LeaseLock.open(f"default/{job}", "r", kubeconfig=config) for job in ("bert", "gpt")]
        ours = await take(bert, run="r")
        for each in documents("job.yaml", "bert"):
            await api.apply(each)  # an admin applies it once more, under way
        assert (await bert.renew(ours)).record == ours.record
        with pytest.raises(LockRefused, match="may not get it; apply deploy/manifests/launcher for that name"):
            await gpt.look()
        await client.delete(f"{LEASES}/bert")
        with pytest.raises(LockRefused, match="may not create it"):
            await take(bert, run="r")
        for each in documents("make-lease.yaml", "bert"):
            await api.apply(each)
        async with asyncio.timeout(30):  # until the API server has read the Role
            while True:
                try:
                    ours = await take(bert, run="r")
                    break
                except LockRefused:
                    await asyncio.sleep(0.05)
        assert (await shown(client, "bert"))["spec"]["holderIdentity"] == ours.record.coordinator
        await bert.close()
        await gpt.close()


async def test_the_example_of_a_token_is_no_token_and_the_rights_are_these():
    (secret,) = documents("job-token.yaml", "bert")
    assert secret["stringData"] == {"token": ""}
    rules = [
        each["rules"] for file in ("job.yaml", "make-lease.yaml") for each in documents(file, "bert") if "rules" in each
    ]
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert rules == [
        [{**leases, "resourceNames": ["bert"], "verbs": ["get", "patch"]}],
        [{**leases, "verbs": ["create"]}],
    ]


def kubeconfig(folder, port):
    """A way to an API server on this port of this host."""
    file = folder / "kubeconfig"
    cluster, context = {"server": f"http://127.0.0.1:{port}"}, {"cluster": "c", "user": "u"}
    lists = {
        "clusters": [("cluster", cluster)],
        "contexts": [("context", context)],
        "users": [("user", {"token": "t"})],
    }
    named = {key: [{"name": key[0], kind: body} for kind, body in entries] for key, entries in lists.items()}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "c", **named}))
    return str(file)


@pytest.mark.parametrize(
    "listens", [pytest.param(True, id="takes a call and never answers"), pytest.param(False, id="is gone")]
)
async def test_an_api_server_that_does_not_answer_is_to_be_tried_again(tmp_path, listens):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        async with await Client.open(kubeconfig(tmp_path, server.getsockname()[1])) as client:
            anna = member(client, "bert", call_s=0.2)
            nothing, ours = HeldRound(None, "", 0.0), HeldRound(record(), "1", 0.0)
            async with asyncio.timeout(10):
                for attempt in (anna.look(), anna.claim(record(), nothing), anna.renew(ours)):
                    with pytest.raises(LockUnreachable, match="Lease default/bert cannot be asked"):
                        await attempt


@pytest.mark.parametrize("name", ["bert", "/bert", "team/", "a/b/c"])
async def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(LockRefused, match="name it as namespace/name"):
        LeaseLock(None, name, "bert")


async def test_without_any_way_to_an_api_server_it_is_refused(tmp_path):
    with pytest.raises(LockRefused, match="name a kubeconfig"):
        await LeaseLock.open("team/bert", "r", kubeconfig=str(tmp_path / "nothing"))
