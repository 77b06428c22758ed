"""Who sends a request to the page, what that user may see of the state, and the sessions of browsers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec
from aiohttp import web

from turnout.cli.page.access import Access, Identity, Sessions, Unavailable
from turnout.cli.page.answers import BadQuery
from turnout.cli.page.cluster_state import ClusterState, Rights, visible_state
from turnout.cli.page.history import PastSizes
from turnout.kube.status import UNREADABLE

COOKIE = "turnout-session"


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The settings of the server."""

    cluster: str = ""  # the name that the page shows
    docs_url: str = ""  # the docs site, for runbooks and reasons
    grafana_url: str = ""
    allowed_hosts: frozenset[str] = frozenset()  # of the Host header, in lower case; empty for any
    user_header: str = ""  # the header in which an authenticating proxy names the user; "" for none
    group_header: str = ""  # and their groups, separated by commas
    secure_cookie: bool = False  # the browser speaks TLS to the page


class WatchStatus(Protocol):
    """Whether the watches of the cluster are open."""

    def unsynced(self) -> list[str]:
        """Return what is watched and whose first list is not complete, each with its error if it has one."""

    def interrupted_s(self) -> float:
        """Return the longest time since the last event of an interrupted watch, in seconds; 0 while none is."""

    def last_error(self) -> str:
        """Return the error of an interrupted watch; "" if all are open or those that are not have no error."""


class StateSource(Protocol):
    """Holds the state of the cluster, and signals its changes."""

    state: ClusterState
    changed: asyncio.Event  # set, and replaced, at each new version
    past: PastSizes

    @property
    def watches(self) -> WatchStatus:
        """Return the state of the watches."""

    @property
    def has_synced(self) -> bool:
        """True after the first observation of everything."""

    def reason_chain(self, job: str) -> tuple[tuple[str, str], ...]:
        """Return the causes of the state of KIND/NAMESPACE/NAME as (what it is about, text); () for an unknown job."""


class Viewers:
    """The users who send requests, and the part of the state that each of them may see."""

    def __init__(self, source: StateSource, access: Access, sessions: Sessions, settings: PageSettings) -> None:
        """Begin without visible states. access: tells what a user may see. sessions: those of browsers."""
        self._source, self._access, self._sessions, self._settings = source, access, sessions, settings
        self._visible_states: tuple[int, dict[Rights, ClusterState]] = (0, {})
        self._namespaces: tuple[int, tuple[str, ...]] = (0, ())  # of a version of the state: those with jobs

    async def identity(self, request: web.Request) -> Identity:
        """Return the user who sent the request, by a proxy's header, a bearer token or a session cookie.

        The first of them that the request has counts. A proxy's header is not checked. Raises NotLoggedIn if there is
        none, or if the token is not accepted, and Unavailable if the API server does not answer.
        """
        settings = self._settings
        if settings.user_header and (user := request.headers.get(settings.user_header)):
            groups = request.headers.get(settings.group_header, "") if settings.group_header else ""
            return Identity(user, "", tuple(each.strip() for each in groups.split(",") if each.strip()))
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            token = self._sessions.token_of(request.cookies.get(COOKIE, ""))
        return await self._access.identity_of(token.strip())

    async def rights(self, request: web.Request) -> Rights:
        """Return what the user may see of the namespaces in the current state.

        Raises NotLoggedIn if the request has no valid token, Unavailable if the API server does not answer.
        """
        identity, state = await self.identity(request), self._source.state
        if self._namespaces[0] != state.version:
            names = {job.namespace for job in state.jobs}.union(*state.queue_namespaces.values())
            self._namespaces = state.version, tuple(sorted(names))
        return await self._access.rights_of(identity, self._namespaces[1])

    async def state(self, request: web.Request) -> tuple[ClusterState, Rights]:
        """Return the state that this user may see, and the rights.

        Raises Unavailable before the first observation or if the API server does not answer, and NotLoggedIn if the
        request has no valid token.
        """
        rights = await self.rights(request)
        state = self._source.state
        if not state.version:
            missing = ", ".join(self._source.watches.unsynced()[:5])
            raise Unavailable(f"the cluster is still being listed: {missing}")
        if self._visible_states[0] != state.version:
            self._visible_states = state.version, {}
        states = self._visible_states[1]
        if rights not in states:
            states[rights] = visible_state(state, rights)
        return states[rights], rights


class SessionRoutes:
    """Answers the requests that begin and end the session of a browser."""

    def __init__(self, access: Access, sessions: Sessions, secure_cookie: bool) -> None:
        """Use these sessions. secure_cookie: True if the browser speaks TLS to the page."""
        self._access, self._sessions, self._secure_cookie = access, sessions, secure_cookie

    async def begin(self, request: web.Request) -> web.Response:
        """Begin a session for the token in the body, `{"token": "..."}`; respond with 204 and the session's cookie.

        Raises HTTPForbidden for a request that may come from another site: its content type is not JSON, or its header
        Sec-Fetch-Site is not same-origin (it may be missing). Raises BadQuery for another body, NotLoggedIn for a token
        that is not accepted, and Unavailable if the API server does not answer.
        """
        if (
            request.content_type != "application/json"
            or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        ):
            raise web.HTTPForbidden(reason="a session is begun by the page itself")
        try:
            token = msgspec.json.decode(await request.read(), type=dict[str, str])["token"].strip()
        except (*UNREADABLE, KeyError):
            raise BadQuery('the body is {"token": "..."}') from None
        await self._access.identity_of(token)
        response = web.Response(status=204)
        response.set_cookie(
            COOKIE,
            self._sessions.begin(token),
            httponly=True,
            samesite="Strict",
            secure=self._secure_cookie,
            path="/",
        )
        return response

    async def end(self, request: web.Request) -> web.Response:
        """End the browser's session and delete its cookie. Does nothing without a session."""
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response = web.Response(status=204)
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=self._secure_cookie)
        return response
