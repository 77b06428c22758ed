"""The second part of the demo: a real autoscaler on a local cluster, its words, its failures; nothing is left."""

import io
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.driver import LendingDemoSettings, run_lending_demo
from turnout.cli.demo.lending.model import MomentKind, sum_up
from turnout.cli.demo.lending.screen import LendingScreen
from turnout.cli.demo.lending.testbed import StoryFailed
from turnout.cli.verb_support.child_programs import AutoscalerFailed

ROOT = Path(__file__).resolve().parents[3]
READY = "The extender is ready, and the autoscaler leads."
ONLY_LOOKS = "import sys; sys.argv.remove('--act'); from turnout.autoscaler.__main__ import main; sys.exit(main())"


def screen():
    out = io.StringIO()
    return out, LendingScreen(Console(file=out, width=110))


def started(*flags, cwd=ROOT, **more):
    """The demo as a user starts it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "turnout.cli", "demo", "--part", "lending", *flags],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
    )


def children(process):
    """Find the processes that it has started, once its two programs are up."""
    for line in process.stdout:
        if line.startswith(READY):
            break
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(found) == 2
    return found


@pytest.mark.asyncio
async def test_a_queue_lends_and_takes_back_in_the_autoscalers_own_words():
    out, shown = screen()
    story = await run_lending_demo(LendingDemoSettings(pause_s=0.1, rest_s=0.3, cooldown_s=1.0), shown)
    words = [
        (m.decision.letter, m.decision.workers_before, m.decision.workers, m.decision.reason) for m in story.changes()
    ]
    assert words == [
        ("A", 2, 12, Reason.IDLE_ROOM),
        ("A", 12, 10, Reason.MAKES_ROOM),
        ("A", 10, 4, Reason.MAKES_ROOM),
        ("A", 4, 12, Reason.IDLE_ROOM),
    ]
    sits = {seat.node for seat in story.first(MomentKind.RUNS, "B").seats if seat.letter == "B"}
    assert sits == {"gpu-3", "gpu-4"}  # one leaf: the autoscaler takes back where the extender can place whole
    sums = sum_up(story)
    assert [wait.letter for wait in sums.waiting_times] == ["B", "C"]
    assert sums.waiting_times[0].whole_s < 5.0  # half a second on an idle machine
    assert sums.lent_gpu_s > 10
    text = out.getvalue()
    assert f"longest wait for lent GPUs  {sums.longest.whole_s:.2f} s" in text
    for why, what in (
        ("MakesRoom", "A shrinks from 12 to 10: 2 workers leave for"),
        ("NeedsMore", "C waits: its min asks for 12 nvidia.com/gpu"),
        ("AdapterRefused", "D stays at 1: spec does RestartJob on PodEvicted"),
    ):
        assert re.search(rf"{why} +{re.escape(what)}", text)
    assert re.search(r"B runs with 6 workers, \d\.\d\d s after it arrived", text)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_autoscaler_that_only_looks_is_no_story():
    out, shown = screen()
    settings = LendingDemoSettings(patience_s=2.0, autoscaler=(sys.executable, "-c", ONLY_LOOKS))
    with pytest.raises(StoryFailed, match=r"not so within 2 s: A runs with 12 workers[\s\S]*DryRun"):
        await run_lending_demo(settings, shown)
    assert "GPU-seconds" not in out.getvalue()


@pytest.mark.asyncio
async def test_an_autoscaler_that_does_not_start_is_told():
    _, shown = screen()
    broken = (sys.executable, "-c", "raise SystemExit('no such flag')")
    with pytest.raises(AutoscalerFailed, match=r"ended at once \(exit code 1\)[\s\S]*no such flag"):
        await run_lending_demo(LendingDemoSettings(autoscaler=broken), shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param("raise SystemExit('no such flag')", "the autoscaler ended at once", id="it does not start"),
        pytest.param(
            'import sys; print(\'{"event": "leading"}\', file=sys.stderr)',
            "the autoscaler ended before this was so: A runs with 12 workers",
            id="it ends in the middle",
        ),
    ],
)
def test_a_demo_that_cannot_be_shown_ends_with_1_and_says_why(tmp_path, program, says):
    autoscaler = tmp_path / "turnout" / "autoscaler"  # python -m looks into the folder it was started in first
    autoscaler.mkdir(parents=True)
    others = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    (tmp_path / "turnout" / "__init__.py").write_text(others)
    (autoscaler / "__init__.py").touch()
    (autoscaler / "__main__.py").write_text(program)
    demo = started("--fast", cwd=tmp_path)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert err.startswith(f"turnout demo: {says}")
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_an_interrupt_ends_both_programs(tmp_path):
    demo = started(TMPDIR=str(tmp_path))
    programs = children(demo)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Traceback" not in out + err
    assert not any(Path(f"/proc/{program}").exists() for program in programs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_demo_takes_both_programs_with_it(tmp_path):
    demo = started(TMPDIR=str(tmp_path))
    watched = [os.pidfd_open(int(program)) for program in children(demo)]
    demo.kill()
    demo.communicate(timeout=10)
    for program in watched:
        assert select.select([program], [], [], 10)[0] == [program]
        os.close(program)
