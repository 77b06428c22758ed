"""The saves of a real job on the metrics page of its agent: done, refused by storage, and done again."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.wait import until
from tests.launcher.agent.test_checkpoints import job, saved  # noqa: F401 -- job is a fixture
from turnout.launcher.addresses import free_port
from turnout.launcher.model import SaveOutcome, SaveTier

pytestmark = pytest.mark.slow


class Page:
    """The metrics page of one agent."""

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}/metrics"

    def samples(self):
        """Return the value of each sample by its name without prefix, tier and outcome."""
        with urlopen(self._url) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            (
                each.name.removeprefix("turnout_launcher_"),
                each.labels.get("tier"),
                each.labels.get("outcome"),
            ): each.value
            for family in families
            for each in family.samples
        }

    def saves(self, tier, outcome):
        return self.samples()["saves_total", tier, outcome]

    def reaches(self, tier, outcome, minimum):
        """Wait until so many saves have ended so. Return how many have."""
        return until(
            lambda: (count := self.saves(tier, outcome)) >= minimum and count, f"{minimum} {outcome} in {tier}"
        )


def point(crew, target):
    """Make this the folder of the checkpoints, at one moment: a save finds either this one or the one before."""
    link = crew.folder / "link"
    link.symlink_to(target)
    link.replace(crew.folder / "checkpoints")


def test_saves_that_are_done_and_that_storage_refuses_are_counted(job):  # noqa: F811
    port = free_port("127.0.0.1")
    crew, page = job("1", "--metrics-port", str(port)), Page(port)
    (crew.folder / "stored").mkdir()
    (crew.folder / "no-folder").write_text("a file in place of the folder")
    point(crew, crew.folder / "stored")
    agent = crew.start("w0", arguments=("disk=5",))
    saved(crew, 1, ranks=1)
    assert {(tier.value, outcome.value) for tier in SaveTier for outcome in SaveOutcome} == {
        place[1:] for place in page.samples() if place[0] == "saves_total"
    }
    page.reaches("storage", "done", 2)
    point(crew, crew.folder / "no-folder")
    page.reaches("storage", "failed", 1)
    point(crew, crew.folder / "stored")
    done = page.saves("storage", "done")
    page.reaches("storage", "done", done + 1)
    samples = page.samples()
    stored = agent.until("step_saved")
    assert stored["step"] % 5 == 0
    assert stored["took_s"] >= 0
    assert agent.until("save_failed")["tier"] == "storage"
    crew.finish()
    assert crew.codes(agent) == [0]
    assert samples["saves_total", "memory", "done"] >= 1
    assert samples["saves_total", "memory", "failed"] == 0
    assert samples["saves_total", "replica", "done"] == 0, "a worker without replica holders copies nothing"
    for tier in ("memory", "storage"):
        assert samples["last_save_timestamp_seconds", tier, None] > 0
        assert samples["save_interval_seconds", tier, None] > 0


def test_each_agent_counts_its_own_saves_and_rank_0_knows_the_whole_step(job):  # noqa: F811
    crew, ports = job("2"), [free_port("127.0.0.1"), free_port("127.0.0.1")]
    words = ("disk=5", "replicas=1")
    agents = [crew.start("w0", "--metrics-port", str(ports[0]), arguments=words)]
    agents[0].until("coordinator_begun")
    agents.append(crew.start("w1", "--metrics-port", str(ports[1]), arguments=words))
    saved(crew, 1)
    pages = [Page(port) for port in ports]
    for page in pages:
        for tier in ("memory", "replica", "storage"):
            page.reaches(tier, "done", 1)
    by_name = {agent.name: page.samples() for agent, page in zip(agents, pages, strict=True)}
    first, other = (by_name[life.name] for life in sorted(crew.lives(), key=lambda life: life.rank))
    crew.finish()
    assert crew.codes(*agents) == [0, 0]
    for samples in (first, other):
        assert samples["last_save_timestamp_seconds", "replica", None] > 0
        assert samples["saves_total", "storage", "failed"] == 0
    assert first["last_save_timestamp_seconds", "storage", None] > 0
    assert ("last_save_timestamp_seconds", "storage", None) not in other
