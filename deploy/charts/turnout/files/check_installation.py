"""Check an installation from a pod of its cluster, as `helm test` does: the extender over TLS, the kinds of jobs."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 5.0  # of one connection
_POD = {"metadata": {"name": "helm-test", "namespace": "default", "uid": "helm-test"}, "spec": {"containers": []}}


class Fault(Exception):
    """A check that has failed; the message says what to look at."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each check. Return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="helm test", description="Check an installation of Turnout.")
    parser.add_argument("--extender", default="", metavar="HOST:PORT", help="the extender's Service")
    parser.add_argument("--tls", type=Path, default=Path("/tls"), help="tls.crt, tls.key and ca.crt of kube-scheduler")
    parser.add_argument(
        "--served", action="append", default=[], metavar="GROUP/VERSION/RESOURCE", help="a kind of jobs"
    )
    parser.add_argument("--patience-s", type=float, default=10.0, help="seconds for which a failed check is retried")
    args = parser.parse_args(argv)
    checks: list[tuple[str, Callable[[], None]]] = [
        (f"the API server serves {name}", partial(ask_api_server, name)) for name in args.served
    ]
    if args.extender:
        certified, stranger = partial(ask_extender, args.extender, args.tls), partial(refuse, args.extender, args.tls)
        checks.append((f"the extender answers kube-scheduler's certificate at {args.extender}", certified))
        checks.append(("the extender refuses a caller without a certificate", stranger))
    until_s = time.monotonic() + args.patience_s
    passed = [passes(title, check, until_s) for title, check in checks]
    return int(not all(passed))


def passes(title: str, check: Callable[[], None], until_s: float) -> bool:
    """Retry a check each second until it passes or the time is up. Print its line."""
    while True:
        try:
            check()
        except (Fault, OSError, ValueError, http.client.HTTPException) as error:
            if time.monotonic() >= until_s:
                print(f"FAILED  {title}: {error or type(error).__name__}", flush=True)
                return False
            time.sleep(1)
        else:
            print(f"ok      {title}", flush=True)
            return True


def ask_extender(address: str, tls: Path) -> None:
    """Ask about a pod that no map knows, with kube-scheduler's certificate. Raises Fault or OSError."""
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    answer = json.loads(_answer(address, context))
    if answer.get("Error"):
        raise Fault(f"the extender says: {answer['Error']}")


def refuse(address: str, tls: Path) -> None:
    """Ask without a certificate, which has to be refused. Raises Fault."""
    try:
        _answer(address, ssl.create_default_context(cafile=str(tls / "ca.crt")))
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return
    raise Fault("the extender has answered it; is --client-ca set?")


def ask_api_server(name: str) -> None:
    """Look whether the API server serves a resource. Raises Fault or OSError."""
    group, version, resource = name.split("/")
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with closing(http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)) as connection:
        token = (ACCOUNT / "token").read_text()
        connection.request("GET", f"/apis/{group}/{version}", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
    listed = {each["name"] for each in json.loads(text)["resources"]} if status == 200 else set()
    if resource not in listed:
        raise Fault(
            f"not in the list (status {status}); is its definition installed (kubectl get crd {resource}.{group})?"
        )


def _answer(address: str, context: ssl.SSLContext) -> bytes:
    body = json.dumps({"pod": _POD, "nodenames": []})
    with closing(http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)) as connection:
        connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
    if status != 200:
        raise Fault(f"status {status}: {text.decode(errors='replace')[:200]}")
    return text


if __name__ == "__main__":
    sys.exit(main())
