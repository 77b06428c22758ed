"""The errors of calls to the API server: one class for each thing that a caller can do about one."""

from __future__ import annotations


class KubeError(Exception):
    """Base of everything this package raises."""


class BadQuantity(KubeError):
    """A text that is no Kubernetes quantity. Treat the object that carries it as unreadable."""

    def __init__(self, text: object) -> None:
        super().__init__(f"{str(text)[:80]!r} is no Kubernetes quantity")
        self.text = text


class TooComplex(KubeError):
    """A pod that would cost too many steps on every node. Treat it as unreadable."""

    def __init__(self, what: str, count: int, most: int) -> None:
        super().__init__(f"the pod has {count} {what}: at most {most} are read")
        self.what, self.count, self.most = what, count, most


class BadKubeconfig(KubeError):
    """No usable way to the API server is configured. Tell the person who started us and end."""


class NoCluster(BadKubeconfig):
    """No kubeconfig exists where one is looked for. The message names what a person can do; then end.

    paths: where one is looked for, as in $KUBECONFIG.
    """

    def __init__(self, paths: str) -> None:
        super().__init__(
            f"there is no kubeconfig {paths}; name one with --kubeconfig or $KUBECONFIG, or start a cluster on this "
            "machine with `turnout local up`"
        )
        self.paths = paths


class CallError(KubeError):
    """A call to the API server that brought no good answer.

    status: of HTTP, 0 when there was no answer. reason: Kubernetes' own word, such as AlreadyExists. retry_after_s:
    how long the server asks us to wait, 0.0 when it did not say.
    """

    def __init__(
        self, method: str, path: str, status: int, message: str, *, reason: str = "", retry_after_s: float = 0.0
    ) -> None:
        words = filter(None, (str(status or ("" if message else "no answer")), reason, message[:300]))
        super().__init__(f"{method} {path}: {' '.join(words)}")
        self.method, self.path, self.status = method, path, status
        self.reason, self.message, self.retry_after_s = reason, message, retry_after_s


class Unauthorised(CallError):
    """401: our credentials are not known, or no longer. Fresh ones were tried already; try later."""


class Forbidden(CallError):
    """403: we may not do this. Say so once; only a change of RBAC helps."""


class NotFound(CallError):
    """404: the object, or the whole kind, is not there."""


class Conflict(CallError):
    """409: somebody else wrote first, or the object exists already. Read again before any retry."""


class Gone(CallError):
    """410: the version or the page we ask for is forgotten. List again."""


class TooManyRequests(CallError):
    """429: wait `retry_after_s`, which is never 0 here, then try again."""


class Rejected(CallError):
    """Any other 4xx: the request is wrong as written. Never repeat it unchanged."""


class ServerFault(CallError):
    """5xx: the server is in trouble. A read may be repeated after a pause; a write only after reading again."""


class Unreachable(CallError):
    """No connection, a broken one, or no answer before the deadline. A write may have happened all the same."""


class NotLeading(CallError):
    """A write that was not sent, because another replica may hold the Lease. The term is about to end."""


class BadAnswer(CallError):
    """An answer that is not what Kubernetes would say: not JSON, cut off, or too long."""
