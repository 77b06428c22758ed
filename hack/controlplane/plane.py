"""Starts, restarts and stops one control plane on free loopback ports. All of its programs end with it.

The calls block and may come from any thread (an async caller may use asyncio.to_thread). Objects are created through
api.py. programs.py has the command lines, supervisor.py ends the processes.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hack.controlplane import scheduler_config
from hack.controlplane.api import Api
from hack.controlplane.certs import Authority
from hack.controlplane.children import Children
from hack.controlplane.errors import ApiError, ControlPlaneError, NotReady
from hack.controlplane.servers import programs, training, wipe
from hack.controlplane.tools import cache

READY_WITHIN_S = 60.0  # only a bound: ready is some 2.5 s on two quiet cores, and test machines are not quiet
LOOK_EACH_S = 0.02
TAIL_LINES = 25
PORT_TRIES = 3
TAKEN = "address already in use"  # Go's words for EADDRINUSE
SERVERS = ("etcd", "kube-apiserver")
_PORTS, _TRIES = range(10_240, 29_000), 200


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports on which nobody listens now.

    The ports lie below the kernel's range for outgoing connections, so that no such connection takes a port before its
    server has bound it. Raises ControlPlaneError if _TRIES random ports of _PORTS are all taken.
    """
    sockets = [socket.socket() for _ in range(count)]
    rng = random.SystemRandom()
    try:
        for each in sockets:
            _bind(each, rng)
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _bind(listener: socket.socket, rng: random.Random) -> None:
    """Bind the socket to a random free port of _PORTS. Raises ControlPlaneError after _TRIES attempts."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            listener.bind((programs.HOST, rng.choice(_PORTS)))
            return
    raise ControlPlaneError(f"none of {_TRIES} ports from {_PORTS.start} to {_PORTS.stop} is free")


class ControlPlane:
    """etcd and an API server, and optional programs: scheduler, controller manager, kwok, training-operator.

    release: NEXT for the API server and the scheduler of the newer Kubernetes. fork: True to run our programs in forks
    of a process that has imported them (forked.py), which is fast and good for tests. False to start them as users do,
    for measurements. ports: chooses free ports, as `free_ports` does. Raises NotBuilt if a server's program is missing.
    Every method that starts an optional program raises NotBuilt if the program is missing, and NotReady if it ends or
    is not ready within READY_WITHIN_S.
    """

    def __init__(
        self,
        emulated_version: str | None = None,
        apiserver_flags: Sequence[str] = (),
        ports: Callable[[int], list[int]] = free_ports,
        release: str = "",
        fork: bool = False,
    ) -> None:
        self.emulated_version = emulated_version
        self.token = secrets.token_hex(16)
        self.ready_after_s = 0.0
        self._flags, self._ports = tuple(apiserver_flags), ports
        self._closers: list[Callable[[], None]] = []
        self._etcd, self._apiserver = cache.binary("etcd"), cache.binary(f"kube-apiserver{release}")
        self._release, self._fork = release, fork

    def start(self) -> Self:
        """Start etcd and the API server, and wait until the API server is ready; return this object.

        Raises NotReady if one of them ends, or if the API server is not ready within READY_WITHIN_S. Then nothing runs.
        """
        began_s = time.monotonic()
        self._children = Children(fork=self._fork)
        self.supervisor_pid = self._children.pid  # of the process that holds all others
        try:
            self.folder = self._children.folder
            self.authority = Authority(self.folder / "pki")
            self.ca = self.authority.ca
            self._files = programs.server_files(self.folder, self.authority, self.token)
            self.etcd_ca = self._files.etcd.ca
            self._trust = ssl.create_default_context(cafile=str(self.ca))
            self._on_free_ports(3, SERVERS, self._start_server)
            self.wait_ready("kube-apiserver", f"{self.url}/api/v1/namespaces/default")
        except BaseException:
            self.stop()
            raise
        self.ready_after_s = time.monotonic() - began_s
        self._at_first = wipe.snapshot(self.etcd)
        return self

    def reset(self) -> bool:
        """End all programs but etcd and the API server, and restore all objects to their state after the start.

        Returns False, with the objects unchanged, if the control plane cannot be used again. Raises NotReady if etcd or
        the API server has ended.
        """
        if fault := self.fault():
            raise fault
        self._children.stop_all_but(*SERVERS)
        while self._closers:
            self._closers.pop()()
        return wipe.restore(self.etcd, self._at_first)

    def fault(self) -> NotReady | None:
        """Return the error, with its last lines of log, if etcd or the API server has ended; else None."""
        return next(filter(None, map(self._end_error, SERVERS)), None)

    def stop(self) -> None:
        """End all programs and remove the folder. Does nothing the second time."""
        self._children.close()
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_scheduler(
        self,
        config: Path | Mapping[str, Any] | None = None,
        emulated_version: str | None = None,
        flags: Sequence[str] = (),
        name: str = "kube-scheduler",
        binary: Path | None = None,
    ) -> None:
        """Start a scheduler and wait until it is ready. Raises NotReady if it ends or is not ready in time.

        config: KubeSchedulerConfiguration, as a file or its content; None for the defaults. Its kubeconfig is filled in
        and leader election is switched off. emulated_version: None for that of the plane. binary: of another scheduler,
        such as koord-scheduler. flags: further ones, in place of verbosity 5. name: of the program and its log.
        """
        filled = scheduler_config.with_connection(config, self.user_kubeconfig("system:kube-scheduler"))
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(filled))
        binary = binary or cache.binary(f"kube-scheduler{self._release}")
        version = emulated_version or self.emulated_version

        def start_on_port(port: int) -> None:
            """Start it on this port, and wait until it is ready. Raises the errors of `wait_ready`."""
            self._children.start(name, programs.scheduler(binary, path, self._files.pair, port, version, flags))
            self.scheduler_url = f"https://{programs.HOST}:{port}"
            self.wait_ready(name, f"{self.scheduler_url}/readyz")

        self._on_free_ports(1, (name,), start_on_port)

    def stop_scheduler(self, name: str = "kube-scheduler") -> None:
        """End the scheduler of this name."""
        self._children.stop(name)

    def start_controller_manager(
        self, controllers: Sequence[str] = programs.CONTROLLERS, flags: Sequence[str] = ()
    ) -> None:
        """Start kube-controller-manager with only these controllers, and wait until it is ready.

        flags: further ones. Raises NotReady if it ends or is not ready in time.
        """
        binary = cache.binary("kube-controller-manager")

        def start_on_port(port: int) -> None:
            """Start it on this port, and wait until it is ready. Raises the errors of `wait_ready`."""
            argv = programs.controller_manager(
                binary, self.kubeconfig, self._files, port, controllers, self.emulated_version, flags
            )
            self._children.start("kube-controller-manager", argv)
            self.wait_ready("kube-controller-manager", f"https://{programs.HOST}:{port}/healthz")

        self._on_free_ports(1, ("kube-controller-manager",), start_on_port)

    def start_kwok(self, flags: Sequence[str] = ()) -> None:
        """Start kwok, which makes every node alive and every bound pod run; wait until it is ready.

        flags: further ones. Raises NotReady if it ends or is not ready in time.
        """
        binary, stages = cache.binary("kwok"), Path(__file__).with_name("stages.yaml")

        def start_on_port(port: int) -> None:
            """Start it on this port, and wait until it is ready. Raises the errors of `wait_ready`."""
            self._children.start("kwok", programs.kwok(binary, self.kubeconfig, stages, port, flags))
            self.wait_ready("kwok", f"http://{programs.HOST}:{port}/readyz")

        self._on_free_ports(1, ("kwok",), start_on_port)

    def start_training_operator(self, gang_scheduler: str | None = None, flags: Sequence[str] = ()) -> None:
        """Start training-operator for PyTorchJobs, and wait until it is ready.

        If only one training-operator can run on this machine, wait until no other runs. gang_scheduler: value of
        --gang-scheduler-name, None for none. flags: further ones. Sets `training_operator_url`, where its metrics are.
        Raises NotReady if it ends, or if its turn, its certificates or its readiness do not come in time.
        """
        certificates, is_separate = self.folder / "webhook-certificates", training.may_have_folder()
        if not is_separate:
            certificates = training.CERTIFICATES
            self._closers.append(training.take_turn())
        training.install(self.request, cache.training_crds(), certificates)
        health, metrics, webhook = self._ports(3)
        binary = cache.binary("training-operator")
        ports = (health, metrics, webhook)
        self.training_operator_url = f"http://{programs.HOST}:{metrics}"  # of its metrics
        argv = programs.training_operator(binary, self.kubeconfig, ports, gang_scheduler, flags)
        self._children.start("training-operator", training.with_folder(certificates, argv) if is_separate else argv)
        training.bring_certificates(self.request, certificates, lambda: self._check_alive("training-operator"))
        self.wait_ready("training-operator", f"http://{programs.HOST}:{health}/readyz")

    def start_program(self, name: str, argv: list[str], ready_url: str | None = None) -> int:
        """Start a program of any kind, which ends with the plane; return its pid. name: also of its log.

        A running program of this name is ended first. ready_url: wait until it answers 200; None to wait for nothing.
        Raises NotReady if the program ends or does not answer in time.
        """
        pid = self._children.start(name, argv)
        if ready_url:
            self.wait_ready(name, ready_url)
        return pid

    def stop_program(self, name: str) -> None:
        """End one program by SIGTERM, and by SIGKILL after a few seconds."""
        self._children.stop(name)

    def kill_program(self, name: str) -> None:
        """Kill one program by SIGKILL. Raises ControlPlaneError if it was never started."""
        self._children.signal(name, signal.SIGKILL)

    def pid(self, name: str) -> int | None:
        """Return the pid of a program, also after its end; None if it was never started or was stopped."""
        return self._children.state(name)[0]

    def restart_apiserver(self) -> None:
        """Stop the API server and start it again on the same port with the same data; wait until it is ready.

        Raises NotReady if it ends or is not ready within READY_WITHIN_S.
        """
        self._children.stop("kube-apiserver")
        self._children.start("kube-apiserver", self._apiserver_argv)
        self.wait_ready("kube-apiserver", f"{self.url}/readyz")

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user with a certificate, and return its file. The user has only the rights that
        RBAC gives.

        groups: of the user.
        """
        pair = self.authority.user(name, tuple(groups))
        return self._write_kubeconfig(pair.cert.stem, programs.certificate_user(pair))

    def service_account_token(self, namespace: str, name: str, expires_s: int = 3600) -> str:
        """Return a new token of a ServiceAccount. expires_s: its lifetime in seconds. Raises ApiError if there is no
        such account.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec = {"expirationSeconds": expires_s}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.request("POST", path, body)["status"]["token"])

    def service_account_kubeconfig(self, namespace: str, name: str, expires_s: int = 3600) -> Path:
        """Write a kubeconfig for a ServiceAccount, and return its file. The account has only the rights that RBAC
        gives.

        expires_s: lifetime of its token in seconds. Raises ApiError if there is no such account.
        """
        user = {"token": self.service_account_token(namespace, name, expires_s)}
        return self._write_kubeconfig(f"account-{namespace}-{name}", user)

    def api(self, token: str | None = None) -> Api:
        """Return a client, to be used with `async with`. token: None for the administrator's."""
        return Api(self.url, self.ca, token or self.token)

    def logs(self, name: str) -> str:
        """Return all that a program has written to stdout and stderr; "" if it was never started."""
        return self._children.log(name)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request as the administrator and return the decoded JSON answer. Blocks.

        body: sent as JSON, None for none; for PATCH a merge patch. Raises ApiError for an error answer, and OSError if
        the API server does not answer.
        """
        content = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        call = urllib.request.Request(self.url + path, content, self._headers(kind), method=method)
        try:
            with urllib.request.urlopen(call, timeout=30, context=self._trust) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ApiError(method, path, error.code, error.read().decode(errors="replace")) from error

    def wait_ready(self, name: str, url: str, within_s: float = READY_WITHIN_S, needs: Sequence[str] = ()) -> None:
        """Wait until a URL answers 200.

        Raises NotReady if the program `name`, or one of `needs`, ends, and after `within_s` seconds.
        """
        until_s = time.monotonic() + within_s
        reason = "nothing"
        while time.monotonic() < until_s:
            for each in (name, *needs):
                self._check_alive(each)
            try:
                call = urllib.request.Request(url, headers=self._headers())
                with urllib.request.urlopen(call, timeout=5, context=self._trust):
                    return
            except OSError as error:  # HTTPError and URLError are OSErrors
                reason = str(error)
            time.sleep(LOOK_EACH_S)
        raise NotReady(name, f"was not ready within {within_s:.0f} s ({reason})", self._tail(name))

    def _end_error(self, name: str) -> NotReady | None:
        """Return an error with the last lines of the log of the program `name` if it has ended, else None."""
        exit_status = self._children.state(name)[1]
        return None if exit_status is None else NotReady(name, f"ended with status {exit_status}", self._tail(name))

    def _check_alive(self, name: str) -> None:
        """Raise NotReady if the program `name` has ended. Does nothing if it was never started."""
        if ended := self._end_error(name):
            raise ended

    def _tail(self, name: str) -> str:
        return "\n".join(self.logs(name).splitlines()[-TAIL_LINES:])

    def _headers(self, kind: str = "application/json") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": kind}

    def _start_server(self, client: int, peer: int, secure: int) -> None:
        """Start etcd and the API server on these ports, and wait until the API server is ready. Set the addresses and
        the kubeconfig.

        client, peer: ports of etcd. secure: of the API server. Raises the errors of `wait_ready`.
        """
        self.url = f"https://{programs.HOST}:{secure}"
        self.etcd = wipe.Etcd(f"https://{programs.HOST}:{client}", self._files.etcd.context())
        self.kubeconfig = self._write_kubeconfig("admin", {"token": self.token})
        self._children.start("etcd", programs.etcd(self._etcd, self.folder, self._files.etcd, client, peer))
        self._apiserver_argv = programs.apiserver(
            self._apiserver, self._files, client, secure, self.emulated_version, self._flags
        )
        self._children.start("kube-apiserver", self._apiserver_argv)
        self.wait_ready("kube-apiserver", f"{self.url}/readyz", needs=("etcd",))

    def _on_free_ports(self, count: int, names: Sequence[str], start: Callable[..., None]) -> None:
        """Call `start` with `count` free ports. If a port was taken meanwhile, try other ports, PORT_TRIES times in
        all.

        A port was taken if NotReady has TAKEN in its log: the programs `names` are stopped then. start: starts these
        programs on the given ports. Any other NotReady, and that of the last try, is raised.
        """
        for _ in range(PORT_TRIES - 1):
            try:
                return start(*self._ports(count))
            except NotReady as error:
                if TAKEN not in error.tail:
                    raise
                for name in reversed(names):
                    self._children.stop(name)
        return start(*self._ports(count))

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        """Write NAME.kubeconfig, which only its owner can read, and return its path. user: the credentials."""
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(programs.kubeconfig(self.url, self.ca, user))
        return path
