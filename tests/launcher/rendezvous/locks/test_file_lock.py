"""Round files: of several claims one gets through, whatever lies in the folder; one that is not ours is refused."""

import asyncio
import errno
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.launcher.rendezvous.locks.world import Clock, record
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.arbiter import (
    ClaimReason,
    LockRefused,
    LockUnreachable,
    StaleRound,
    may_claim,
    next_round,
    seal,
)
from turnout.launcher.rendezvous.locks.file_lock import KEPT_ROUNDS, FileLock, SharedDir

pytestmark = pytest.mark.asyncio
CLAIMERS, ROUNDS = 8, 12
PATIENCE_S = 60.0  # only a bound: a test machine's disk may be slow


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "rounds"


async def member(folder, run="bert", clock=None):
    if clock is None:
        return await FileLock.open(folder, run, call_s=PATIENCE_S)
    await FileLock.open(folder, run, call_s=PATIENCE_S)
    return FileLock(folder, run, call_s=PATIENCE_S, monotonic=clock.monotonic)


async def take(arbiter, name="anna", **more):
    """Look and claim the next round, which is free."""
    view = await arbiter.look()
    ours = await arbiter.claim(record(next_round(view), name, **more), view)
    assert ours is not None
    return ours


def files(folder):
    return sorted(os.listdir(folder))


async def test_each_round_has_one_winner_of_many_at_once(folder):
    names = [f"m{number}" for number in range(CLAIMERS)]
    arbiters = {name: await member(folder) for name in names}
    winners = []
    for round_ in range(1, ROUNDS + 1):
        views = {name: await arbiters[name].look() for name in names}
        claims = [arbiters[name].claim(record(round_, name), views[name]) for name in names]
        granted = [ours for ours in await asyncio.gather(*claims) if ours]
        assert len(granted) == 1
        assert (await arbiters["m0"].look()).record == granted[0].record
        winners.append((granted[0].record.round, granted[0].token))
    assert winners == [(number, f"round-{number:010}.json") for number in range(1, ROUNDS + 1)]


async def test_a_claim_after_an_old_look_never_gets_through(folder):
    anna, bob = await member(folder), await member(folder)
    old = await bob.look()
    stale = await take(anna)
    for _ in range(KEPT_ROUNDS + 3):  # until the files that it names are swept away
        await take(anna)
        assert await bob.claim(record(99, "bob"), old) is None
        assert await bob.claim(record(99, "bob"), stale) is None
    assert (await bob.look()).record.coordinator == "anna"


async def test_who_lost_its_round_is_told_at_its_next_renewal(folder):
    anna, bob = await member(folder), await member(folder)
    annas = await take(anna)
    assert (annas := await anna.renew(annas)).unrenewed_s == 0
    bobs = await take(bob, "bob")
    assert await anna.renew(annas) is None
    assert (await bob.renew(bobs)).record == bobs.record


@pytest.mark.parametrize("lost", ["swept", "torn", "another"])
async def test_who_finds_its_round_gone_stops(folder, lost):
    anna = await member(folder)
    annas = await take(anna)
    file = folder / annas.token
    file.unlink()
    if lost == "torn":
        file.write_bytes(b"{")
    elif lost == "another":
        file.write_bytes(seal(record(1, "bob")))
    assert await anna.renew(annas) is None


async def test_a_folder_that_was_emptied_grants_no_old_number(folder):
    anna, bob = await member(folder), await member(folder)
    for _ in range(5):
        old = await take(anna)
    for file in folder.iterdir():
        file.unlink()
    assert await bob.claim(record(9, "bob"), old) is None
    assert files(folder) == []
    assert await anna.renew(old) is None
    assert (await take(bob, "bob")).token == "round-0000000001.json"


async def test_a_holder_is_quiet_once_its_file_stands_still(folder):
    clock = Clock()
    anna, bob = await member(folder), await member(folder, clock=clock)
    annas = await take(anna)
    assert (await bob.look()).unrenewed_s == 0
    clock.now_s += 10
    assert (await bob.look()).unrenewed_s == 10
    for _ in range(3):
        annas = await anna.renew(annas)
        assert (await bob.look()).unrenewed_s == 0
        clock.now_s += 10
    clock.now_s += 6
    view = await bob.look()
    assert may_claim(view, "bert", "bob").reason == ClaimReason.HOLDER_QUIET
    assert (await bob.claim(record(2, "bob"), view)).unrenewed_s == 0


async def test_times_of_files_mean_nothing(folder):
    clock = Clock()
    anna, bob = await member(folder), await member(folder, clock=clock)
    annas = await anna.renew(await take(anna))
    for hours in (-9_000, 0, 9_000):
        for file in folder.iterdir():
            os.utime(file, (hours * 3600 + 1.8e9,) * 2)
        assert (await bob.look()).unrenewed_s == 0
        annas = await anna.renew(annas)
    assert (await bob.look()).record == annas.record


async def test_the_budget_outlives_every_member(folder):
    anna = await member(folder)
    ours = await take(anna, budget=RestartBudget(2, 5, 100))
    refilled = replace(ours.record, budget=ours.record.budget.refill(200), totals='{"time_ns":[1]}')
    await anna.renew(replace(ours, record=refilled))
    view = await (await member(folder)).look()  # all pods were started again
    assert view.record.budget == RestartBudget(0, 5, 200)
    assert view.record.totals == refilled.totals
    bob = await member(folder)
    claimed = await bob.claim(record(2, "bob", budget=RestartBudget()), view)
    assert claimed.record.budget == RestartBudget(0, 5, 200)
    assert (await anna.look()).record == claimed.record


async def test_what_a_holder_told_of_the_budget_last_is_not_lost_to_an_old_look(folder):
    anna, bob = await member(folder), await member(folder)
    annas = await take(anna, budget=RestartBudget(0, 2, 100))
    view = await bob.look()
    await anna.renew(replace(annas, record=replace(annas.record, budget=RestartBudget(1, 3, 100))))
    assert (await bob.claim(record(2, "bob", budget=RestartBudget()), view)).record.budget == RestartBudget(1, 3, 100)


async def test_another_run_in_the_same_folder_starts_after_the_last_round(folder):
    anna = await member(folder)
    annas = await take(anna)
    gpt = await member(folder, "gpt")
    view = await gpt.look()
    assert (view.record, view.newest_round) == (None, 1)
    ours = await gpt.claim(record(next_round(view), "greta", run="gpt", budget=RestartBudget()), view)
    assert (ours.record.round, ours.record.budget) == (2, RestartBudget())
    assert await anna.renew(annas) is None


async def test_a_round_is_granted_once(folder):
    anna = await member(folder)
    view = await take(anna)
    with pytest.raises(StaleRound):
        await anna.claim(record(1), view)


async def test_old_rounds_and_what_was_left_over_go(folder):
    anna = await member(folder)
    for name in (".claim-0000000001-ab", ".claim-0000000000-ab-linked", ".holder-0000000001-ab", "notes.txt"):
        (folder / name).write_bytes(b"left over")
    for _ in range(KEPT_ROUNDS + 4):
        await anna.renew(await take(anna))
    rounds = [f"round-{number:010}.json" for number in range(5, KEPT_ROUNDS + 5)]
    assert files(folder) == sorted([*rounds, "holder-0000000012", "notes.txt"])
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.name != "notes.txt"} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def torn(file):
    file.write_bytes(seal(record(2, "bob"))[:40])


def foreign(file):
    file.write_text('{"round": 2, "run": "bert"}')


def link(file):
    file.symlink_to("/etc/hostname")


def strange(file):
    """Let another user have written a record that is whole; who may not do that cannot read it."""
    file.write_bytes(seal(record(2, "bob")))
    if os.geteuid() == 0:
        os.chown(file, 12_345, 12_345)
    else:
        file.chmod(0)


def pipe(file):
    os.mkfifo(file)


UNREADABLE = [
    pytest.param(torn, id="torn"),
    pytest.param(foreign, id="of somebody else"),
    pytest.param(strange, id="whole, and of another user"),
    pytest.param(link, id="a symbolic link"),
    pytest.param(pipe, id="a pipe, which would keep a reader for ever"),
    pytest.param(Path.mkdir, id="a folder"),
    pytest.param(Path.touch, id="empty"),
    pytest.param(lambda file: file.write_bytes(b"x" * 10**6), id="far too long"),
]


@pytest.mark.parametrize("plant", UNREADABLE)
async def test_a_round_that_cannot_be_read_is_told_and_waited_for_and_passed(folder, plant, caplog):
    clock = Clock()
    anna = await member(folder, clock=clock)
    await take(anna, budget=RestartBudget(1, 2, 100))
    plant(folder / "round-0000000002.json")
    with caplog.at_level(logging.WARNING):
        view = await anna.look()
        await anna.look()
    assert [each.message for each in caplog.records] == ["round_unreadable"]
    assert caplog.records[0].file == str(folder / "round-0000000002.json")
    assert (view.record.round, view.record.coordinator, view.record.budget) == (2, "", RestartBudget(1, 2, 100))
    assert may_claim(view, "bert", "anna").reason == ClaimReason.HOLDER_ALIVE
    clock.now_s += 16
    view = await anna.look()
    assert may_claim(view, "bert", "anna").reason == ClaimReason.HOLDER_QUIET
    ours = await anna.claim(record(next_round(view)), view)
    assert (ours.record.round, ours.record.budget) == (3, RestartBudget(1, 2, 100))
    assert (await anna.renew(ours)).record == ours.record


@pytest.mark.parametrize("plant", UNREADABLE)
async def test_a_first_round_that_cannot_be_read_is_passed_too(folder, plant):
    anna = await member(folder)
    plant(folder / "round-0000000001.json")
    view = await anna.look()
    assert (view.record.round, view.record.coordinator, view.record.budget) == (1, "", RestartBudget())
    assert (await take(anna)).record.round == 2


@pytest.mark.parametrize("plant", UNREADABLE)
async def test_a_heartbeat_that_cannot_be_read_is_none(folder, plant):
    anna = await member(folder)
    ours = await take(anna)
    plant(folder / "holder-0000000001")
    assert (await anna.look()).record == ours.record
    if plant is not Path.mkdir:
        assert (await anna.renew(ours)).record == ours.record


async def test_a_number_out_of_reach_is_none_of_ours(folder):
    anna = await member(folder)
    await take(anna)
    (folder / "round-9999999999.json").write_text("mine!")
    ours = await take(anna)
    assert ours.record.round == 2
    assert (await anna.renew(ours)).record == ours.record


async def test_a_folder_is_made_and_its_parent_is_not(tmp_path):
    await FileLock.open(tmp_path / "rounds", "bert")
    assert (tmp_path / "rounds").is_dir()
    with pytest.raises(LockRefused, match="not-mounted is not there; mount the shared storage"):
        await FileLock.open(tmp_path / "not-mounted" / "rounds", "bert")
    assert files(tmp_path) == ["rounds"]


async def test_a_folder_that_others_may_write_is_closed_to_them(folder):
    folder.mkdir()
    folder.chmod(0o2777)
    await FileLock.open(folder, "bert")
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    assert files(folder) == []


async def test_a_folder_of_another_user_is_refused_by_name(folder):
    if os.geteuid() == 0:
        folder.mkdir()
        os.chown(folder, 12_345, 12_345)
        message = "belongs to uid 12345, and we write as uid 0; run all workers as one user"
    else:
        folder = Path("/usr")
        message = f"Permission denied \\(as uid {os.geteuid()}\\)"
    with pytest.raises(LockRefused, match=message) as refused:
        await FileLock.open(folder, "bert")
    assert str(folder) in str(refused.value)


async def test_what_is_no_folder_is_refused(folder):
    folder.write_text("")
    with pytest.raises(LockRefused, match=r"Not a directory .*; name a folder"):
        await FileLock.open(folder, "bert")


async def test_a_folder_that_cannot_be_written_is_refused():
    with pytest.raises(LockRefused, match=r"Read-only|not permitted|Permission denied"):
        await FileLock.open(Path("/sys"), "bert")


async def test_storage_without_hard_links_is_refused(folder):
    def no_links(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(LockRefused, match=r"makes no hard links .*; use a Lease, or other storage"):
        SharedDir(folder, no_links).prepare()
    assert files(folder) == []


@pytest.mark.parametrize("theirs", [False, True])
async def test_a_link_whose_answer_was_lost_is_ours_all_the_same(folder, theirs):
    def deaf(*names, **more):  # NFS asks again, and is told that the name is there now
        if not theirs:
            os.link(*names, **more)
        raise FileExistsError

    shared = SharedDir(folder, deaf)
    folder.mkdir()
    with shared.open_folder() as at:
        shared.create_file(at, "private", b"ours")
        if theirs:
            shared.create_file(at, "name", b"ours")
        assert shared.publish(at, "private", "name") is not theirs


async def test_storage_that_goes_away_is_to_be_tried_again(folder):
    anna = await member(folder)
    ours = await take(anna)
    folder.rename(folder.with_name("gone"))
    for attempt in (anna.look(), anna.renew(ours), anna.claim(record(2), ours)):
        with pytest.raises(LockUnreachable, match="No such file"):
            await attempt
    folder.with_name("gone").rename(folder)
    assert (await anna.renew(ours)).record == ours.record
