"""Who may see what on the page: tokens, sessions, and the rights that the API server grants."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from turnout.cli.page.cluster_state import EVERYTHING, Rights
from turnout.kube.errors import CallError

RIGHTS_S = 60.0  # seconds for which an answer of the API server counts
SESSION_S = 12 * 3_600.0
MOST_SESSIONS, MOST_CACHED = 1_000, 50_000
MOST_REVIEWS = 8  # at the same time
MOST_TOKEN = 16_384  # characters
T = TypeVar("T")


class NotLoggedIn(Exception):
    """The request has no token or session that is valid now. The viewer can log in."""


class Unavailable(Exception):
    """Something that is needed for the answer is not known now. The viewer can try again later."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, as the API server names them."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class Reviews(Protocol):
    """The part of a client that creates reviews."""

    async def create(self, path: str, body: Any) -> bytes:
        """Create an object, and return the API server's answer."""


class Access(Protocol):
    """Decides who a request is from, and what they may see."""

    async def identity_of(self, token: str) -> Identity:
        """Return whose token this is. Raises NotLoggedIn and Unavailable."""

    async def rights_of(self, identity: Identity, namespaces: Collection[str]) -> Rights:
        """Return what they may see. namespaces: those that have jobs. Raises Unavailable."""


class LocalAccess:
    """The access of the person who has started the page on their own machine: a secret in the printed address."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def identity_of(self, token: str) -> Identity:
        """Return the person at this machine. Raises NotLoggedIn."""
        if not hmac.compare_digest(token.encode(), self._secret.encode()):
            raise NotLoggedIn("this is not the token of the printed address")
        return Identity("")

    async def rights_of(self, identity: Identity, namespaces: Collection[str]) -> Rights:
        """Return all rights: the page shows what the person's own kubeconfig may list."""
        return EVERYTHING


class _Status(msgspec.Struct, rename="camel"):
    authenticated: bool = False
    allowed: bool = False
    user: dict[str, Any] = msgspec.field(default_factory=dict)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class ClusterAccess:
    """Access by TokenReview and SubjectAccessReview. Answers count for RIGHTS_S seconds. clock: monotonic seconds."""

    def __init__(self, reviews: Reviews, clock: Callable[[], float]) -> None:
        self._reviews, self._limit = reviews, asyncio.Semaphore(MOST_REVIEWS)
        self._identities: _Cache[Identity | None] = _Cache(clock)
        self._allowed: _Cache[bool] = _Cache(clock)

    async def identity_of(self, token: str) -> Identity:
        """Return whose token this is. Raises NotLoggedIn and Unavailable."""
        if not 0 < len(token) <= MOST_TOKEN:
            raise NotLoggedIn("the token is empty or too long")
        digest = hashlib.sha256(token.encode()).digest()
        found = await self._identities.get(digest, lambda: self._review_token(token))
        if found is None:
            raise NotLoggedIn("the API server does not accept this token, or it has expired")
        return found

    async def _review_token(self, token: str) -> Identity | None:
        status = await self._review(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
        )
        if not status.authenticated:
            return None
        user = status.user
        groups = tuple(map(str, user.get("groups") or ()))
        return Identity(str(user.get("username", "")), str(user.get("uid", "")), groups)

    async def rights_of(self, identity: Identity, namespaces: Collection[str]) -> Rights:
        """Return what they may see: pods that they may list, and nodes. Raises Unavailable."""
        everywhere, nodes = await asyncio.gather(
            self._may_list(identity, "pods", ""), self._may_list(identity, "nodes", "")
        )
        if everywhere:
            return Rights(True, frozenset(), nodes)
        names = sorted(namespaces)
        may = await asyncio.gather(*(self._may_list(identity, "pods", each) for each in names))
        return Rights(False, frozenset(name for name, yes in zip(names, may, strict=True) if yes), nodes)

    async def _may_list(self, identity: Identity, resource: str, namespace: str) -> bool:
        return await self._allowed.get(
            (identity, resource, namespace), lambda: self._review_right(identity, resource, namespace)
        )

    async def _review_right(self, identity: Identity, resource: str, namespace: str) -> bool:
        attributes = {"verb": "list", "resource": resource, "namespace": namespace}
        spec = {
            "user": identity.user,
            "uid": identity.uid,
            "groups": list(identity.groups),
            "resourceAttributes": attributes,
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return (await self._review(path, body)).allowed

    async def _review(self, path: str, body: dict[str, Any]) -> _Status:
        async with self._limit:
            try:
                return msgspec.json.decode(await self._reviews.create(path, body), type=_Review).status
            except CallError as error:
                raise Unavailable(f"the API server does not answer a review: {error}") from error
            except msgspec.DecodeError as error:
                raise Unavailable(f"the API server answers a review with what is no review: {error}") from error


class _Cache(Generic[T]):
    """Values that count for RIGHTS_S seconds, at most MOST_CACHED. A value that is being made is made once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._pending: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the value, made now if it is not there or too old."""
        found = self._values.get(key)
        if found is not None and self._clock() - found[0] < RIGHTS_S:
            return found[1]
        if (pending := self._pending.get(key)) is None:
            pending = self._pending[key] = asyncio.ensure_future(make())
            pending.add_done_callback(lambda done: self._store(key, done))
        return await asyncio.shield(pending)

    def _store(self, key: Hashable, done: asyncio.Future[T]) -> None:
        del self._pending[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._values[key] = self._clock(), done.result()
        self._values.move_to_end(key)
        while len(self._values) > MOST_CACHED:
            self._values.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    ends_s: float


class Sessions:
    """The sessions of browsers: a random name in a cookie stands for a token. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, token: str) -> str:
        """Begin a session for a token that was accepted, and return its name. The oldest ends if there are too many."""
        name = secrets.token_urlsafe(32)
        self._sessions[name] = _Session(token, self._clock() + SESSION_S)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def token_of(self, name: str) -> str:
        """Return the token of a session. Raises NotLoggedIn."""
        session = self._sessions.get(name)
        if session is None or self._clock() >= session.ends_s:
            self.end(name)
            raise NotLoggedIn("the session has ended")
        return session.token

    def end(self, name: str) -> None:
        """End a session, if there is one of this name."""
        self._sessions.pop(name, None)
