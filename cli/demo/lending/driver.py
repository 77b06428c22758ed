"""The demo of lending: starts a cluster, the extender and the autoscaler, runs four jobs, and ends everything."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from turnout.autoscaler.model import Reason
from turnout.autoscaler.settings import Settings
from turnout.cli.demo.lending.model import MomentKind, Player, Story, StoryMoment, missing_parts, running_gpus
from turnout.cli.demo.lending.screen import LendingScreen
from turnout.cli.demo.lending.testbed import GPUS, PLAYERS, A, B, C, D, LendingTestbed, StoryFailed
from turnout.cli.demo.page import DemoPage, in_browser
from turnout.cli.demo.scenario import MAP_NAME, MAP_NAMESPACE
from turnout.cli.verb_support.child_programs import (
    AutoscalerProcess,
    autoscaler_command,
    extender_command,
    running_autoscaler,
)
from turnout.cli.verb_support.child_programs import running_extender as extending
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.runtime.clients import ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.cluster.scheduler import ExtenderSettings
from turnout.simulator.local_cluster import LocalCluster, local_cluster

_PACE = Pace(pull_s=0.1, stop_s=0.3)  # long enough to be seen, too short to wait for


@dataclass(frozen=True, slots=True)
class LendingDemoSettings:
    """How the second part of the demo is played."""

    pause_s: float = 2.0  # wait after each act, so that a person can follow
    rest_s: float = 1.0  # time in which no job may be resized
    cooldown_s: float = 5.0  # between two growths: long enough to be seen, short enough to wait for
    patience_s: float = 20.0  # time limit for each thing that has to happen
    pace: Pace = _PACE
    weight: int = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it
    # Command lines that start the two programs.
    extender: Sequence[str] = field(default_factory=extender_command)
    autoscaler: Sequence[str] = field(default_factory=autoscaler_command)

    @property
    def autoscaler_settings(self) -> Settings:
        """Return the autoscaler's settings that `flags` give."""
        return Settings(act=True, cooldown_s=self.cooldown_s, restart_s=0.0)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the autoscaler's flags: it acts, and a change of size costs these jobs nothing."""
        return ("--act", "--cooldown-s", f"{self.cooldown_s:g}", "--restart-s", "0")


async def run_lending_demo(settings: LendingDemoSettings, screen: LendingScreen, page: DemoPage | None = None) -> Story:
    """Run the story, and return what happened.

    page: shows the cluster in a browser. Raises ChildFailed if a program does not start,
    StoryFailed if something else happens than the story expects.
    """
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    screen.open(settings.flags, settings.pace)

    def story(moments: Sequence[StoryMoment]) -> Story:
        return Story(PLAYERS, GPUS, settings.cooldown_s, tuple(moments))

    def shown(moment: StoryMoment) -> None:
        screen.happened(story(stage.moments), moment)

    async with _stage(settings, screen, shown, page) as (stage, autoscaler):
        with screen.acts():
            try:
                await _Acts(settings, stage).all()
            except StoryFailed as error:
                raise StoryFailed(f"{error}\nThe autoscaler's last words:\n{autoscaler.last_words}") from error
        lending_story = story(stage.moments)
    if faults := missing_parts(lending_story, lends=A.letter, served=B.letter, too_large=C.letter, refused=D.letter):
        raise StoryFailed("the story did not happen as it is told: " + "; ".join(faults))
    screen.close(lending_story)
    return lending_story


@asynccontextmanager
async def _stage(
    settings: LendingDemoSettings,
    screen: LendingScreen,
    on_moment: Callable[[StoryMoment], None],
    page: DemoPage | None,
) -> AsyncIterator[tuple[LendingTestbed, AutoscalerProcess]]:
    """Start the API, the autoscaler and the extender, and the scheduler for the block; end them in reverse order.

    on_moment: called with each moment of the story. page: None serves no page.
    """
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="turnout-demo-")))
        cluster = await ends.enter_async_context(local_cluster(folder / "kubeconfig", pace=settings.pace))
        stage = LendingTestbed(cluster, on_moment, settings.patience_s)
        await stage.set_up()
        if page is not None:
            screen.print_now(
                in_browser(
                    await ends.enter_async_context(page.serve(folder / "kubeconfig", settings.autoscaler_settings))
                )
            )
        screen.print_now(
            f"A Kubernetes API is up at {cluster.address}; the extender and the autoscaler are starting ..."
        )
        autoscaler = await ends.enter_async_context(_programs(settings, cluster, folder, stage))
        screen.print_now("The extender is ready, and the autoscaler leads.")
        stage.begin_story()
        yield stage, autoscaler


@asynccontextmanager
async def _programs(
    settings: LendingDemoSettings, cluster: LocalCluster, folder: Path, stage: LendingTestbed
) -> AsyncIterator[AutoscalerProcess]:
    """Run the autoscaler and the extender during the block; yields the autoscaler. folder: for the extender's files."""
    config, configmap = folder / "kubeconfig", f"{MAP_NAMESPACE}/{MAP_NAME}"
    async with (
        running_autoscaler(settings.autoscaler, config, settings.flags, stage.hear) as autoscaler,
        extending(settings.extender, config, configmap, folder, cluster.session) as up,
    ):
        cluster.schedule(
            SchedulerSettings(extender=ExtenderSettings(weight=settings.weight)),
            ExtenderClient(cluster.session, up.url),
        )
        yield autoscaler


class _Acts:
    """The story, act by act."""

    def __init__(self, settings: LendingDemoSettings, stage: LendingTestbed) -> None:
        self._settings, self._stage = settings, stage

    async def all(self) -> None:
        """Run all acts of the story, and wait for the result of each.

        A fills the idle GPUs. B gets its min from A. C waits until B leaves. A grows again when C leaves. D runs at its
        min, and the autoscaler refuses to resize it.
        """
        await self._stage.arrive(A)
        await self._runs(A, A.maximum)
        await self._stage.arrive(B)
        await self._runs(B, B.minimum)
        await self._stage.arrive(C)
        await self._await_reason(C, Reason.NEEDS_MORE)
        await self._stage.leave(B)
        await self._runs(C, C.minimum)
        await self._stage.leave(C)
        await self._runs(A, A.maximum)
        await self._stage.arrive(D)
        await self._runs(D, D.minimum)
        await self._await_reason(D, Reason.REFUSED)

    async def _runs(self, player: Player, workers: int) -> None:
        """Wait until a player's job runs with this many workers, record that moment, and pause for `pause_s`."""
        stage = self._stage
        what = f"{player.letter} runs with {workers} workers"
        await stage.until(lambda: running_gpus(stage.seats, player.letter) == workers, what)
        stage.note(MomentKind.RUNS, player.letter)
        await asyncio.sleep(self._settings.pause_s)

    async def _await_reason(self, player: Player, reason: Reason) -> None:
        """Wait until the autoscaler gives this reason for the player's job, then `rest_s` seconds in which no job
        should be resized.

        The end of that time is recorded in the story.
        """
        decisions = self._stage.decisions
        what = f"{player.letter} is told {reason.value}"
        await self._stage.until(lambda: player.letter in decisions and decisions[player.letter].reason is reason, what)
        await asyncio.sleep(self._settings.rest_s)
        self._stage.note(MomentKind.COOLDOWN_OVER, player.letter)
        await asyncio.sleep(self._settings.pause_s)
