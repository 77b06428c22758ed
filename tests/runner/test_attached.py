"""A local cluster on an API server of somebody else leaves no connection behind, however that server takes leave."""

import asyncio
import gc
import socket
import ssl
import threading
import warnings
from contextlib import ExitStack, contextmanager, suppress

from hack.controlplane.certs import Authority
from turnout.simulator.cluster.kubeconfig import LocalClusterAccess
from turnout.simulator.local_cluster import attached_cluster

LIST = b'{"metadata": {"resourceVersion": "1"}, "items": []}'
EVENT = b'{"type": "ADDED", "object": {"metadata": {"name": "n", "uid": "u", "resourceVersion": "2"}}}\n'
WATCHES = 3


@contextmanager
def silent_server(folder):
    """Serve lists by TLS, and watches of one event: then nothing comes, not even a farewell, until the block ends."""
    authority = Authority(folder)
    pair, over = authority.server("silent"), threading.Event()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    listening = socket.create_server(("127.0.0.1", 0))
    threads = []

    def answer(raw):
        with suppress(OSError), context.wrap_socket(raw, server_side=True) as link:
            while (request := link.recv(1 << 16)) and b"watch=1" not in request:
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(LIST), LIST))
            if request:
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                link.sendall(b"%b%x\r\n%b\r\n" % (head, len(EVENT), EVENT))
                over.wait()

    def accept():
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=answer, args=(listening.accept()[0],)))
                threads[-1].start()

    threads.append(accepting := threading.Thread(target=accept))
    accepting.start()
    with ExitStack() as ends:
        ends.callback(lambda: [each.join() for each in threads])
        ends.callback(listening.close)
        ends.callback(lambda: listening.shutdown(socket.SHUT_RDWR))
        ends.callback(over.set)
        yield LocalClusterAccess(f"https://127.0.0.1:{listening.getsockname()[1]}", "", authority.ca.read_text())


async def follow(access):
    """Follow some watches for a moment, and look away."""
    begun = asyncio.Semaphore(0)

    async def watch(api, path):
        async for word, _ in api.changes(path):
            if word == "ADDED":
                begun.release()

    async with attached_cluster(access) as cluster:
        watching = [asyncio.create_task(watch(cluster.api, f"/api/v1/kind-{at}")) for at in range(WATCHES)]
        for _ in watching:
            await begun.acquire()
        for each in watching:
            each.cancel()
        await asyncio.wait(watching)


def test_watches_of_a_server_that_takes_no_leave_are_cut_off(tmp_path):
    gc.collect()
    with silent_server(tmp_path) as access, warnings.catch_warnings(record=True) as warnings_issued:
        warnings.simplefilter("always")
        asyncio.run(follow(access))
        gc.collect()
    assert [str(each.message) for each in warnings_issued] == []
