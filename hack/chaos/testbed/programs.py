"""The extender and two replicas of the autoscaler as children, which may be killed and come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp

from hack.chaos.testbed.manifests import COOLDOWN_S, LEASE_S, MAP_NAME, MAP_NAMESPACE, ROOT
from turnout.cli.verb_support.child_programs import ChildFailed, child_environment, die_with_parent, free_port
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError

_START_S = 40.0
_LOOK_S = 0.05
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/turnout-system/leases/turnout-autoscaler"


class Programs:
    """Programs that run beside the job. kubeconfig: of the local cluster; folder: for their logs."""

    def __init__(self, api: ApiClient, session: aiohttp.ClientSession, kubeconfig: Path, folder: Path) -> None:
        self._api, self._session, self._kubeconfig, self._folder = api, session, kubeconfig, folder
        self._ports = free_port(), free_port()
        self._extender: subprocess.Popen[bytes] | None = None
        self._autoscalers: list[subprocess.Popen[bytes]] = []
        self._count = 0

    @property
    def url(self) -> str:
        """Return the URL of the extender's verbs, which stays the same after a restart."""
        return f"http://127.0.0.1:{self._ports[0]}"

    async def begin(self, autoscalers: int) -> None:
        """Start the extender and `autoscalers` replicas of the autoscaler; wait until the extender is ready and, unless
        `autoscalers` is 0, one replica leads.

        Raises ChildFailed if that takes longer than _START_S seconds.
        """
        self.start_extender()
        for _ in range(autoscalers):
            self.start_autoscaler()
        try:
            async with asyncio.timeout(_START_S):
                await self._wait_until_up(autoscalers > 0)
        except TimeoutError as error:
            raise ChildFailed(f"no extender or no leader in {_START_S:g} s: {self._folder}") from error

    def start_extender(self) -> None:
        """Start the extender; its port is the same each time."""
        flags = ("--bind", f"127.0.0.1:{self._ports[0]}", "--metrics-bind", f"127.0.0.1:{self._ports[1]}")
        self._extender = self._start("scheduler_ext", *flags, "--configmap", f"{MAP_NAMESPACE}/{MAP_NAME}")

    def start_autoscaler(self) -> None:
        """Start one more replica of the autoscaler."""
        flags = ("--act", f"--cooldown-s={COOLDOWN_S:g}", "--restart-s=0", f"--lease-seconds={LEASE_S:g}")
        self._autoscalers.append(self._start("autoscaler", *flags, "--metrics-bind", "127.0.0.1:0"))

    def kill_extender(self) -> None:
        """Kill the extender and wait for its end; do nothing if it was never started."""
        if self._extender is not None:
            self._extender.kill()
            self._extender.wait()

    async def leader(self) -> int:
        """Return the process ID of the leading autoscaler, which its Lease names as host, pid, random.

        0 if the Lease names no autoscaler of this object that runs, or if it cannot be read.
        """
        with suppress(ApiError, aiohttp.ClientError, ValueError, IndexError):
            holder = (await self._api.call("GET", _LEASE))["spec"].get("holderIdentity") or ""
            pid = int(holder.rsplit("-", 2)[1])
            if any(each.pid == pid and each.poll() is None for each in self._autoscalers):
                return pid
        return 0

    async def kill_leader(self) -> int:
        """Kill the leading autoscaler, and start replicas until there are two. Return the killed pid; 0 without a
        leader.
        """
        pid = await self.leader()
        for each in self._autoscalers:
            if each.pid == pid:
                each.kill()
                each.wait()
        self._autoscalers = [each for each in self._autoscalers if each.poll() is None]
        while len(self._autoscalers) < 2:
            self.start_autoscaler()
        return pid

    def end(self) -> None:
        """Kill all programs and wait for their ends."""
        for each in (*self._autoscalers, *filter(None, (self._extender,))):
            each.kill()
            each.wait()

    async def _wait_until_up(self, needs_leader: bool) -> None:
        """Wait until the extender is ready. The caller limits the time.

        needs_leader: True to wait also until an autoscaler leads.
        """
        while True:
            if await self._is_ready() and (not needs_leader or await self.leader()):
                return
            await asyncio.sleep(_LOOK_S)

    async def _is_ready(self) -> bool:
        """Return True if the extender answers /readyz with 200."""
        with suppress(aiohttp.ClientError):
            async with self._session.get(f"http://127.0.0.1:{self._ports[1]}/readyz") as response:
                return response.status == 200
        return False

    def _start(self, package: str, *flags: str) -> subprocess.Popen[bytes]:
        """Start a program of ours. package: as in "autoscaler". Its output goes to a new log in the folder."""
        self._count += 1
        with (self._folder / f"{package}-{self._count}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"turnout.{package}", "--kubeconfig", str(self._kubeconfig), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(),
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
