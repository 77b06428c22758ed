"""Storage is slower than it is saved to: what is written over is never the newest save, nor the one that is written."""

import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id
from turnout.launcher.checkpoint.daemon.rank_store import PersistQueue, SupersededSave
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, Identity, ShardRecord, newest_generation

BYTES = 100


class Saves(RuleBasedStateMachine):
    """A trainer and its daemon over a real arena and a real line; storage is a list. Steps are epochs, too."""

    @initialize(count=st.integers(2, 5))
    def begin(self, count):
        self.folder = tempfile.mkdtemp(prefix="overtaking-", dir="/dev/shm")
        self.arena = Arena.make(self.folder, Identity("run", "w-0", 0, boot_id(), count))
        self.line, self.count = PersistQueue(), count
        self.step, self.queued, self.written, self.gone = 0, {}, [], set()
        self.now = None

    @rule(disk=st.booleans())
    def save(self, disk):
        record = ShardRecord(0, self.step + 1, 1, 0, 1, PAGE_BYTES, BYTES)
        while (generation := self.arena.begin(record)) is None:
            if not self.overtake():
                assert self.count == 2, "with three generations a save never waits for storage"
                self.storage_has_written()
        self.the_newest_save_is_there_whole_and_so_is_all_that_goes_to_storage()  # a kill in mid-save goes back to it
        self.step += 1
        view = self.arena.map(generation, record.shard_bytes)
        view[:] = bytes([self.step % 251]) * len(view)
        assert self.arena.seal(generation, record).epoch == self.step
        if disk:
            assert self.arena.pin(generation, self.step)
            self.line.join(self.step)
            self.queued[self.step] = generation

    def overtake(self):
        """Overtake the oldest save, as the daemon does; the one overtaken then sees that it is."""
        epoch = self.line.drop_oldest(self.arena.slots()[newest_generation(self.arena.slots())].epoch)
        if epoch is None:
            return False
        assert epoch == min(self.queued.keys() - {self.now}), "the oldest that waits"
        try:
            self.line.try_begin(epoch)
        except SupersededSave:
            self.gone.add(epoch)
            self.leave(epoch)
        assert epoch in self.gone
        return True

    def leave(self, epoch):
        self.arena.unpin(self.queued.pop(epoch))
        self.line.leave(epoch)

    @precondition(lambda self: self.queued and self.now is None)
    @rule()
    def storage_is_free(self):
        self.now = min(self.queued)
        assert self.line.try_begin(self.now)
        assert not self.line.try_begin(max(self.queued)), "one at a time"

    @precondition(lambda self: self.now is not None)
    @rule()
    def storage_has_written(self):
        if self.now is None:
            self.storage_is_free()
        self.check(self.queued[self.now], self.now)
        self.line.end_turn()
        self.leave(self.now)
        self.written.append(self.now)
        self.now = None

    def check(self, generation, step):
        record = self.arena.slots()[generation].record
        assert record.step == step
        assert bytes(self.arena.map(generation, record.shard_bytes)) == bytes([step % 251]) * record.shard_bytes

    @invariant()
    def the_newest_save_is_there_whole_and_so_is_all_that_goes_to_storage(self):
        if self.step:
            self.check(newest_generation(self.arena.slots()), self.step)
        for step, generation in self.queued.items():
            self.check(generation, step)
        assert self.gone.isdisjoint(self.written)

    def teardown(self):
        self.arena.close()
        shutil.rmtree(self.folder)


TestSaves = Saves.TestCase
TestSaves.settings = settings(max_examples=scaled(60), stateful_step_count=40, deadline=None)
