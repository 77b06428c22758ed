"""A keeper as a process, with a rank that saves step after step: `python -m tests.launcher.buddies.sender FOLDER PORT
STEP`. It sends copies to the keeper at that port, from that step on, and tells on its standard output which are whole.
"""

import asyncio
import sys
from pathlib import Path

from tests.launcher.buddies.world import Keeper, until
from turnout.launcher.checkpoint.wire import Seat
from turnout.launcher.keeping import Circle, Door


async def main(folder, port, step):
    keeper = Keeper(Path(folder), "w0", 0)
    circle = Circle(keeper.door, 1, ((Door("w1/0", "w1", "127.0.0.1", port),),))
    await keeper.round(Seat(1, 0, 1, 2, circle=circle))
    while True:
        await keeper.save(step)
        await until(lambda: keeper.copies.done()[0] == step)  # noqa: B023 -- it is over before the next one
        print(step, flush=True)
        step += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
