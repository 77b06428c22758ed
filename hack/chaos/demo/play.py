"""The story: each act is done, waited for, and its claim checked."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from hack.chaos.demo.claims import Act, Claim, check_end, check_resume
from hack.chaos.demo.screen import TrainScreen
from hack.chaos.fault_schedule import HARMLESS, Fault, FaultEvent
from hack.chaos.history import JobPlan, Record
from hack.chaos.runner import train_undisturbed
from hack.chaos.testbed.fault_injectors import FaultInjectors
from hack.chaos.testbed.manifests import JOB, MAX_WORKERS, MIN_WORKERS, Plan
from hack.chaos.testbed.testbed import NoProgress, Testbed, stage

PATIENCE_S = 90.0
PLAN = Plan(epochs=50)
_RIVALS, _RIVAL_S, _LOST_S = 2, 5.0, 3.0
_STEPS = 4  # of a round, that are seen before the story goes on
_TICK_S = 0.2


async def tell(screen: TrainScreen) -> bool:
    """Run the demo. Return True if all its claims were true.

    Raises ChildFailed if a program does not start, NoProgress if the job makes no progress, and NoIsolation if this
    machine cannot isolate its pods. screen: shows the demo.
    """
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    screen.open()
    with tempfile.TemporaryDirectory(prefix="turnout-demo-") as folder:
        async with stage(Path(folder) / "home", PLAN, autoscalers=0) as found:
            undisturbed_run = asyncio.create_task(asyncio.to_thread(train_undisturbed, Path(folder) / "alone", PLAN))
            story = _Story(found, screen)
            with screen.acts():
                ticks = asyncio.create_task(story.tick())
                try:
                    await story.run_acts()
                finally:
                    ticks.cancel()
                    await story.injectors.stop()
                model = await undisturbed_run
            harmless = frozenset(fault.name for fault in HARMLESS)
            job_plan = JobPlan(MIN_WORKERS, MAX_WORKERS, PLAN.samples, PLAN.batch, PLAN.epochs, model, harmless)
            story.claims += check_end(found.records, job_plan)
            screen.close(found, story.claims)
    return all(claim.holds for claim in story.claims)


class _Story:
    def __init__(self, found: Testbed, screen: TrainScreen) -> None:
        self._stage, self._screen = found, screen
        self.injectors = FaultInjectors(found)
        self.claims: list[Claim] = []
        self._printed_rounds: set[int] = set()
        found.on_record = self._print_new_round

    async def tick(self) -> None:
        """Update the loss on the screen every _TICK_S seconds, until cancelled."""
        while True:
            self._screen.tick(self._stage, PLAN.steps)
            await asyncio.sleep(_TICK_S)

    async def run_acts(self) -> None:
        """Run all acts: grow, shrink for a rigid job, grow again, lose a process, lose the coordinator's node, end.

        Each act adds its claim to `claims`.
        """
        self._say("A is submitted with one worker, the least it can use; torch is being imported")
        await self._wait_until_trains(1, 0)
        await self._act(
            "growth into idle GPUs",
            0,
            "The autoscaler starts: the queue has idle GPUs",
            self._start_autoscaler,
            MAX_WORKERS,
        )
        await self._act(
            "way given to a rigid job", 0, f"A rigid job comes that needs {_RIVALS} GPUs", self._submit_rigid_job, 1
        )
        await self._act(
            "growth after it",
            0,
            "The rigid job is about to end; A may have its GPUs back",
            self._wait_until_rigid_job_ends,
            MAX_WORKERS,
        )
        await self._act(
            "a worker's process killed", 1, "SIGKILL for the process of one worker", self._kill_process, MAX_WORKERS
        )
        await self._act("a node lost, with the coordinator and its memory", 1, "", self._lose_node, MAX_WORKERS)
        await self.injectors.settle()
        self._say("A no longer pauses before its steps, and trains to its end", "bold")
        (self._stage.home / "finish").touch()
        phase = await self._stage.wait_for_end(JOB, PATIENCE_S)
        self._say(f"A has ended: {phase}", "bold")
        self.claims.append(Claim(f"the job has ended, {phase}", phase == "Completed"))
        self._stage.note(Record("over", time.monotonic(), code=int(phase != "Completed")))

    async def _act(
        self, what: str, max_repeated_steps: int, say: str, do: Callable[[], Awaitable[None]], world: int
    ) -> None:
        """Carry out one act, wait until a new round trains, and check the claim about it.

        what: the act, for the claim. say: printed before it, "" for nothing. do: carries it out. world: workers
        afterwards. max_repeated_steps: steps that it may cause to be made twice.
        """
        if say:
            self._say(say, "bold")
        act, before = Act(what, time.monotonic(), max_repeated_steps), self._stage.round
        await do()
        await self._wait_until_trains(world, before)
        claim = check_resume(self._stage.records, act, time.monotonic())
        self.claims.append(claim)
        self._say(claim.text if claim.holds else f"NOT AS CLAIMED: {claim.text}", "green" if claim.holds else "red")

    async def _wait_until_trains(self, world: int, after_round: int) -> None:
        """Wait until a round newer than `after_round`, of `world` workers, has made _STEPS steps.

        Raises NoProgress after PATIENCE_S.
        """

        def trains() -> bool:
            newest = self._stage.round
            worlds = {record.world for record in self._stage.records if record.round == newest}
            return worlds == {world} and self._stage.steps_since(0.0, after_round) >= _STEPS

        await self._stage.until(trains, f"{world} workers train in a round after {after_round}", PATIENCE_S)

    # What is done.

    async def _start_autoscaler(self) -> None:
        """Start the autoscaler, which lends idle GPUs to the elastic job."""
        self._stage.programs.start_autoscaler()

    async def _submit_rigid_job(self) -> None:
        """Submit a rigid job that needs GPUs of the elastic job, and claim that it runs within PATIENCE_S."""
        came_s = time.monotonic()
        name = (await self.injectors.do(FaultEvent(Fault.RIVAL, (_RIVALS - 1) * 0.9, 0.0, _RIVAL_S))).who

        def is_served() -> bool:
            return any(record.event == "served" and record.who == name for record in self._stage.records)

        with suppress(NoProgress):
            await self._stage.until(is_served, "the rigid job runs", PATIENCE_S)
        text = f"the rigid job of {_RIVALS} GPUs runs {time.monotonic() - came_s:.1f} s after it came"
        self._say(text)
        self.claims.append(Claim(text, is_served()))

    async def _wait_until_rigid_job_ends(self) -> None:
        """Wait until the rigid job has ended."""
        await self.injectors.settle()

    async def _kill_process(self) -> None:
        """Kill the process of one worker."""
        await self.injectors.do(FaultEvent(Fault.PROCESS, 0.5, 0.0, 0.0))

    async def _lose_node(self) -> None:
        """Delete the node of the coordinator's worker, and wait until it is back, empty. Without a coordinator, take
        the node of the first worker.
        """
        name = await self._stage.coordinator()
        workers = [pod["metadata"]["name"] for pod in self._stage.workers]
        aim = (workers.index(name) + 0.5) / len(workers) if name in workers else 0.0
        event = FaultEvent(Fault.NODE, aim, 0.0, _LOST_S)
        node = self._stage.workers[int(aim * len(workers))]["spec"]["nodeName"]
        self._screen.lost_nodes.add(node)
        await self.injectors.do(event)
        self._say(f"{node} disappears, with the coordinator and all that its memory held", "bold")
        await self.injectors.settle()
        self._screen.lost_nodes.discard(node)
        self._say(f"{node} is back, empty")

    # Output.

    def _say(self, text: str, style: str = "") -> None:
        self._screen.print_event(self._stage, text, style)

    def _print_new_round(self, record: Record) -> None:
        """Print the first record of each new round: its workers, and from where they resume. Other records are
        ignored.
        """
        if record.event == "begun" and record.round not in self._printed_rounds:
            self._printed_rounds.add(record.round)
            workers = "1 worker goes" if record.world == 1 else f"{record.world} workers go"
            whence = (
                "from the start" if record.source == "fresh" else f"on from step {record.step}, from {record.source}"
            )
            self._say(f"round {record.round}: {workers} {whence}", "dim")
