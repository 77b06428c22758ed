"""Who may see what: tokens, sessions and rights, and for how long an answer of the API server counts."""

import asyncio
import json

import pytest

from tests.kit.clock import ManualClock
from turnout.cli.page.access import (
    MAX_OF_VIEWER,
    MAX_SESSIONS,
    REFUSED_S,
    REVIEWS_PER_S,
    RIGHTS_AGE_S,
    SESSION_S,
    STALE_S,
    WAIT_S,
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
            attributes = spec["resourceAttributes"]
            assert attributes["verb"] == "list"
            status = {"allowed": (spec["user"], attributes["resource"], attributes["namespace"]) in self.grants}
        return json.dumps({"status": status}).encode()


GRANTS = {("ann", "pods", "team-a"), ("ann", "nodes", ""), ("bob", "pods", "")}


def test_rights_are_those_of_the_token():
    async def rights():
        access = ClusterAccess(Reviews({"t1": "ann", "t2": "bob"}, GRANTS), ManualClock())
        return [await access.rights_of(await access.identity_of(token), ("team-a", "team-b")) for token in ("t1", "t2")]

    assert asyncio.run(rights()) == [
        Rights(False, frozenset(["team-a"]), True),
        Rights(True, frozenset(), False),
    ]


NO_UTF8 = b"\xff\xfe".decode(errors="surrogateescape")  # as aiohttp decodes a header that is no UTF-8


@pytest.mark.parametrize("token", ["", "wrong", "x" * 20_000, NO_UTF8], ids=["none", "unknown", "too long", "no UTF-8"])
def test_a_token_that_nobody_knows_is_refused(token):
    with pytest.raises(NotLoggedIn):
        asyncio.run(ClusterAccess(Reviews({"t1": "ann"}), ManualClock()).identity_of(token))


def test_an_answer_counts_for_a_minute():
    async def story():
        clock, reviews = ManualClock(), Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, clock)
        await access.identity_of("t1")
        clock.now_s += RIGHTS_AGE_S - 1
        del reviews.tokens["t1"]
        assert await access.identity_of("t1") == Identity("ann", "", ("g",))
        clock.now_s += 2
        with pytest.raises(NotLoggedIn):
            await access.identity_of("t1")
        return len(reviews.bodies)

    assert asyncio.run(story()) == 2


def test_many_requests_at_once_are_one_review():
    async def story():
        reviews = Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, ManualClock())
        await asyncio.gather(*(access.identity_of("t1") for _ in range(50)))
        return len(reviews.bodies)

    assert asyncio.run(story()) == 1


MANY = tuple(f"team-{number:04}" for number in range(2_000))


class SlowReviews(Reviews):
    """An API server whose reviews of rights are answered when the test lets them. Counts those at the same time."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.open = asyncio.Event()
        self.open.set()
        self.running = self.most_running = 0

    async def create(self, path, body):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        if body["kind"] == "SubjectAccessReview" and body["spec"]["resourceAttributes"]["namespace"]:
            await self.open.wait()
        self.running -= 1
        return await super().create(path, body)

    def namespaces(self):
        """The namespaces that were asked for, in order."""
        found = [each["spec"].get("resourceAttributes", {}).get("namespace") for each in self.bodies]
        return [each for each in found if each]


async def whole_rights(access, clock, user="ann"):
    """Return the rights once all namespaces are known."""
    while (rights := await _soon(access.rights_of(Identity(user), MANY), clock)).unknown_namespaces:
        await clock.advance(0.1)
    return rights


async def _soon(question, clock):
    """Return what a request is answered, which waits for WAIT_S seconds at most."""
    task = asyncio.create_task(question)
    await clock.advance(WAIT_S)
    return await asyncio.wait_for(task, 20)


def test_the_rights_in_many_namespaces_are_asked_for_at_a_bounded_rate():
    async def story():
        clock = ManualClock()
        reviews = SlowReviews({}, {("ann", "pods", "team-0000"), ("ann", "pods", "team-1999")})
        access = ClusterAccess(reviews, clock)
        first = await _soon(access.rights_of(Identity("ann"), MANY), clock)
        begun_s = clock.now_s
        all_rights = await whole_rights(access, clock)
        return first, all_rights, clock.now_s - begun_s, reviews

    first, all_rights, took_s, reviews = asyncio.run(story())
    assert first.namespaces == {"team-0000"}
    assert 0 < first.unknown_namespaces < len(MANY)
    assert (all_rights.namespaces, all_rights.unknown_namespaces) == ({"team-0000", "team-1999"}, 0)
    assert took_s >= (len(MANY) - 3 * REVIEWS_PER_S) / REVIEWS_PER_S
    assert sorted(reviews.namespaces()) == list(MANY)
    assert reviews.most_running <= MAX_OF_VIEWER


def test_a_minute_later_only_rights_that_were_granted_are_asked_for_again():
    async def story():
        clock, reviews = ManualClock(), SlowReviews({}, {("ann", "pods", "team-0007")})
        access, found = ClusterAccess(reviews, clock), []
        await whole_rights(access, clock)
        for later_s, count in ((RIGHTS_AGE_S, 1), (REFUSED_S, len(MANY))):
            reviews.bodies.clear()
            await clock.advance(later_s)
            await whole_rights(access, clock)
            async with asyncio.timeout(20):
                while len(reviews.namespaces()) < count:
                    await clock.advance(0.1)
            found.append(reviews.namespaces())
        return found

    minute, minutes = asyncio.run(story())
    assert minute == ["team-0007"]
    assert sorted(minutes) == list(MANY)


def test_a_viewer_of_everything_costs_two_reviews_whatever_there_is():
    async def story():
        reviews = SlowReviews({}, {("bob", "pods", "")})
        rights = await ClusterAccess(reviews, ManualClock()).rights_of(Identity("bob"), MANY)
        return rights, len(reviews.bodies)

    rights, count = asyncio.run(story())
    assert (rights.all_namespaces, rights.unknown_namespaces, count) == (True, 0, 2)


def test_another_viewer_logs_in_while_the_rights_of_one_are_asked_for():
    async def story():
        clock, reviews = ManualClock(), SlowReviews({"t2": "bob"}, {("bob", "pods", "")})
        reviews.open.clear()
        access = ClusterAccess(reviews, clock)
        await _soon(access.rights_of(Identity("ann"), MANY), clock)
        bob = await access.identity_of("t2")
        return await access.rights_of(bob, MANY)

    assert asyncio.run(story()).all_namespaces


@pytest.mark.parametrize(
    ("later_s", "namespaces"),
    [
        pytest.param(RIGHTS_AGE_S + 1, {"team-0007"}, id="a right counts while it is asked for again"),
        pytest.param(STALE_S + 1, set(), id="a right that nobody confirms ends"),
    ],
)
def test_a_right_without_a_new_answer(later_s, namespaces):
    async def story():
        clock, reviews = ManualClock(), SlowReviews({}, {("ann", "pods", "team-0007")})
        access = ClusterAccess(reviews, clock)
        await access.rights_of(Identity("ann"), MANY[:20])
        reviews.open.clear()
        clock.now_s += later_s
        return (await _soon(access.rights_of(Identity("ann"), MANY[:20]), clock)).namespaces

    assert asyncio.run(story()) == namespaces


def test_a_right_that_was_taken_away_ends_after_a_minute():
    async def story():
        clock, reviews = ManualClock(), SlowReviews({}, {("ann", "pods", "team-0007")})
        access = ClusterAccess(reviews, clock)
        before = await access.rights_of(Identity("ann"), MANY[:20])
        reviews.grants.clear()
        clock.now_s += RIGHTS_AGE_S
        return before.namespaces, (await access.rights_of(Identity("ann"), MANY[:20])).namespaces

    assert asyncio.run(story()) == ({"team-0007"}, frozenset())


def test_no_answer_of_the_api_server_is_no_refusal():
    async def story():
        reviews = Reviews({"t1": "ann"})
        access = ClusterAccess(reviews, ManualClock())
        reviews.broken = True
        with pytest.raises(Unavailable):
            await access.identity_of("t1")
        reviews.broken = False
        return await access.identity_of("t1")

    assert asyncio.run(story()).user == "ann"


def test_the_person_at_the_machine_has_the_secret_of_the_address():
    async def story():
        access = LocalAccess("secret")
        for guess in ("guess", NO_UTF8):
            with pytest.raises(NotLoggedIn):
                await access.identity_of(guess)
        return await access.rights_of(await access.identity_of("secret"), ())

    assert asyncio.run(story()).all_namespaces


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
    names = [sessions.begin("t") for _ in range(MAX_SESSIONS + 1)]
    with pytest.raises(NotLoggedIn):
        sessions.token_of(names[0])
    assert sessions.token_of(names[-1]) == "t"
