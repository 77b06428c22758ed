"""A checkpoint daemon as a process, with a rank that saves step after step.

`python -m tests.launcher.checkpoint.replication.sender FOLDER PORT STEP`. It sends
replicas to the daemon at that port, from that step on, and tells on its standard output which are whole.
"""

import asyncio
import sys
from pathlib import Path

from tests.kit.wait import until_async
from tests.launcher.checkpoint.replication.world import ReplicaDaemon
from turnout.launcher.coordinator_messages import DaemonEndpoint, ReplicaGroup, RestorePlace


async def main(folder, port, step):
    daemon = ReplicaDaemon(Path(folder), "w0", 0)
    replica_group = ReplicaGroup(daemon.endpoint, 1, ((DaemonEndpoint("w1/0", "w1", "127.0.0.1", port),),))
    await daemon.round(RestorePlace(1, 0, 1, 2, replica_group=replica_group))
    while True:
        await daemon.save(step)
        await until_async(lambda: daemon.replicator.progress()[0] == step)  # noqa: B023 -- it is over before the next one
        print(step, flush=True)
        step += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
