"""Who may see what: tokens, sessions and rights, and for how long an answer of the API server counts."""

import asyncio
import json

import pytest

from turnout.cli.page.access import (
    MOST_SESSIONS,
    RIGHTS_S,
    SESSION_S,
    ClusterAccess,
    Identity,
    LocalAccess,
    NotLoggedIn,
    Sessions,
    Unavailable,
)
from turnout.cli.page.cluster_state import Rights
from turnout.kube.errors import Unreachable


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


class Reviews:
    """An API server that knows tokens, and who may list what. grants: (user, resource, namespace)."""

    def __init__(self, tokens, grants=()):
        self.tokens, self.grants, self.bodies, self.broken = dict(tokens), set(grants), [], False

    async def create(self, path, body):
        if self.broken:
            raise Unreachable("POST", path, 0, "no answer")
        self.bodies.append(body)
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            user = self.tokens.get(spec["token"])
            status = {"authenticated": user is not None, "user": {"username": user, "groups": ["g"]}}
        else:
            asked = spec["resourceAttributes"]
            assert asked["verb"] == "list"
            status = {"allowed": (spec["user"], asked["resource"], asked["namespace"]) in self.grants}
        return json.dumps({"status": status}).encode()


GRANTS = {("ann", "pods", "team-a"), ("ann", "nodes", ""), ("bob", "pods", "")}


def test_rights_are_those_of_the_token():
    async def rights():
        access = ClusterAccess(Reviews({"t1": "ann", "t2": "bob"}, GRANTS), Clock())
        return [await access.rights_of(await access.identity_of(token), ["team-b", "team-a"]) for token in ("t1", "t2")]

    assert asyncio.run(rights()) == [
        Rights(False, frozenset(["team-a"]), True),
        Rights(True, frozenset(), False),
    ]


@pytest.mark.parametrize("token", ["", "wrong", "x" * 20_000], ids=["none", "unknown", "too long"])
def test_a_token_that_nobody_knows_is_refused(token):
    with pytest.raises(NotLoggedIn):
        asyncio.run(ClusterAccess(Reviews({"t1": "ann"}), Clock()).identity_of(token))


def test_an_answer_counts_for_a_minute():
    async def asked():
        clock, reviews = Clock(), Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, clock)
        await access.identity_of("t1")
        clock.now_s += RIGHTS_S - 1
        del reviews.tokens["t1"]
        assert await access.identity_of("t1") == Identity("ann", "", ("g",))
        clock.now_s += 2
        with pytest.raises(NotLoggedIn):
            await access.identity_of("t1")
        return len(reviews.bodies)

    assert asyncio.run(asked()) == 2


def test_many_requests_at_once_are_one_review():
    async def asked():
        reviews = Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, Clock())
        await asyncio.gather(*(access.identity_of("t1") for _ in range(50)))
        return len(reviews.bodies)

    assert asyncio.run(asked()) == 1


def test_no_answer_of_the_api_server_is_no_refusal():
    async def asked():
        reviews = Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, Clock())
        reviews.broken = True
        with pytest.raises(Unavailable):
            await access.identity_of("t1")
        reviews.broken = False
        return await access.identity_of("t1")

    assert asyncio.run(asked()).user == "ann"


def test_the_person_at_the_machine_has_the_secret_of_the_address():
    async def asked():
        access = LocalAccess("secret")
        with pytest.raises(NotLoggedIn):
            await access.identity_of("guess")
        return await access.rights_of(await access.identity_of("secret"), [])

    assert asyncio.run(asked()).all_namespaces


def test_a_session_ends_after_its_time():
    clock = Clock()
    sessions = Sessions(clock)
    name = sessions.begin("t1")
    clock.now_s += SESSION_S - 1
    assert sessions.token_of(name) == "t1"
    clock.now_s += 1
    with pytest.raises(NotLoggedIn):
        sessions.token_of(name)


def test_a_session_that_was_ended_is_gone():
    sessions = Sessions(Clock())
    name = sessions.begin("t1")
    sessions.end(name)
    with pytest.raises(NotLoggedIn):
        sessions.token_of(name)


def test_the_oldest_session_ends_if_there_are_too_many():
    sessions = Sessions(Clock())
    names = [sessions.begin("t") for _ in range(MOST_SESSIONS + 1)]
    with pytest.raises(NotLoggedIn):
        sessions.token_of(names[0])
    assert sessions.token_of(names[-1]) == "t"
