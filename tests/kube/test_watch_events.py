"""Whatever was missed or doubled on the way: after the next whole list the receiver has what the server has."""

import json
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.kube.world import Receiver, event, failed, pod
from turnout.kube.objects import Pod
from turnout.kube.watch_events import Key, KindDecoder, KnownObjects, WatchAction

NAMES = st.sampled_from("abcde")
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "lose", "double", "list"]), NAMES, st.booleans()), max_size=60
)


def as_page(objects, version):
    return json.dumps({"metadata": {"resourceVersion": str(version)}, "items": list(objects)}).encode()


def tell(known, line):
    if line.action is WatchAction.PUT:
        known.put(line.obj)
    elif line.action is WatchAction.DROP:
        known.drop(line.key)


@given(CHANGES)
@settings(max_examples=scaled(150), deadline=None)
def test_any_history_ends_in_the_servers_state(changes):
    feed, receiver, server, version, lives = KindDecoder(Pod), Receiver(), {}, 1, 0
    known = KnownObjects(receiver)
    for how, name, recreates in changes:
        version += 1
        if how == "list":
            known.begin_list()
            known.put_page(feed.page(as_page(server.values(), version)))
            known.end_list()
            continue
        if how == "delete":
            if deleted_uid := server.pop(name, None):
                tell(known, feed.line(event("DELETED", deleted_uid)))
            continue
        lives += recreates or name not in server
        uid = f"{name}{lives}" if recreates or name not in server else server[name]["metadata"]["uid"]
        server[name] = pod(name, version, uid)
        if how != "lose":
            for _ in range(1 + (how == "double")):
                tell(known, feed.line(event("MODIFIED", server[name])))
    known.begin_list()
    known.put_page(feed.page(as_page(server.values(), version)))
    known.end_list()
    uid_by_name = {name: obj.metadata.uid for (_, name), obj in receiver.objects.items()}
    assert uid_by_name == {name: obj["metadata"]["uid"] for name, obj in server.items()}
    assert len(known) == len(server)
    assert receiver.told[-1] == "synced"


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_noise_is_never_more_than_skipped(raw):
    assert KindDecoder(Pod).line(raw).action is WatchAction.SKIP


def test_a_failure_in_the_stream_keeps_its_code_and_its_wait():
    line = KindDecoder(Pod).line(event("ERROR", failed(429, "slow down", 9, "TooMany")))
    assert (line.action, line.status.code, line.status.details.retry_after_seconds) == (WatchAction.ERROR, 429, 9)


def test_a_deletion_needs_only_to_say_who():
    line = KindDecoder(Pod).line(event("DELETED", pod("a", 5, spec="unreadable")))
    assert (line.action, line.key, line.version) == (WatchAction.DROP, Key("ml", "a", "u-a"), "5")


def test_what_is_remembered_of_an_object_is_small():
    feed = KindDecoder(Pod)
    big = as_page([pod(f"p{n}", spec={"containers": [{"name": "c"}]}) for n in range(500)], 1)

    class Forgetful:
        def put(self, obj):
            pass

        drop = synced = put

    known = KnownObjects(Forgetful())
    tracemalloc.start()
    known.put_page(feed.page(big))
    memory_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory_bytes / 500 < 1000, "bytes an object, once the objects themselves are let go"
