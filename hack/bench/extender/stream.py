"""One size of cluster: its processes started, gangs sent through them, every request timed at both ends."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hack.bench.extender import cluster
from hack.bench.extender.caller import Caller, child, read_readiness, url_of, wait_for, wait_for_file
from hack.bench.extender.cluster import Gang, Raw
from hack.bench.support.measure import memory_mib
from turnout.cli.verb_support.child_programs import free_port

LIVING = 12  # gangs at a time; the oldest leaves when another comes
_GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{cluster.NAMESPACE}/podgroups"
_PODS = f"/api/v1/namespaces/{cluster.NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The size of a cluster, the pods that it has, and the requests to send."""

    nodes: int
    pods: int
    runs: int
    requests: int  # a run has at least so many
    events_per_s: float = 200.0


@dataclass(slots=True)
class RequestTimes:
    """Seconds, one per request in order."""

    loopback_s: list[float] = field(default_factory=list)
    handler_s: list[float] = field(default_factory=list)
    gang_starts: list[int] = field(default_factory=list)  # indices of each gang's first request, which makes its plan


@dataclass(slots=True)
class StreamRun:
    """One stream, sent to Turnout and to the no-op server alternately."""

    ours: RequestTimes = field(default_factory=RequestTimes)
    noop: RequestTimes = field(default_factory=RequestTimes)
    placed_gangs: int = 0
    refused_gangs: int = 0


@dataclass(slots=True)
class SizeResult:
    """The measurements of the extender on one size of cluster."""

    size: StreamSize
    runs: list[StreamRun]
    rss_mib: float  # largest memory at the end of a run
    peak_mib: float  # most memory so far
    start_s: float  # from the extender's start to ready


def measure(size: StreamSize) -> SizeResult:
    """Start all programs, send the streams, and stop the programs. Return times and memory.

    Raises RuntimeError if a program ends or the extender reports a fault.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _processes(size, folder) as (api, ours, noop, pages, process, start_s):
            stream = _Stream(size, api, ours, noop)
            stream.send(StreamRun(), size.requests // 4)  # warms up; its times are cut off below
            runs, rss_mib = [], 0.0
            for _ in range(size.runs):
                runs.append(stream.send(StreamRun(), size.requests))
                rss_mib = max(rss_mib, memory_mib(process.pid))
            peak_mib = memory_mib(process.pid, "VmHWM")
            _check_no_errors(pages)
        for who in ("ours", "noop"):
            handler_s = _handler_times(folder / f"{who}.times")
            left = len(handler_s)
            for run in reversed(runs):
                timed = getattr(run, who)
                timed.handler_s = handler_s[left - len(timed.loopback_s) : left]
                left -= len(timed.loopback_s)
    return SizeResult(size, runs, rss_mib, peak_mib, start_s)


@contextmanager
def _processes(
    size: StreamSize, folder: Path
) -> Iterator[tuple[Caller, Caller, Caller, Caller, subprocess.Popen[bytes], float]]:
    """Start the API, the extender, and the no-op; end them with the block.

    Yields callers of (the API, the extender, the no-op, the extender's pages), the extender's process, and the seconds
    of its start. folder: for the files of all three.
    """
    with ExitStack() as stack:

        def caller(url: str) -> Caller:
            one = Caller(url)
            stack.callback(one.close)
            return one

        config, port_file, noop_file, pages = folder / "kubeconfig", folder / "port", folder / "noop", free_port()
        settings = {"nodes": size.nodes, "pods": size.pods, "events_per_s": size.events_per_s}
        api = stack.enter_context(child("api", str(config), json.dumps(settings)))
        server = json.loads(wait_for_file(config, api))["clusters"][0]["cluster"]["server"]
        noop = stack.enter_context(child("noop", str(folder / "noop.times"), str(noop_file)))
        begun_s = time.monotonic()
        flags = ["--kubeconfig", str(config), "--bind", "127.0.0.1:0", "--metrics-bind", f"127.0.0.1:{pages}"]
        flags += ["--port-file", str(port_file), "--log-level", "error"]
        flags += ["--configmap", f"{cluster.MAP_NAMESPACE}/{cluster.MAP_NAME}"]
        ours = stack.enter_context(child("ours", str(folder / "ours.times"), *flags))
        wait_for(lambda: read_readiness(pages), ours)
        start_s = time.monotonic() - begun_s
        ours_url, noop_url = (url_of(int(wait_for_file(*each))) for each in ((port_file, ours), (noop_file, noop)))
        yield caller(server), caller(ours_url), caller(noop_url), caller(url_of(pages)), ours, start_s


class _Stream:
    """kube-scheduler's part: gangs come, each pod is filtered, scored and bound, the oldest gang leaves."""

    def __init__(self, size: StreamSize, api: Caller, ours: Caller, noop: Caller) -> None:
        self._size, self._api, self._ours, self._noop = size, api, ours, noop
        self._names = [json.dumps(cluster.node_name(n)).encode() for n in range(size.nodes)]
        self._gangs, self._living = cluster.gangs(11), deque[Gang]()
        self._rng = Random(5)

    def send(self, run: StreamRun, requests: int) -> StreamRun:
        """Create new gangs and place their pods until this many requests are answered; return `run` with their
        times.
        """
        while len(run.ours.loopback_s) < requests:
            gang = next(self._gangs)
            if len(self._living) == LIVING:
                self._delete_gang(self._living.popleft())
            run.ours.gang_starts.append(len(run.ours.loopback_s))
            hosts = [self._place(run, pod) for pod in self._create_gang(gang)]
            run.placed_gangs += all(hosts)
            run.refused_gangs += not all(hosts)
            self._living.append(gang)
        return run

    def _create_gang(self, gang: Gang) -> Sequence[Raw]:
        """Create a gang's PodGroup and pods on the API; return the pods."""
        self._api.json("POST", _GROUPS, cluster.pod_group(gang))
        return [
            self._api.json("POST", _PODS, cluster.pod(f"{gang.name}-{index}", gang.gpus, "", gang, index))
            for index in range(gang.pods)
        ]

    def _delete_gang(self, gang: Gang) -> None:
        for index in range(gang.pods):
            self._api.json("DELETE", f"{_PODS}/{gang.name}-{index}?gracePeriodSeconds=0")
        self._api.json("DELETE", f"{_GROUPS}/{gang.name}")

    def _place(self, run: StreamRun, pod: Raw) -> bool:
        """Send filter and prioritize for a pod to both servers, then bind it to the first node that ours kept.

        If ours kept all nodes, the pod is bound to the first node of the scores. Returns False, and binds nothing, if
        our extender kept no node. run: gets the times.
        """
        turn = self._rng.randrange(len(self._names))
        names = b",".join(self._names[turn:] + self._names[:turn])
        body = b'{"Pod":%b,"Nodes":null,"NodeNames":[%b]}\n' % (json.dumps(pod).encode(), names)
        filtered, scored = (self._ask(run, verb, body) for verb in ("/filter", "/prioritize"))
        candidates = json.loads(filtered)["NodeNames"]
        if len(candidates) == len(self._names):  # no opinion: the scheduler would go by the scores
            candidates = [entry["Host"] for entry in json.loads(scored)]
        if not candidates:
            return False
        name = pod["metadata"]["name"]
        self._api.json("POST", f"{_PODS}/{name}/binding", {"target": {"name": candidates[0]}})
        return True

    def _ask(self, run: StreamRun, verb: str, body: bytes) -> bytes:
        """Send a request to our extender and to the no-op, and record both times. Return our answer.

        verb: path of the request, such as "/filter". run: gets the times.
        """
        answer, took_s = self._ours.call("POST", verb, body)
        run.ours.loopback_s.append(took_s)
        run.noop.loopback_s.append(self._noop.call("POST", verb, body)[1])
        return answer


def _check_no_errors(extender: Caller) -> None:
    """Raise RuntimeError if the extender answered a request without advice because of a fault.

    The measured times would mean nothing then. extender: a connection to its port for metrics.
    """
    page = extender.call("GET", "/metrics", b"")[0].decode()
    lines = (line for line in page.splitlines() if line.startswith("turnout_extender_errors_total"))
    faults = [line for line in lines if float(line.rpartition(" ")[2]) > 0]
    if faults:
        raise RuntimeError(f"the extender answered without advice: {faults}")


def _handler_times(file: Path) -> list[float]:
    """Return the seconds of decode, plan and encode together, for each request in the file."""
    phases = array("d")
    phases.frombytes(file.read_bytes())
    return [sum(phases[at : at + 3]) for at in range(0, len(phases), 3)]
