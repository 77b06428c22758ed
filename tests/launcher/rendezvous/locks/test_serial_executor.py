"""Blocking calls beside the loop: bounded, in order, and a thread that hangs keeps nobody."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from turnout.launcher.rendezvous.locks.file_lock import SerialExecutor

pytestmark = pytest.mark.asyncio
PATIENCE_S = 30


async def test_the_loop_goes_on_and_the_answer_comes():
    released = threading.Event()
    call = asyncio.create_task(SerialExecutor(PATIENCE_S).call(lambda: released.wait(PATIENCE_S)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not call.done()
    released.set()
    assert await call


async def test_what_it_raises_comes_through():
    def fail():
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        await SerialExecutor(PATIENCE_S).call(fail)


async def test_a_call_that_hangs_is_given_up_and_the_next_waits_for_its_end():
    released, order = threading.Event(), []
    aside = SerialExecutor(0.05)
    with pytest.raises(TimeoutError):
        await aside.call(lambda: (released.wait(PATIENCE_S), order.append("late")))
    with pytest.raises(TimeoutError):
        await aside.call(lambda: order.append("never"))
    released.set()
    aside.limit_s = PATIENCE_S
    await aside.call(lambda: order.append("next"))
    assert order == ["late", "next"]


async def test_calls_at_once_are_done_one_after_another():
    running = []

    def run_once():
        running.append(len(running) + 1)
        time.sleep(0.001)  # long enough for another to be seen
        return running.pop()

    aside = SerialExecutor(PATIENCE_S)
    assert await asyncio.gather(*(aside.call(run_once) for _ in range(20))) == [1] * 20


async def test_a_process_ends_although_a_call_hangs():
    program = (
        "import asyncio, threading\n"
        "from turnout.launcher.rendezvous.locks.file_lock import SerialExecutor\n"
        "async def main():\n"
        "    try: await SerialExecutor(0.05).call(threading.Event().wait)\n"
        "    except TimeoutError: print('given up')\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
