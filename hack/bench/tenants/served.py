"""The extender as it is shipped, asked over HTTP by an honest scheduler while a tenant attacks, in seconds.

Two schedulers ask at once. One asks for the pods of honest gangs, the other for those of the attacker as fast as it is
answered. A third caller asks whether the extender is alive. The cluster is that of `hack.bench extender`.

The kernel counts for how long the extender was ready to run and had no core, since others use the machine. That time is
taken off each answer; what the wall clock says is kept beside it.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hack.bench.extender import cluster
from hack.bench.extender.caller import Caller, child, read_readiness, url_of, wait_for, wait_for_file
from hack.bench.tenants import objects
from hack.bench.tenants.attacks import FLIP_S, NAMESPACE, Attack
from hack.bench.tenants.objects import Raw
from turnout.cli.verb_support.child_programs import free_port

NODES, PODS, EVENTS_PER_S = 1_000, 4_000, 50.0
PROBE_EACH_S, PAUSE_S = 0.01, 0.002
LIVING = 8  # honest gangs at a time
_HONEST = f"/api/v1/namespaces/{cluster.NAMESPACE}/pods"
_GREEDY = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(slots=True)
class RequestTimes:
    """The measurements of an extender beside an attacker, in seconds."""

    filter_s: list[float] = field(
        default_factory=list
    )  # of each honest request, less the time of other work on the extender's core
    wall_s: list[float] = field(default_factory=list)  # of each honest request, by the wall clock
    healthz_s: list[float] = field(default_factory=list)  # of each probe
    greedy: int = 0  # questions of the attacker that were answered
    unanswered: int = 0  # probes that were not answered with 200


class ServedExtender:
    """An extender that runs, and callers of it, from `serve_extender`."""

    def __init__(self, stack: ExitStack, api: str, verbs: str, pages: str, process: int) -> None:
        self._stack, self._verbs, self._pages = stack, verbs, pages
        self._schedstat = Path(f"/proc/{process}/schedstat")
        self._api, self._ours = self._caller(api), self._caller(verbs)
        names = ",".join(json.dumps(cluster.node_name(number)) for number in range(NODES))
        self._names, self._gangs = names.encode(), cluster.gangs(3)
        self._api.json("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def _caller(self, url: str) -> Caller:
        caller = Caller(url)
        self._stack.callback(caller.close)
        return caller

    def ask_during(self, attack: Attack, questions: int, quick: bool) -> RequestTimes:
        """Ask the extender at least `questions` honest questions during an attack; return the times.

        All pods of the honest tenants and of the attacker are deleted afterwards. quick: the attack is small.
        """
        times, requests, stop = RequestTimes(), dict[str, bytes](), threading.Event()
        self._write(attack, 0, quick, requests)
        threads = [
            threading.Thread(target=self._ask_for_attacker, args=(requests, times, stop)),
            threading.Thread(target=self._probe, args=(times, stop)),
        ]
        for thread in threads:
            thread.start()
        try:
            self._ask_for_honest_gangs(attack, questions, quick, requests, times)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for name in requests:
            self._api.json("DELETE", f"{_GREEDY}/{name}?gracePeriodSeconds=0")
        return times

    def _ask_for_honest_gangs(
        self, attack: Attack, questions: int, quick: bool, requests: dict[str, bytes], times: RequestTimes
    ) -> None:
        """Ask filter about pods of honest gangs and bind them, while the attack goes on, until `questions` are
        answered.

        requests: the attacker's pods by name, as requests. times: the times are added to it. Old gangs are deleted.
        quick: the attack is small.
        """
        living: list[list[str]] = []
        seconds = count(FLIP_S, FLIP_S)
        while len(times.filter_s) < questions:
            self._write(attack, next(seconds), quick, requests)
            gang = next(self._gangs)
            pods = [cluster.pod(f"{gang.name}-{at}", gang.gpus, "", gang, at) for at in range(gang.pods)]
            group = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{cluster.NAMESPACE}/podgroups"
            self._api.json("POST", group, cluster.pod_group(gang))
            created = [self._api.json("POST", _HONEST, each) for each in pods]
            for each in created:
                idle_s = self._waited_s()
                answer, took_s = self._ours.call("POST", "/filter", self._body(each))
                times.wall_s.append(took_s)
                times.filter_s.append(max(0.0, took_s - self._waited_s() + idle_s))
                if candidates := json.loads(answer).get("NodeNames"):
                    path = f"{_HONEST}/{each['metadata']['name']}/binding"
                    self._api.json("POST", path, {"target": {"name": candidates[0]}})
                time.sleep(PAUSE_S)
            living.append([each["metadata"]["name"] for each in created])
            if len(living) > LIVING:
                self._delete(living.pop(0))
        for names in living:
            self._delete(names)

    def _waited_s(self) -> float:
        """Return the seconds that the extender was ready to run and had no core, since it started."""
        return int(self._schedstat.read_text().split()[1]) / 1e9

    def _delete(self, names: list[str]) -> None:
        """Delete these pods of honest gangs."""
        for name in names:
            self._api.json("DELETE", f"{_HONEST}/{name}?gracePeriodSeconds=0")

    def _write(self, attack: Attack, second: int, quick: bool, requests: dict[str, bytes]) -> None:
        """Write the attacker's pods of this second; a pod of the same name is deleted first.

        requests: gets the requests about the attacker's pods, by pod name. second: of the attack. quick: the attack is
        small.
        """
        for attack_pod in attack(second, quick):
            name, spec = attack_pod["metadata"]["name"], attack_pod["spec"]
            if spec.get("nodeName") == objects.node_name(0):
                spec["nodeName"] = cluster.node_name(0)
            spec["containers"][0]["image"] = "train:1"
            for key in ("uid", "creationTimestamp"):
                attack_pod["metadata"].pop(key)
            if name in requests:
                self._api.json("DELETE", f"{_GREEDY}/{name}?gracePeriodSeconds=0")
            requests[name] = self._body(self._api.json("POST", _GREEDY, attack_pod))

    def _body(self, attack_pod: Raw) -> bytes:
        """Return the filter request about a pod."""
        return b'{"Pod":%b,"Nodes":null,"NodeNames":[%b]}\n' % (json.dumps(attack_pod).encode(), self._names)

    def _ask_for_attacker(self, requests: dict[str, bytes], times: RequestTimes, stop: threading.Event) -> None:
        """Ask filter about the attacker's pods in turn until `stop` is set, or the extender refuses because it is busy.

        times: counts these requests. requests: the attacker's pods by name, as requests.
        """
        caller = Caller(self._verbs)
        with suppress(RuntimeError):  # a refusal because the extender is busy ends this scheduler alone
            while not stop.is_set():
                for body in list(requests.values()) or [b""]:
                    if body:
                        caller.call("POST", "/filter", body)
                        times.greedy += 1
                    if stop.wait(PAUSE_S):
                        break
        caller.close()

    def _probe(self, times: RequestTimes, stop: threading.Event) -> None:
        """Ask /healthz every PROBE_EACH_S seconds until `stop` is set.

        times: gets the times, and counts probes without an answer.
        """
        caller = Caller(self._pages)
        while not stop.wait(PROBE_EACH_S):
            try:
                idle_s = self._waited_s()
                took_s = caller.call("GET", "/healthz", b"")[1]
                times.healthz_s.append(max(0.0, took_s - self._waited_s() + idle_s))
            except RuntimeError:
                times.unanswered += 1
                caller.close()
                caller = Caller(self._pages)
        caller.close()


@contextmanager
def serve_extender() -> Iterator[ServedExtender]:
    """Start an API server with a cluster, and the extender; both end with the block."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, pages = Path(name), free_port()
        config, port_file = folder / "kubeconfig", folder / "port"
        size = {"nodes": NODES, "pods": PODS, "events_per_s": EVENTS_PER_S}
        api = stack.enter_context(child("api", str(config), json.dumps(size)))
        server = json.loads(wait_for_file(config, api))["clusters"][0]["cluster"]["server"]
        flags = ["--kubeconfig", str(config), "--bind", "127.0.0.1:0", "--metrics-bind", f"127.0.0.1:{pages}"]
        flags += ["--port-file", str(port_file), "--log-level", "error"]
        flags += ["--configmap", f"{cluster.MAP_NAMESPACE}/{cluster.MAP_NAME}"]
        ours = stack.enter_context(child("ours", str(folder / "times"), *flags))
        wait_for(lambda: read_readiness(pages), ours)
        verbs = url_of(int(wait_for_file(port_file, ours)))
        yield ServedExtender(stack, server, verbs, url_of(pages), ours.pid)
