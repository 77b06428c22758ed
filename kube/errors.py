"""The errors of calls to the API server: one class for each action that a caller can take."""

from __future__ import annotations


class KubeError(Exception):
    """Base of every error of this package."""


class BadQuantity(KubeError):
    """A text that is not a Kubernetes quantity. Treat the object that contains it as unreadable."""

    def __init__(self, text: object) -> None:
        super().__init__(f"{str(text)[:80]!r} is no Kubernetes quantity")
        self.text = text


class TooComplex(KubeError):
    """A pod whose check would cost too many steps on every node. Treat it as unreadable."""

    def __init__(self, noun: str, count: int, max_count: int) -> None:
        super().__init__(f"the pod has {count} {noun}: at most {max_count} are read")
        self.noun, self.count, self.max_count = noun, count, max_count


class BadKubeconfig(KubeError):
    """No usable kubeconfig. Tell the user and end."""


class NoCluster(BadKubeconfig):
    """No kubeconfig exists at the usual places. The message names what the user can do; then end."""

    def __init__(self, paths: str) -> None:
        super().__init__(
            f"there is no kubeconfig {paths}; name one with --kubeconfig or $KUBECONFIG, or start a cluster on this "
            "machine with `turnout local up`"
        )
        self.paths = paths  # as in $KUBECONFIG


class CallError(KubeError):
    """A call to the API server that did not succeed."""

    def __init__(
        self, method: str, path: str, status: int, message: str, *, reason: str = "", retry_after_s: float = 0.0
    ) -> None:
        words = filter(None, (str(status or ("" if message else "no answer")), reason, message[:300]))
        super().__init__(f"{method} {path}: {' '.join(words)}")
        self.method, self.path = method, path
        self.status = status  # of HTTP; 0 without an answer
        self.reason, self.message = reason, message  # reason: Kubernetes' word, such as AlreadyExists
        self.retry_after_s = retry_after_s  # seconds before a retry: the Retry-After, at least 1 for 429; else 0


class Unauthorised(CallError):
    """401: the server does not know our credentials. They were reloaded already; retry later."""


class Forbidden(CallError):
    """403: our RBAC does not allow the call. Log it once; only an admin can change it."""


class NotFound(CallError):
    """404: the object or the whole kind does not exist."""


class Conflict(CallError):
    """409: the object changed in the meantime, or it exists already. Read it again before a retry."""


class Gone(CallError):
    """410: the server no longer knows this version or this page. List again."""


class TooManyRequests(CallError):
    """429: wait `retry_after_s`, which is above 0 here, then retry."""


class Rejected(CallError):
    """Any other 4xx: the request is invalid. Never repeat it unchanged."""


class ServerFault(CallError):
    """5xx: the server failed. A read may be repeated after a pause; repeat a write only after reading again."""


class Unreachable(CallError):
    """No connection, a broken connection, or no answer before the deadline. A write may have been carried out."""


class NotLeading(CallError):
    """A write that was not sent, because another replica may hold the Lease. The term is about to end."""


class BadResponse(CallError):
    """An answer that Kubernetes does not send: invalid JSON, truncated, or too long."""
