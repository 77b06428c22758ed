"""Who may see what on the page: tokens, sessions, and the rights that the API server grants."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from turnout.cli.page.cluster_state import EVERYTHING, Rights
from turnout.kube.client.clock import Clock
from turnout.kube.client.rate_limiter import RateLimiter
from turnout.kube.errors import CallError
from turnout.kube.status import decode_answer

log = logging.getLogger("turnout.page")

RIGHTS_AGE_S = 60.0  # seconds for which an answer of the API server counts
REFUSED_S = 300.0  # seconds after which a namespace that was refused is asked for again
STALE_S = 300.0  # seconds after which a right in a namespace ends if it could not be asked for again
WAIT_S = 1.0  # for which a request waits for the rights in namespaces; what is not known then stays hidden
SESSION_S = 12 * 3_600.0
MAX_SESSIONS, MAX_CACHED = 1_000, 50_000
MAX_REVIEWS = 8  # at the same time
MAX_OF_VIEWER = 2  # reviews of namespaces at the same time for one viewer
REVIEWS_PER_S = 200.0  # of namespaces, of all viewers together
MAX_VIEWERS, MAX_NAMESPACES = 500, 5_000  # viewers whose rights are stored, and namespaces of one viewer
MAX_TOKEN = 16_384  # characters
T = TypeVar("T")


class NotLoggedIn(Exception):
    """The request has no token or session that is valid now. The viewer can log in."""


class Unavailable(Exception):
    """Something that is needed for the answer is not known now. The viewer can try again later."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The user who sent a request, with the names that the API server uses."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class Reviews(Protocol):
    """The part of a client that creates reviews."""

    async def create(self, path: str, body: Any) -> bytes:
        """Create an object, and return the API server's answer as JSON.

        path: of the collection. body: the object. Raises CallError if the call fails.
        """


class Access(Protocol):
    """Decides which user sent a request, and what this user may see."""

    async def identity_of(self, token: str) -> Identity:
        """Return the user of a token.

        Raises NotLoggedIn if the token is not accepted, Unavailable if the API server does not answer.
        """

    async def rights_of(self, identity: Identity, namespaces: tuple[str, ...]) -> Rights:
        """Return what this user may see. Raises Unavailable if the API server does not answer.

        namespaces: those that have jobs, sorted.
        """


def _token_bytes(token: str) -> bytes:
    """Return a token in UTF-8. Raises NotLoggedIn if its header was no UTF-8: then it has halves of surrogate pairs."""
    try:
        return token.encode()
    except UnicodeEncodeError as error:
        raise NotLoggedIn("the token is no UTF-8") from error


class LocalAccess:
    """The access of the person who has started the page on their own machine: a secret in the printed address."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def identity_of(self, token: str) -> Identity:
        """Return the user of this machine. Raises NotLoggedIn if `token` is not the secret of the printed address."""
        if not hmac.compare_digest(_token_bytes(token), self._secret.encode()):
            raise NotLoggedIn("this is not the token of the printed address")
        return Identity("")

    async def rights_of(self, identity: Identity, namespaces: tuple[str, ...]) -> Rights:
        """Return all rights: the page shows what the person's own kubeconfig may list."""
        return EVERYTHING


class _Status(msgspec.Struct, rename="camel"):
    authenticated: bool = False
    allowed: bool = False
    user: dict[str, Any] = msgspec.field(default_factory=dict)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


_review_decoder = msgspec.json.Decoder(_Review)


@dataclass(slots=True)
class _NamespaceRights:
    """What is known of one viewer's right to list pods, by namespace."""

    granted: dict[str, float] = field(default_factory=dict)  # the time of the last answer, monotonic seconds
    refused: dict[str, float] = field(default_factory=dict)  # likewise
    walk: asyncio.Task[None] | None = None  # asks the API server, namespace by namespace
    patience_ends_s: float = 0.0  # until then requests wait for the walk, monotonic seconds
    # The namespaces of the last answer, those visible, and until when it counts; None while some are not known.
    answer: tuple[tuple[str, ...], frozenset[str], float] | None = None

    def note(self, namespace: str, allowed: bool, now_s: float) -> None:
        """Store an answer of the API server. allowed: the viewer may list pods in the namespace. now_s: monotonic."""
        self.answer = None
        (self.refused if allowed else self.granted).pop(namespace, None)
        (self.granted if allowed else self.refused)[namespace] = now_s

    def namespaces_to_ask(self, namespaces: Iterable[str], now_s: float) -> list[str]:
        """Return the namespaces whose right must be asked for before a request can be answered.

        First are the granted ones whose answer is too old, then the unknown ones of `namespaces`. now_s: monotonic.
        """
        expired = [name for name, at_s in self.granted.items() if now_s - at_s >= RIGHTS_AGE_S]
        return expired + [name for name in namespaces if name not in self.granted and name not in self.refused]

    def refused_long_ago(self, now_s: float) -> list[str]:
        """Return the namespaces that were refused at least REFUSED_S seconds ago, to be asked for again. now_s:
        monotonic.
        """
        return [name for name, at_s in self.refused.items() if now_s - at_s >= REFUSED_S]

    def keep(self, namespaces: Iterable[str]) -> None:
        """Remove the answers for all other namespaces."""
        present = frozenset(namespaces)
        self.granted = {name: at_s for name, at_s in self.granted.items() if name in present}
        self.refused = {name: at_s for name, at_s in self.refused.items() if name in present}

    def visible(self, namespaces: tuple[str, ...], now_s: float) -> tuple[frozenset[str], int]:
        """Return the namespaces that the viewer may see now, and how many of `namespaces` are still unknown.

        now_s: monotonic. If none is unknown, the result is stored in `answer`.
        """
        names = frozenset(name for name, at_s in self.granted.items() if now_s - at_s < STALE_S)
        unknown = sum(name not in self.granted and name not in self.refused for name in namespaces)
        ends = [at_s + RIGHTS_AGE_S for at_s in self.granted.values()] + [
            at_s + REFUSED_S for at_s in self.refused.values()
        ]
        self.answer = None if unknown else (namespaces, names, min(ends, default=now_s + RIGHTS_AGE_S))
        return names, unknown


class ClusterAccess:
    """Access by TokenReview and SubjectAccessReview. Answers count for RIGHTS_AGE_S seconds.

    A viewer who may list pods everywhere costs two reviews a minute. For another viewer each namespace is asked for, in
    the background and at a bounded rate; a request waits for WAIT_S seconds at most.
    """

    def __init__(self, reviews: Reviews, clock: Clock) -> None:
        """Begin without answers. reviews: creates the reviews. clock: for the age of answers and the rate limit."""
        self._reviews, self._clock, self._limit = reviews, clock, asyncio.Semaphore(MAX_REVIEWS)
        self._rate = RateLimiter(clock, REVIEWS_PER_S)
        self._identities: _Cache[Identity | None] = _Cache(clock.monotonic)
        self._allowed: _Cache[bool] = _Cache(clock.monotonic)
        self._viewers: OrderedDict[Identity, _NamespaceRights] = OrderedDict()

    async def identity_of(self, token: str) -> Identity:
        """Return the user to whom a token belongs; the answer may be RIGHTS_AGE_S seconds old.

        Raises NotLoggedIn if the token is empty, longer than MAX_TOKEN, no UTF-8 or not accepted, and Unavailable if
        the API server does not answer.
        """
        if not 0 < len(token) <= MAX_TOKEN:
            raise NotLoggedIn("the token is empty or too long")
        digest = hashlib.sha256(_token_bytes(token)).digest()
        found = await self._identities.get(digest, lambda: self._review_token(token))
        if found is None:
            raise NotLoggedIn("the API server does not accept this token, or it has expired")
        return found

    async def _review_token(self, token: str) -> Identity | None:
        """Return the user of a token, by a TokenReview; None if the token is invalid.

        Raises Unavailable if the API server does not answer.
        """
        status = await self._review(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}},
        )
        if not status.authenticated:
            return None
        user = status.user
        groups = tuple(map(str, user.get("groups") or ()))
        return Identity(str(user.get("username", "")), str(user.get("uid", "")), groups)

    async def rights_of(self, identity: Identity, namespaces: tuple[str, ...]) -> Rights:
        """Return what a user may see: the namespaces whose pods the user may list, and whether the nodes.

        namespaces: those with jobs now; beyond MAX_NAMESPACES they count as unknown. Raises Unavailable if the API
        server does not answer whether the user may list all pods, or nodes. If it does not answer on a namespace, its
        last answer counts, for STALE_S seconds at most if that was yes; without one the namespace is unknown.
        """
        everywhere, nodes = await asyncio.gather(self._may_list(identity, "pods"), self._may_list(identity, "nodes"))
        if everywhere:
            return Rights(True, frozenset(), nodes)
        viewer = self._viewer(identity)
        names = namespaces[:MAX_NAMESPACES]
        more = len(namespaces) - len(names)
        if viewer.answer is not None and viewer.answer[0] == names and self._clock.monotonic() < viewer.answer[2]:
            return Rights(False, viewer.answer[1], nodes, more)
        await self._ask_again(identity, viewer, names)
        visible, unknown = viewer.visible(names, self._clock.monotonic())
        return Rights(False, visible, nodes, unknown + more)

    def _viewer(self, identity: Identity) -> _NamespaceRights:
        """Return the stored rights of a user, empty for a new one.

        If there are more than MAX_VIEWERS, the rights of the user with the oldest request are removed.
        """
        viewer = self._viewers.setdefault(identity, _NamespaceRights())
        self._viewers.move_to_end(identity)
        while len(self._viewers) > MAX_VIEWERS:
            self._viewers.popitem(last=False)
        return viewer

    async def _ask_again(self, identity: Identity, viewer: _NamespaceRights, names: tuple[str, ...]) -> None:
        """Unless a task runs, start one that asks for unknown and expired rights. Wait for the task until WAIT_S
        seconds after its start at most.

        names: of the namespaces; a task that already runs asks only for those of its start. If only old refusals are
        asked for again, nothing is awaited.
        """
        now_s = self._clock.monotonic()
        if viewer.walk is None:
            viewer.keep(names)
            needed, later = viewer.namespaces_to_ask(names, now_s), viewer.refused_long_ago(now_s)
            if not needed and not later:
                return
            viewer.patience_ends_s = now_s + WAIT_S if needed else now_s
            viewer.walk = asyncio.create_task(self._walk(identity, viewer, [*needed, *later]))
        wait_s = viewer.patience_ends_s - now_s
        if wait_s > 0:
            with suppress(TimeoutError):
                async with self._clock.timeout(wait_s):
                    await asyncio.shield(viewer.walk)

    async def _walk(self, identity: Identity, viewer: _NamespaceRights, names: list[str]) -> None:
        """Ask for the right to list pods in each namespace of `names`, MAX_OF_VIEWER at a time.

        If the API server does not answer, log it and stop.
        """
        left = iter(names)

        async def work() -> None:
            """Review the next namespace until none is left."""
            for name in left:
                await self._rate.acquire()
                viewer.note(name, await self._review_right(identity, "pods", name), self._clock.monotonic())

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(MAX_OF_VIEWER):
                    tasks.create_task(work())
        except* Unavailable as group:
            log.warning("rights_not_reviewed", extra={"error": str(group.exceptions[0])})
        finally:
            viewer.walk = None

    async def _may_list(self, identity: Identity, resource: str) -> bool:
        """Return True if the user may list a resource in all namespaces; the answer may be RIGHTS_AGE_S seconds old.

        Raises Unavailable if the API server does not answer.
        """
        return await self._allowed.get((identity, resource), lambda: self._review_right(identity, resource, ""))

    async def _review_right(self, identity: Identity, resource: str, namespace: str) -> bool:
        """Return True if the user may list a resource, by a SubjectAccessReview.

        resource: of the core group, as in "pods". namespace: "" for all. Raises Unavailable if the API server does not
        answer.
        """
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
        """Create a review in the API server and return its status.

        Raises Unavailable if the call fails or its answer is invalid. path: of the kind of review. body: the review.
        """
        async with self._limit:
            try:
                return decode_answer(_review_decoder, "POST", path, await self._reviews.create(path, body)).status
            except CallError as error:
                raise Unavailable(f"the API server does not answer a review: {error}") from error


class _Cache(Generic[T]):
    """A cache of at most MAX_CACHED values, each for RIGHTS_AGE_S seconds. Callers of one key share one computation."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._pending: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the stored value, or the result of `make` if there is none or it is RIGHTS_AGE_S old.

        Raises what `make` raises. Calls with the same key at the same time share one call of `make`, which a cancelled
        caller does not end.
        """
        found = self._values.get(key)
        if found is not None and self._clock() - found[0] < RIGHTS_AGE_S:
            return found[1]
        if (pending := self._pending.get(key)) is None:
            pending = self._pending[key] = asyncio.ensure_future(make())
            pending.add_done_callback(lambda done: self._store(key, done))
        return await asyncio.shield(pending)

    def _store(self, key: Hashable, done: asyncio.Future[T]) -> None:
        """Store the result of a finished `make`, unless it failed; remove the oldest values beyond MAX_CACHED."""
        del self._pending[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._values[key] = self._clock(), done.result()
        self._values.move_to_end(key)
        while len(self._values) > MAX_CACHED:
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
        """Begin a session for an accepted token, and return its random name.

        It ends after SESSION_S seconds. The oldest session ends at once if there are more than MAX_SESSIONS.
        """
        name = secrets.token_urlsafe(32)
        self._sessions[name] = _Session(token, self._clock() + SESSION_S)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def token_of(self, name: str) -> str:
        """Return the token of a session. name: as `begin` returned it.

        Raises NotLoggedIn if there is no such session or it has expired.
        """
        session = self._sessions.get(name)
        if session is None or self._clock() >= session.ends_s:
            self.end(name)
            raise NotLoggedIn("the session has ended")
        return session.token

    def end(self, name: str) -> None:
        """End a session, if there is one of this name."""
        self._sessions.pop(name, None)
