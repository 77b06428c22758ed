"""Without the job's token no word counts: of who stands between two agents, or sits at the coordinator's address."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from tests.kit.listener import serving
from turnout.launcher.coordinator_messages import (
    NONCE_BYTES,
    VERSION,
    Challenge,
    Finish,
    GetRoster,
    Join,
    LastWorld,
    Redirect,
    Refused,
    Roster,
    Welcome,
    encode,
)
from turnout.launcher.framing import FrameSplitter, frame
from turnout.launcher.model import ElasticSpec, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.transport.coordinator_link import CoordinatorClient, NoAnswer, connect
from turnout.launcher.rendezvous.transport.listener import MAX_STRANGERS_OF_ONE, Listener

pytestmark = pytest.mark.asyncio
TOKEN, RUN, PATIENCE_S = b"correct horse battery", "job", 20.0
ME = Member("w0/1", "w0", "h0", "127.0.0.1", 29_400, 1)


class Host:
    """A coordinator of one word: it takes whoever has proved himself, and answers Ask."""

    def __init__(self):
        self.heard_of, self.left = [], asyncio.Event()

    def admit(self, peer, join):
        peer.welcome(self, lambda proof: Welcome(proof, "c/1", 5.0, 60.0))

    def on_message(self, peer, message):
        self.heard_of.append(message)
        peer.send_message(Roster(7, (ME,)))

    def on_closed(self, peer):
        self.left.set()


class Caller:
    """A member that keeps what it is told."""

    def __init__(self, token=TOKEN):
        self.token, self.heard, self.lost = token, asyncio.Queue(), asyncio.Queue()

    def client(self):
        def join(nonce, proof):
            return Join(VERSION, RUN, nonce, proof, ME, ElasticSpec(), LastWorld(), RestartBudget())

        return CoordinatorClient(
            join,
            self.token,
            RUN,
            lambda _, message: self.heard.put_nowait(message),
            lambda _, reason: self.lost.put_nowait(reason),
        )

    async def connect(self, port):
        return await connect(self.client, "127.0.0.1", port, greet_s=PATIENCE_S)


@asynccontextmanager
async def listening(token=TOKEN):
    messages = []
    host, listener = Host(), Listener(token, RUN, lambda what, fields: messages.append(what))
    listener.lead(host)
    port = await listener.open("127.0.0.1", 0)
    try:
        yield port, host, messages
    finally:
        await listener.close()


def relay(port, towards_caller):
    """Pass all on, frame by frame; towards_caller: changes the list of bodies that come from the coordinator."""

    async def serve(reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def back():
            splitter, number = FrameSplitter(1 << 20), 0
            while data := await far_reader.read(65_536):
                for body in splitter.split(data):
                    for sent in towards_caller(number, body):
                        writer.write(frame(sent))
                    number += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(back())
            while data := await reader.read(65_536):
                far_writer.write(data)
            far_writer.close()

    return serve


async def test_a_member_and_a_coordinator_that_know_the_token_talk():
    async with listening() as (port, host, events):
        caller = Caller()
        client, answer = await caller.connect(port)
        assert isinstance(answer, Welcome)
        client.send_message(GetRoster())
        assert await asyncio.wait_for(caller.heard.get(), PATIENCE_S) == Roster(7, (ME,))
        client.leave()
        await asyncio.wait_for(host.left.wait(), PATIENCE_S)
        assert (host.heard_of, events) == ([GetRoster()], [])


FORGED = encode(Finish(0, Reason.REFUSED.value, "all is done"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda number, body: [body, FORGED] if number == 1 else [body], id="it says that the job is over"),
        pytest.param(
            lambda number, body: [body, FORGED + os.urandom(16)] if number == 1 else [body], id="with a guessed code"
        ),
        pytest.param(lambda number, body: [body, body] if number == 1 else [body], id="it repeats a frame"),
        pytest.param(lambda number, body: [FORGED] if number == 2 else [body], id="it puts one in place of another"),
    ],
)
async def test_a_relay_cannot_speak_for_the_coordinator(change):
    async with listening() as (port, _, _), serving(relay(port, change)) as between:
        caller = Caller()
        client, answer = await caller.connect(between)
        assert isinstance(answer, Welcome)
        client.send_message(GetRoster())
        assert await asyncio.wait_for(caller.lost.get(), PATIENCE_S) == Reason.MEMBER_LOST
        assert not any(isinstance(caller.heard.get_nowait(), Finish) for _ in range(caller.heard.qsize()))


@pytest.mark.parametrize("challenges", [False, True], ids=["at once", "after a challenge of its own"])
@pytest.mark.parametrize(
    "word",
    [
        pytest.param(Refused(Reason.REFUSED.value, "go away"), id="a refusal"),
        pytest.param(Redirect("x/1", "127.0.0.1", 1), id="a redirection"),
        pytest.param(Welcome(bytes(32), "x/1", 5.0, 60.0), id="a welcome"),
    ],
)
async def test_who_sits_at_the_address_without_the_token_gives_no_answer(word, challenges):
    async def serve(reader, writer):
        if challenges:
            writer.write(frame(encode(Challenge(VERSION, os.urandom(NONCE_BYTES)))))
            await reader.read(4_096)
        writer.write(frame(encode(word)))
        await reader.read()

    async with serving(serve) as port:
        client, answer = await Caller().connect(port)
        assert client is None
        assert isinstance(answer, NoAnswer)
        assert "the job's token" in answer.why


async def test_a_caller_with_another_token_is_told_nothing_that_counts():
    async with listening() as (port, host, events):
        client, answer = await Caller(b"another token, as long").connect(port)
        assert (client, events, host.heard_of) == (None, ["stranger_refused"], [])
        assert isinstance(answer, NoAnswer)


async def test_a_crowd_of_strangers_is_told_of_once():
    async with listening() as (port, _, events):
        for _ in range(5):
            await Caller(b"another token, as long").connect(port)
        assert events == ["stranger_refused"]


class Stranger:
    """A connection of which a listener knows the address, and nothing else."""

    def __init__(self, peer):
        self.peer, self.aborted = peer, False

    def abort(self):
        self.aborted = True


async def test_the_oldest_stranger_of_an_address_makes_room_for_a_new_one_of_it():
    listener = Listener(TOKEN, RUN, lambda what, fields: None)
    other = Stranger("10.0.0.2")
    crowd = [Stranger("10.0.0.1") for _ in range(MAX_STRANGERS_OF_ONE + 2)]
    for each in (other, *crowd):
        listener.register(each)
    assert [each.aborted for each in crowd] == [True, True, *[False] * MAX_STRANGERS_OF_ONE]
    assert not other.aborted
