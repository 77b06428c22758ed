"""Objects that training-operator 1.8.1 needs to start: its CRDs, a namespace, a Secret, a webhook configuration.

training-operator reads its webhook certificate from one fixed folder; in a pod, its Secret is mounted there. Each
operator gets its own folder at this path, in a mount namespace. If the machine allows no mount namespace, a file lock
lets only one operator run at a time.
"""

from __future__ import annotations

import base64
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hack.controlplane.errors import ApiError, NotReady

CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")  # fixed in its source, pkg/cert/cert.go
NAMESPACE, SECRET = "kubeflow", "training-operator-webhook-cert"
WEBHOOK = "validator.training-operator.kubeflow.org"
FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
TURN_WITHIN_S = 180.0
SECRET_WITHIN_S = 60.0
LOOK_EACH_S = 0.05

Request = Callable[..., Any]


def with_folder(folder: Path, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` with `folder` mounted at the operator's fixed folder of
    certificates.
    """
    mapped = ["--map-root-user"] if os.geteuid() else []
    script = 'mount --bind "$0" "$1" && shift && exec "$@"'
    return ["unshare", "--mount", *mapped, "sh", "-c", script, str(folder), str(CERTIFICATES), *command]


@cache
def may_have_folder() -> bool:
    """Return True if this user may run a command in its own mount namespace. Creates the folder CERTIFICATES."""
    CERTIFICATES.mkdir(parents=True, exist_ok=True)
    try:
        command = with_folder(CERTIFICATES, ["true"])
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except OSError:
        return False


def take_turn() -> Callable[[], None]:
    """Wait until no other operator runs on this machine, and return a function that ends this turn.

    The kernel ends the turn if this process dies. Raises NotReady after TURN_WITHIN_S.
    """
    lock = os.open(Path(tempfile.gettempdir()) / "turnout-training-operator.lock", os.O_CREAT | os.O_RDWR, 0o666)
    until_s = time.monotonic() + TURN_WITHIN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                os.close(lock)
                raise NotReady("training-operator", f"had no turn in {TURN_WITHIN_S:.0f} s", "") from None
            time.sleep(LOOK_EACH_S)
        else:
            return lambda: os.close(lock)


def install(request: Request, crds: Path, certificates: Path) -> None:
    """Create the objects that the operator expects, and empty its folder of certificates.

    crds: folder of its definitions. certificates: the folder in which it looks for its own certificate. request: sends
    a request: (method, path, body) -> decoded answer.
    """
    for file in sorted(crds.glob("kubeflow.org_*.yaml")):
        definition = yaml.load(file.read_text(), yaml.CSafeLoader)  # a megabyte: 4 s in Python, 0.3 s in C
        _create(request, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    meta = {"apiVersion": "v1", "metadata": {"name": NAMESPACE}}
    _create(request, "/api/v1/namespaces", {**meta, "kind": "Namespace"})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}
    _create(request, f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    webhook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [],
    }
    _create(request, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", webhook)
    certificates.mkdir(parents=True, exist_ok=True)
    for name in FILES:  # the operator would use those of an earlier run
        (certificates / name).unlink(missing_ok=True)


def bring_certificates(request: Request, certificates: Path, check_alive: Callable[[], None]) -> None:
    """Wait until the operator has filled its Secret, and copy the content into the folder from which it reads it.

    In a cluster a volume does this. certificates: that folder. check_alive: raises NotReady if the operator has ended.
    Raises NotReady after SECRET_WITHIN_S. request: as in `install`.
    """
    until_s = time.monotonic() + SECRET_WITHIN_S
    while time.monotonic() < until_s:
        check_alive()
        content = request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}").get("data") or {}
        if all(content.get(name) for name in FILES):
            for name in FILES:
                (certificates / name).write_bytes(base64.b64decode(content[name]))
            return
        time.sleep(LOOK_EACH_S)
    raise NotReady("training-operator", f"left its Secret empty for {SECRET_WITHIN_S:.0f} s", "")


def _create(request: Request, path: str, body: dict[str, Any]) -> None:
    """Create an object unless it exists already. Raises ApiError for other failures."""
    try:
        request("POST", path, body)
    except ApiError as error:
        if error.status != 409:  # it exists: an earlier operator on this plane created it
            raise
