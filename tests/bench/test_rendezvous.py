"""Agents that really meet, and what is made of the times that they tell."""

import math

from hack.bench.rendezvous import mount_namespace, testbed
from hack.bench.rendezvous.agents import WorldTimes
from hack.bench.rendezvous.mount_namespace import NameSource
from hack.bench.rendezvous.run import RendezvousResults


def test_without_anything_measured_no_target_is_met():
    assert [target.name for target in RendezvousResults().targets() if target.is_met] == []


def test_every_target_can_be_met():
    meetings = {(kind, agents): [WorldTimes(agents, took_s), WorldTimes(agents)] for kind, agents, took_s in (
        ("ours", 1024, 0.3), ("nvrx", 1024, 0.7), ("ours", 4096, 1.1), ("ours", 10_000, 9.0),
    )}  # fmt: skip
    found = RendezvousResults(
        meetings,
        standard_times=[WorldTimes(1024, 0.3)],
        deaths=[WorldTimes(1024, 0.3, noticed_s=0.1, renewed_s=0.4)],
        named=[WorldTimes(1024, 0.30)],
        unnamed=[WorldTimes(1024, 0.31), WorldTimes(1024, 0.30)],
    )
    assert [target.name for target in found.targets() if not target.is_met] == []
    best = {row[0]: row[2] for row in found.table().rows}
    assert best["1,024 agents, ours: connect and join"] == 0.3


def test_a_command_apart_leaves_the_machines_files_alone(tmp_path):
    assert mount_namespace.command(["true"], NameSource.MACHINE, tmp_path) == ["true"]
    command = mount_namespace.command(["true"], NameSource.QUIET, tmp_path)
    assert command[0] == "unshare"
    assert command[-1] == "true"
    assert (tmp_path / "quiet" / "nsswitch.conf").read_text() == "hosts: files\n"


def test_why_a_namespace_is_not_to_be_had_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "unshare" in mount_namespace.why_not_permitted(NameSource.QUIET, tmp_path)


def test_crowds_meet_and_outlive_one_of_them(tmp_path):
    with testbed.Testbed([], NameSource.MACHINE, tmp_path) as stage:
        assert stage.meet("floor", 24, 20).took_s < 20
        met = stage.meet("ours", 24, 20, one_dies=True)
        late = stage.meet("ours", 24, 0.0)
    assert met.why == ""
    assert max(met.took_s, met.noticed_s, met.renewed_s) < 20
    assert (late.took_s, late.why) == (math.inf, "not done in 0 s")


def test_a_stage_that_cannot_begin_says_so(tmp_path):
    with testbed.Testbed(["no such kind"], NameSource.MACHINE, tmp_path) as stage:
        assert stage.meet("floor", 4, 5).why == "its process ended"
