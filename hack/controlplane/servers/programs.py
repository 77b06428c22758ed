"""The command lines of the programs, and their certificates and kubeconfigs. plane.py starts the programs.

Only the flags that loopback requires are set; comments give the reason for unusual ones.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.controlplane.certs import Authority, Pair, signing_key

HOST = "127.0.0.1"
ALWAYS_ALLOW = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics"
ISSUER = "https://kubernetes.default.svc"
# The controllers that create pods of a Job or a StatefulSet and delete them afterwards.
CONTROLLERS = (
    "job-controller",
    "statefulset-controller",
    "deployment-controller",
    "replicaset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "serviceaccount-controller",
    "disruption-controller",
)


@dataclass(frozen=True, slots=True)
class EtcdFiles:
    """The files of etcd's TLS: an authority of its own, so that no user's certificate of the cluster opens etcd."""

    ca: Path
    server: Pair
    client: Pair

    @classmethod
    def write(cls, folder: Path) -> EtcdFiles:
        """Write a new authority, a serving pair and a client's pair into a folder."""
        authority = Authority(folder, "turnout-test-etcd-ca")
        return cls(authority.ca, authority.server("server", (HOST, "localhost")), authority.user("kube-apiserver"))

    def context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts this etcd and shows the client's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.client.cert, self.client.key)
        return context


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The files that the API server reads."""

    ca: Path  # authority of client certificates
    pair: Pair  # serving certificate and its key
    tokens: Path  # of known users
    signing_key: Path  # of service accounts
    to_kubelets: Pair  # client certificate for kubelets, from which the API server fetches logs
    etcd: EtcdFiles  # for the connection to etcd


def server_files(folder: Path, authority: Authority, token: str) -> ServerFiles:
    """Write the files that the API server reads, and return their paths. token: the administrator's.

    authority: signs the certificates. folder: gets the files.
    """
    tokens = folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(f'{token},turnout-admin,turnout-admin,"system:masters"\n')
    return ServerFiles(
        authority.ca,
        authority.server("server", (HOST, "localhost", "kubernetes.default.svc")),
        tokens,
        signing_key(folder / "pki" / "accounts.key"),
        authority.user("apiserver-to-kubelets"),
        EtcdFiles.write(folder / "pki" / "etcd"),
    )


def etcd(binary: Path, folder: Path, files: EtcdFiles, client_port: int, peer_port: int) -> list[str]:
    """Return etcd's command line: one member, without fsync, since the data is lost with the plane anyway.

    Only clients with the client's certificate may call it: pods of tests may run as processes of the same user. binary:
    the program. folder: of its data. client_port, peer_port: on which it listens.
    """
    client, peer = f"https://{HOST}:{client_port}", f"https://{HOST}:{peer_port}"
    return [
        str(binary),
        f"--data-dir={folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={files.ca}",
        f"--cert-file={files.server.cert}",
        f"--key-file={files.server.key}",
        f"--client-cert-file={files.client.cert}",  # with it the JSON gateway calls etcd itself
        f"--client-key-file={files.client.key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={files.ca}",
        f"--peer-cert-file={files.server.cert}",
        f"--peer-key-file={files.server.key}",
    ]


def apiserver(
    binary: Path, files: ServerFiles, etcd_port: int, port: int, emulated_version: str | None, extra: Sequence[str]
) -> list[str]:
    """Return the API server's command line. emulated_version: None for its own. extra: further flags.

    binary: the program. etcd_port: on which etcd serves clients. port: on which it listens.
    """
    return [
        str(binary),
        f"--etcd-servers=https://{HOST}:{etcd_port}",
        f"--etcd-cafile={files.etcd.ca}",
        f"--etcd-certfile={files.etcd.client.cert}",
        f"--etcd-keyfile={files.etcd.client.key}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",  # the reconciler refuses to publish a loopback address
        f"--secure-port={port}",
        f"--tls-cert-file={files.pair.cert}",
        f"--tls-private-key-file={files.pair.key}",
        f"--client-ca-file={files.ca}",
        f"--token-auth-file={files.tokens}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={files.signing_key}",
        f"--service-account-signing-key-file={files.signing_key}",
        # A node's own addresses lead nowhere here: who plays its kubelet says in ExternalIP where it listens.
        "--kubelet-preferred-address-types=ExternalIP,InternalIP",
        f"--kubelet-client-certificate={files.to_kubelets.cert}",
        f"--kubelet-client-key={files.to_kubelets.key}",
        "--service-cluster-ip-range=127.96.0.0/24",  # loopback: a test may serve at one, in place of kube-proxy
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        # ServiceAccount would hold every pod until a controller made its account; TaintNodesByCondition would keep
        # the not-ready taint on every node, since nothing here takes it off.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        *_emulation_flags(emulated_version),
        *extra,
    ]


def scheduler(
    binary: Path, config: Path, pair: Pair, port: int, emulated_version: str | None, extra: Sequence[str]
) -> list[str]:
    """Return kube-scheduler's command line.

    config: its configuration file. pair: its serving certificate. port: of HTTPS. emulated_version: None for its own.
    extra: further flags; without any, verbosity 5, below which failures of an extender are not logged.
    """
    return [
        str(binary),
        f"--config={config}",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--tls-cert-file={pair.cert}",
        f"--tls-private-key-file={pair.key}",
        "--authentication-skip-lookup=true",
        ALWAYS_ALLOW,
        *_emulation_flags(emulated_version),
        *(extra or ["-v=5"]),
    ]


def controller_manager(
    binary: Path,
    kubeconfig: Path,
    files: ServerFiles,
    port: int,
    controllers: Sequence[str],
    emulated_version: str | None,
    extra: Sequence[str],
) -> list[str]:
    """Return kube-controller-manager's command line, with only the named controllers. extra: further flags.

    kubeconfig: its credentials. files: of the API server. port: of HTTPS. emulated_version: None for its own.
    """
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        f"--service-account-private-key-file={files.signing_key}",
        f"--root-ca-file={files.ca}",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--tls-cert-file={files.pair.cert}",
        f"--tls-private-key-file={files.pair.key}",
        "--authentication-skip-lookup=true",
        ALWAYS_ALLOW,
        *_emulation_flags(emulated_version),
        *extra,
    ]


def kwok(binary: Path, kubeconfig: Path, config: Path, port: int, extra: Sequence[str]) -> list[str]:
    """Return kwok's command line, which does a kubelet's work for every node.

    config: our stages, since kwok's own end the pods of Jobs at once. extra: further flags. port: of its health checks.
    """
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=true",
        "--node-lease-duration-seconds=40",
        "--cidr=10.128.0.0/9",
        f"--config={config}",
        f"--server-address={HOST}:{port}",
        *extra,
    ]


def training_operator(
    binary: Path, kubeconfig: Path, ports: tuple[int, int, int], gang_scheduler: str | None, extra: Sequence[str]
) -> list[str]:
    """Return training-operator's command line, for PyTorchJobs only. ports: (health, metrics, webhook).

    gang_scheduler: value of --gang-scheduler-name, None for none. extra: further flags.
    """
    health, metrics, webhook = ports
    gang = [f"--gang-scheduler-name={gang_scheduler}"] if gang_scheduler else []
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        "--enable-scheme=pytorchjob",
        f"--health-probe-bind-address={HOST}:{health}",
        f"--metrics-bind-address={HOST}:{metrics}",
        f"--webhook-server-port={webhook}",
        *gang,
        *extra,
    ]


def kubeconfig(url: str, ca: Path, user: dict[str, str]) -> str:
    """Return a kubeconfig as JSON. url: of the API server. ca: file of its authority, which is embedded.

    user: the credentials, as a kubeconfig has them.
    """
    cluster = {"server": url, "certificate-authority-data": base64_of(ca)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "turnout",
            "contexts": [{"name": "turnout", "context": {"cluster": "turnout", "user": "turnout"}}],
            "clusters": [{"name": "turnout", "cluster": cluster}],
            "users": [{"name": "turnout", "user": user}],
        },
        indent=1,
    )


def certificate_user(pair: Pair) -> dict[str, str]:
    """Return the `user` entry of a kubeconfig that authenticates by a client certificate."""
    return {"client-certificate-data": base64_of(pair.cert), "client-key-data": base64_of(pair.key)}


def base64_of(file: Path) -> str:
    """Return the content of a file in base64, as kubeconfigs and Secrets hold it."""
    return base64.b64encode(file.read_bytes()).decode()


def _emulation_flags(version: str | None) -> list[str]:
    return [f"--emulated-version={version}"] if version else []
