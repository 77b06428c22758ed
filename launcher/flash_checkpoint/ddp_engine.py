"""`DdpCheckpointer` saves a state that is the same on all ranks, in memory and as one torch file per step.

Every rank calls `save_checkpoint` and `load_checkpoint`. Local rank 0 of each worker saves to memory, and only rank 0
to disk. Users import it from launcher/flash_checkpoint/. launcher/checkpoint/engine/torch_file.py knows the files.
Source: DL-43 to DL-51, DL-65, DL-66; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.launcher.checkpoint.engine import torch_file
from turnout.launcher.checkpoint.engine.memory_saver import MemorySaver
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo, choose_on_rank_0
from turnout.launcher.checkpoint.engine.storage_type import DeletionStrategy, StorageType, keep_and_every, replicas_of
from turnout.launcher.checkpoint.format.daemon_messages import Persisted, Save, SaveFailed, ToClient
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import BadCheckpoint, StorageFailed
from turnout.launcher.health.hang_monitor.progress import SAVING_PHASE, in_phase

_GENERATIONS, _THREADS = 3, 2  # saves that memory holds, and threads that copy
_WAIT_S, _POLL_S = 60.0, 0.01  # seconds for local rank 0 to save the newest step, and between two checks
log = logging.getLogger("turnout.checkpoint")


class DdpCheckpointer:
    """Saves and loads the checkpoints of one training process.

    checkpoint_dir: for files without a path, and for notes about all files. local_shard_num, global_shard_num: 1, since
    each rank has the whole state. comm_backend, save_timeout: ignored, since there is only one file. deletion_strategy:
    which files stay, None for all. replica_count: 0 to 4, without effect: every worker's memory has the whole state.
    environ: of this process. Raises ValueError for a number of shards other than 1, a replica_count outside 0 to 4, a
    save_timeout that is not above 0, or a strategy for another folder, and TypeError for an unknown strategy.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        local_shard_num: int = 1,
        global_shard_num: int = 1,
        comm_backend: str = "",
        deletion_strategy: DeletionStrategy | None = None,
        save_timeout: float = 600,
        replica_count: int = 0,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        replicas_of(replica_count)
        if (local_shard_num, global_shard_num) != (1, 1):
            raise ValueError("a sharded state is for FsdpShardCheckpointer: here there is one shard")
        if not math.isfinite(save_timeout) or save_timeout <= 0:
            raise ValueError(f"save_timeout is {save_timeout}: seconds, more than 0")
        self.checkpoint_dir = Path(checkpoint_dir).absolute()
        self._keep, self._every = keep_and_every(deletion_strategy, self.checkpoint_dir)
        self._environ = dict(os.environ if environ is None else environ)
        self._rank = ProcessInfo.of(self._environ, str(self.checkpoint_dir))
        self._steps = Steps()
        self._memory: MemorySaver | None = None
        self._newest_step = -1  # step that was saved by this process, or would have been by local rank 0
        self._last_disk_step = -1
        self._disk_steps: set[int] = set()  # DISK saves that are not finished
        self._failed: dict[int, str] = {}

    def save_checkpoint(
        self,
        step: int,
        state_dict: Mapping[str, Any],
        path: str | os.PathLike[str] = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> None:
        """Save this step in memory; training may continue when this returns. DISK also writes `path`, in the
        background.

        state_dict: nested dicts, lists and tuples of tensors and plain values. path: a file for `torch.load(path,
        weights_only=True)`, "" for <checkpoint_dir>/<step>/rank_0.pt. MEMORY: the file is written only if training
        resumes from this step after a failure. All ranks call it; only local rank 0 of each worker saves.

        Raises TypeError for another storage type or state, and ValueError for a step below 0. Local rank 0 raises
        BadState if a value cannot be saved, NoMemory if the memory is too small, ArenaBusy if another process saves as
        this rank, DaemonLost if the daemon is lost, and TimeoutError if it does not answer.
        """
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict is a {type(state_dict).__name__}, not a dictionary")
        if step < 0:
            raise ValueError(f"step is {step}: 0 or more")
        if self._rank.local_rank == 0:
            with in_phase(SAVING_PHASE):
                self._memory_saver().save(step, state_dict, self._target(step, path, storage_type))
        self._newest_step = step
        self._steps.saved(step)

    def _target(self, step: int, path: str | os.PathLike[str], storage_type: StorageType) -> Save | None:
        """Return the target by which the daemon writes a step as a torch file; None on all ranks but 0.

        path: absolute, or relative to the checkpoint folder; "" for the default. A MEMORY save is written only after a
        failure.
        """
        if self._rank.rank:
            return None
        file = self.checkpoint_dir / path if str(path) else torch_file.default_path(self.checkpoint_dir, step)
        if storage_type is StorageType.DISK:
            self._last_disk_step = step
            self._disk_steps.add(step)
            self._failed.pop(step, None)
        later = storage_type is StorageType.MEMORY
        return Save(0, 0, step, str(self.checkpoint_dir), "torch", str(file.absolute()), self._keep, self._every, later)

    def load_checkpoint(self, resume_path: str | os.PathLike[str] = "") -> dict[str, Any]:
        """Load the newest state: from memory if all ranks hold it, else from `resume_path`, else from the newest file.

        Returns {} if there is none. All ranks call it and get the same step. Every byte is verified.
        A single rank whose step in memory is broken goes on to the files. In a larger world BadCheckpoint is raised for
        such a step; the next round does not use it. Raises BadCheckpoint, too, if `resume_path` is broken, if files
        exist but none can be loaded, or if the state is no dictionary, StorageFailed if a chosen file cannot be
        read, TimeoutError if the daemon does not answer, and DaemonLost if it is lost. May wait 60 s (_WAIT_S) for the
        newest save.
        """
        state = self._from_memory()
        if state is None and str(resume_path):
            state = torch_file.load(Path(resume_path))
        if state is None:
            state = self._from_files()
        if state is None:
            return {}
        if not isinstance(state, dict):
            raise BadCheckpoint(f"the newest checkpoint of {self.checkpoint_dir} is no dictionary")
        return state

    def _from_memory(self) -> object | None:
        """Return the state of the newest step that all ranks hold in memory; None if there is none.

        If the step in memory is broken, a single rank returns None; in a larger world BadCheckpoint is raised.
        """
        rank = self._rank
        if not rank.has_agent and rank.world > 1:
            return None  # what the other ranks hold is unknown
        if self._newest_step >= 0:
            step = self._await_hashed(self._newest_step)
        elif rank.restore_step is not None:
            step = rank.restore_step
        else:
            step = self._memory_saver().newest_step()
        if step < 0:
            return None
        try:
            return self._memory_saver().load(step)
        except BadCheckpoint as error:
            if rank.world > 1:  # the other ranks would not fall back as well
                raise
            log.warning("memory_passed_over", extra={"step": step, "why": str(error)})
            return None

    def _await_hashed(self, step: int) -> int:
        """Wait until local rank 0 has saved this step and the daemon has hashed it; return the step.

        Raises BadCheckpoint after _WAIT_S, TimeoutError if the daemon does not answer, and DaemonLost if it is lost.
        """
        memory, until_s = self._memory_saver(), time.monotonic() + _WAIT_S
        while step not in [each.step for each in memory.client.held_steps(1)]:
            if time.monotonic() > until_s:
                raise BadCheckpoint(f"local rank 0 has not saved step {step} within {_WAIT_S:g} s")
            time.sleep(_POLL_S)
        return step

    def _from_files(self) -> object | None:
        """Return the state in the newest intact file, which rank 0 chooses for all ranks; None if there is no file."""
        newest = choose_on_rank_0(
            self._rank.world,
            lambda: torch_file.load_newest(self.checkpoint_dir, _log_warning),
            lambda found: (found[0].number, found[0].step),
            self._load_same,
        )
        return None if newest is None else newest[1]

    def _load_same(self, number: int, step: int) -> tuple[torch_file.TorchFile, object]:
        """Load the file that rank 0 chose; return it and its content. Raises BadCheckpoint if this rank does not find
        it.

        number: of the write, as in TorchFile. step: of the file.
        """
        for each in torch_file.list_files(self.checkpoint_dir):
            if (each.number, each.step) == (number, step):
                return each, torch_file.load(each.path, each.versions)
        raise BadCheckpoint(f"rank 0 has loaded step {step}: {self.checkpoint_dir} of this rank does not hold it")

    def wait_latest_checkpoint(self, timeout: float = 1800) -> None:
        """Wait until the last DISK save is in its file. Returns at once on ranks that have saved nothing.

        Raises TimeoutError after `timeout` seconds, StorageFailed if the write failed, and DaemonLost if the daemon is
        lost.
        """
        if self._memory is not None:
            self._memory.client.wait(timeout)
        if self._last_disk_step in self._failed:
            raise StorageFailed(f"step {self._last_disk_step}: {self._failed[self._last_disk_step]}")

    def close(self) -> None:
        """Stop saving. An agent's daemon finishes saves in flight; without an agent they finish before this returns."""
        memory, self._memory = self._memory, None
        if memory is not None:
            atexit.unregister(self.close)
            memory.close()

    def _memory_saver(self) -> MemorySaver:
        """Return the saver of this process, created at the first call. It is closed when the process exits."""
        if self._memory is None:
            self._memory = MemorySaver(
                self._rank,
                self._environ,
                generations=_GENERATIONS,
                replicated=True,
                threads=_THREADS,
                on_message=self._on_daemon_message,
            )
            atexit.register(self.close)
        return self._memory

    def _on_daemon_message(self, message: ToClient) -> None:
        """Log a save that failed, and record whether the last DISK save was written or failed.

        A MEMORY save that was overwritten by a newer one before the daemon knew of it is no failure.
        """
        match message:
            case Persisted(step=step):
                self._failed.pop(step, None)
                self._disk_steps.discard(step)
            case SaveFailed(step=step, reason=reason, detail=detail):
                if step == self._last_disk_step:
                    self._failed[step] = detail
                if step in self._disk_steps or reason != "overwritten":
                    log.warning("persist_failed", extra={"step": step, "reason": reason, "detail": detail})
                self._disk_steps.discard(step)


def _log_warning(word: str, fields: Mapping[str, object]) -> None:
    """Log an event of storage as a warning."""
    log.warning(word, extra=dict(fields))
