"""Round files under any order of events, and under a crash between any two steps of a claim or a renewal."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.launcher.rendezvous.locks.world import record
from turnout.launcher.rendezvous.arbiter import next_round
from turnout.launcher.rendezvous.locks.file_lock import FileLock

NAMES = ("anna", "bob", "carl")
PATIENCE_S = 60.0
CRASHES = Path(__file__).with_name("crashes.py")

who = st.sampled_from(NAMES)
events = st.one_of(
    st.tuples(st.just("look"), who),
    st.tuples(st.just("claim"), who),
    st.tuples(st.just("renew"), who),
    st.tuples(st.just("spoil"), st.sampled_from([".claim-{:010}-x", ".holder-{:010}-x", "holder-{:010}"])),
)


class Town:
    """Three members that know what they saw last, and what the law says of it."""

    def __init__(self, folder):
        self.folder = folder
        self.arbiters = {name: FileLock(folder, "bert", call_s=PATIENCE_S) for name in NAMES}
        self.seen, self.mine = {}, {}
        self.granted, self.holder = [], None

    async def look(self, name):
        self.seen[name] = view = await self.arbiters[name].look()
        assert view.newest_round == (self.granted[-1] if self.granted else 0)
        assert (view.record.coordinator if view.record else None) == self.holder

    async def claim(self, name):
        after = self.seen.get(name)
        if after is None:
            return
        ours = await self.arbiters[name].claim(record(next_round(after), name), after)
        first = after.newest_round == (self.granted[-1] if self.granted else 0)
        assert (ours is not None) == first
        if ours:
            assert ours.record.round not in self.granted
            self.granted.append(ours.record.round)
            self.mine[name], self.holder = ours, name

    async def renew(self, name):
        if (mine := self.mine.get(name)) is None:
            return
        ours = await self.arbiters[name].renew(mine)
        assert (ours is not None) == (mine.record.round == self.granted[-1])

    async def spoil(self, pattern):
        """A member died in the middle of a write."""
        (self.folder / pattern.format(len(self.granted))).write_bytes(b'{"sum"')


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(events, min_size=5, max_size=60))
def test_rounds_rise_and_each_has_one_holder_in_any_order(schedule):
    async def live(folder):
        town = Town(folder)
        for kind, detail in schedule:
            await getattr(town, kind)(detail)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder)))


def test_a_crash_at_any_step_blocks_nobody_and_grants_nothing_twice(tmp_path):
    done = subprocess.run(
        [sys.executable, str(CRASHES), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    folders = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())
    assert len(folders) >= 20, "each system call of a claim and a renewal is a place to crash"

    async def survive(folder):
        bob = FileLock(folder, "bert", call_s=PATIENCE_S)
        view = await bob.look()
        assert view.record is None or (view.record.coordinator, view.record.round) == ("anna", 1)
        if view.record:
            assert view.record.budget.total == 2
        ours = await bob.claim(record(next_round(view), "bob"), view)
        assert ours.record.round == next_round(view)
        assert (await bob.renew(ours)).record == ours.record
        left = {file.name for file in folder.iterdir()}
        assert left <= {"round-0000000001.json", "round-0000000002.json", ours.token, f"holder-{ours.token[6:16]}"}
        return view.record is not None

    claimed = [asyncio.run(survive(folder)) for folder in folders]
    assert {False, True} == set(claimed)
