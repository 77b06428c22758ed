"""The callers that the embedded API admits: the user's own programs, and no web page."""

import asyncio
import os

import pytest

from turnout.simulator.api.server.peer_auth import owner_in

NODES = "/api/v1/nodes"
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:C001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2
   2: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 3
"""
MAPPED = """\
  sl  local_address                         remote_address                        st
   0: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0  1002        0 2
"""


@pytest.mark.parametrize(
    ("table", "port", "owner"),
    [
        pytest.param(TABLE, 0xC001, 1001, id="the caller's end, not ours"),
        pytest.param(TABLE, 0xC009, None, id="nobody's"),
        pytest.param(MAPPED, 0xC002, 1002, id="IPv4 in a socket of IPv6"),
    ],
)
def test_the_owner_of_a_connection_is_read_from_the_kernels_table(table, port, owner):
    assert owner_in(table, ("127.0.0.1", port), ("127.0.0.1", 0x1F90)) == owner


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"Host": "localhost:80"}, 200, id="by name"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="a page that posts to us"),
        pytest.param({"Origin": "null"}, 403, id="a page that hides"),
        pytest.param({"Host": "evil.example"}, 403, id="a name that was made to lead here"),
    ],
)
async def test_a_web_page_is_refused(api_server, headers, code):
    async with api_server.session.get(api_server.url + NODES, headers=headers) as answer:
        assert answer.status == code


@pytest.mark.asyncio
async def test_another_user_of_this_machine_is_refused(api_server):
    port = api_server.url.rpartition(":")[2]
    ask = f"GET {NODES} HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n"
    script = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{ask}' >&3; cat <&3"
    others = ((65534, b"403"),) if os.getuid() == 0 else ()  # only root can become somebody else
    for uid, code in ((os.getuid(), b"200"), *others):
        child = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE, user=uid)
        told, _ = await child.communicate()
        assert told.split()[1] == code
