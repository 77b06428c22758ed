"""The time of day that decisions go by: it does not jump when the wall clock does, and says so."""

import pytest

from turnout.kube.client.clock import HOLD_READINGS, SteadyTime

HOUR_S = 3600.0


class Clocks:
    """Three clocks, moved by hand."""

    def __init__(self, server=True):
        self.mono_s, self.wall_s, self.server_s = 100.0, 1_000_000.0, 1_000_000.0 if server else None
        self.time = SteadyTime(self, self.ahead_s)
        self.began_s = self.time.now().now_s

    def monotonic(self):
        return self.mono_s

    def wall(self):
        return self.wall_s

    def ahead_s(self):
        return None if self.server_s is None else self.server_s - self.mono_s

    def pass_s(self, seconds):
        self.mono_s += seconds
        self.wall_s += seconds
        if self.server_s is not None:
            self.server_s += seconds

    def observe(self, count, each_s=5.0):
        """So many looks: by how much time has passed beside the monotonic clock at each, and whether it held."""
        found = []
        for _ in range(count):
            self.pass_s(each_s)
            moment = self.time.now()
            found.append((moment.now_s - self.began_s - (self.mono_s - 100.0), moment.jumped_s != 0.0))
        return found


STILL = (0.0, False)


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, 3.0], ids=["an hour on", "an hour back", "a few seconds"])
def test_a_lone_jump_of_the_wall_clock_moves_nothing_and_shows_after_two(by_s, caplog):
    clocks = Clocks()
    clocks.wall_s += by_s
    assert clocks.observe(5) == [(0.0, True)] * HOLD_READINGS + [STILL] * 3
    assert [record.msg for record in caplog.records] == ["clock_jumped"]


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S], ids=["an hour on", "an hour back"])
def test_what_the_api_server_says_counts_from_the_third_look_on(by_s, caplog):
    clocks = Clocks()
    clocks.wall_s += by_s
    clocks.server_s += by_s
    assert clocks.observe(5) == [(0.0, True)] * HOLD_READINGS + [(by_s, False)] * 3
    assert [record.msg for record in caplog.records] == ["clock_jumped", "clock_corrected"]


def test_without_an_api_server_time_the_wall_clock_counts_from_look_three():
    clocks = Clocks(server=False)
    clocks.wall_s += HOUR_S
    assert clocks.observe(4) == [(0.0, True)] * HOLD_READINGS + [(HOUR_S, False)] * 2


def test_a_clock_that_jumps_again_and_again_is_held_all_the_while():
    clocks = Clocks()
    for by_s in (HOUR_S, -HOUR_S, HOUR_S):
        clocks.wall_s += by_s
        assert clocks.observe(1) == [(0.0, True)]


def test_a_clock_wrong_from_the_start_is_corrected_by_the_api_server():
    clocks = Clocks()
    clocks.server_s += HOUR_S
    assert SteadyTime(clocks, clocks.ahead_s).now().now_s == clocks.server_s


def test_small_steps_are_followed_and_told_to_nobody(caplog):
    clocks = Clocks(server=False)
    for _ in range(3):
        clocks.wall_s += 1.0
        (observation,) = clocks.observe(1)
    assert (observation, caplog.records) == ((3.0, False), [])


@pytest.mark.parametrize("ahead_s", [-4.0, 4.0], ids=["behind", "ahead"])
def test_an_api_server_that_is_a_little_apart_is_no_jump(ahead_s):
    clocks = Clocks()
    clocks.server_s += ahead_s
    assert clocks.observe(3) == [STILL] * 3
