"""An API server in memory: the simulator's store behind the real Client, without sockets, on the story's clock."""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from turnout.kube.client.api_client import Client
from turnout.kube.client.transport import BrokenConnection
from turnout.kube.times import rfc3339
from turnout.simulator.api import verbs
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.model import ApiRefusal, Unserved
from turnout.simulator.api.objects import event, line
from turnout.simulator.api.server.handlers import first_namespaces
from turnout.simulator.api.store import Store
from turnout.simulator.api.verbs import Call, handle, selection_of

REASON_OF_CODE = {403: "Forbidden", 409: "Conflict", 422: "Invalid", 500: "InternalError", 503: "ServiceUnavailable"}


class Server:
    """The store, its open watches, and the faults of the day.

    faults: (program, method, words of the path, code) of the requests that are refused. unreachable: programs that get
    no answer. garbled: programs whose writes are answered with a page of HTML, as a broken proxy does. hanging: the
    program whose writes get no answer until `answered`.
    """

    def __init__(self, clock):
        uids = itertools.count(1)
        self.clock = clock
        self.store = Store(lambda later_s: rfc3339(clock.wall() + later_s), lambda: f"uid-{next(uids):06d}")
        self.faults, self.unreachable, self.garbled = [], set(), set()
        self.hanging, self.answered = "", asyncio.Event()
        self._bookmarks = 0
        self._news = {}
        first_namespaces(self.store)

    def client(self, program):
        """Return the real client of a program."""
        return Client(Transport(self, program))

    def call(self, method, path, body=None, form="application/json"):
        """Carry out the request of a person or of another program."""
        target = verbs.target(self.store.catalogue, path)
        answer = handle(self.store, Call(method, target, {}, body, form, "person"))
        self.collect_garbage()
        return msgspec.json.decode(answer.raw)

    def objects(self, path):
        """Return the objects of a collection."""
        kind = verbs.target(self.store.catalogue, path).kind
        return [each.obj for each in self.store.objects.find(kind, "", lambda obj: True)]

    def collect_garbage(self):
        """Delete the objects whose owners are deleted."""
        if self.store.objects.owner_index.to_check:
            collect(self.store)

    def bookmark(self):
        """Send a bookmark on each watch, as an API server does once a minute."""
        self._bookmarks += 1
        for changed in self._news.values():
            changed.set()

    def cut_off(self, *programs):
        """Break the connections of programs, and let them make no new ones."""
        self.unreachable.update(programs)
        for changed in self._news.values():
            changed.set()

    def refusal(self, program, request):
        """Return the code with which a request is refused, 0 for none."""
        for who, method, words, code in self.faults:
            if who == program and method == request.method and words in request.path:
                return code
        return 0

    async def lines(self, program, target, query, version):
        """Yield the lines of a watch."""
        journal, selection = self.store.objects.journal(target.kind), selection_of(target, query)
        position, bookmarks = journal.after(version), self._bookmarks
        changed = asyncio.Event()
        key = (program, object())
        self._news[key] = changed
        journal.wake_callbacks.add(changed.set)
        try:
            while True:
                changed.clear()
                if program in self.unreachable:
                    raise BrokenConnection("unreachable")
                news = journal.since(position)
                position += len(news)
                if shown := [text for change in news if (text := event(change, selection)) is not None]:
                    yield b"".join(shown)
                if self._bookmarks != bookmarks:
                    bookmarks = self._bookmarks
                    meta = {"resourceVersion": str(self.store.objects.version)}
                    kind = target.kind
                    raw = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
                    yield line("BOOKMARK", msgspec.json.encode(raw))
                if not changed.is_set():
                    await changed.wait()
        finally:
            journal.wake_callbacks.discard(changed.set)
            del self._news[key]


class Transport:
    """Carries the requests of one program to the server in memory."""

    def __init__(self, server, program):
        self._server, self._program = server, program

    async def send(self, request):
        """Answer one request."""
        await asyncio.sleep(0)
        server, query = self._server, {key: str(value) for key, value in request.params.items()}
        if self._program in server.unreachable:
            raise BrokenConnection("unreachable")
        try:
            if code := server.refusal(self._program, request):
                raise ApiRefusal(REASON_OF_CODE[code], "refused by the day")
            target = verbs.target(server.store.catalogue, request.path)
            if query.get("watch") in ("1", "true", "True"):
                version = int(query.get("resourceVersion") or 0)
                return Answer(200, server.lines(self._program, target, query, version))
            form = request.headers.get("Content-Type", "application/json")
            body = request.body if not isinstance(request.body, bytes) else msgspec.json.decode(request.body)
            manager = query.get("fieldManager", "turnout")
            if request.method != "GET" and self._program == server.hanging:
                await server.answered.wait()
            answer = handle(server.store, Call(request.method, target, query, body, form, manager))
            server.collect_garbage()
            garbled = request.method != "GET" and self._program in server.garbled
            return Answer(answer.code, _once(b"<html>" if garbled else answer.raw))
        except ApiRefusal as refusal:
            return Answer(refusal.code, _once(msgspec.json.encode(refusal.status())))
        except Unserved:
            return Answer(404, _once(b"404 page not found"))

    async def reload(self):
        """Return False: the credentials never change."""
        return False

    async def close(self):
        """Close nothing."""


async def _once(raw):
    yield raw


class Answer:
    """An answer of the server in memory."""

    def __init__(self, status, chunks):
        self.status, self._chunks = status, chunks

    def header(self, name):
        """Return "": it has no headers."""
        return ""

    async def read(self):
        """Return the whole body."""
        return b"".join([chunk async for chunk in self._chunks])

    def chunks(self):
        """Return the body as it arrives."""
        return self._chunks

    def release(self):
        """Release nothing."""

    def close(self):
        """Close nothing."""
