"""`turnout pause` and `turnout resume`: what they write, what they refuse, and that the autoscaler obeys."""

import asyncio
import sys

import pytest
import pytest_asyncio

from tests.autoscaler.local_cluster import JOBS, local_cluster_with_jobs
from tests.jobs.test_kinds import indexed
from turnout.autoscaler.model import AdminOverride, read_admin_override
from turnout.cli.__main__ import main
from turnout.cli.pause import BadOptions, override_patch, pause_end, pause_patch
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube import labels

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


@pytest.mark.parametrize(
    ("moment", "for_", "ends"),
    [
        (None, None, ""),
        ("2027-01-15T09:00:00Z", None, "2027-01-15T09:00:00Z"),
        ("2027-01-15T10:00:00+01:00", None, "2027-01-15T09:00:00Z"),
        (None, "1h30m", "2027-01-15T09:30:00Z"),
    ],
)
def test_when_a_pause_ends(moment, for_, ends):
    assert pause_end(moment, for_, NOW_S) == ends


@pytest.mark.parametrize(
    ("moment", "for_"),
    [
        ("tomorrow", None),
        ("2027-01-15T07:00:00Z", None),
        ("2027-01-16", None),
        (None, "soon"),
        (None, "0s"),
        (None, ""),
    ],
)
def test_an_end_that_makes_no_sense_is_refused(moment, for_):
    with pytest.raises(BadOptions):
        pause_end(moment, for_, NOW_S)


def test_what_is_written_on_a_job_is_what_the_autoscaler_reads():
    for direction, ends in (("true", ""), ("grow", "2027-01-15T09:00:00Z"), (None, "")):
        write = pause_patch(JobKey("Job", "ns", "j"), direction, ends)
        notes = {key: value for key, value in write.body["metadata"]["annotations"].items() if value is not None}
        job = KINDS["Job"].read(indexed(notes={labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8", **notes}))
        assert job.pause.value == {"true": "both", "grow": "grow", None: "none"}[direction]
        assert (job.pause_ends_s is not None) == bool(ends)
    assert write.path == "/apis/batch/v1/namespaces/ns/jobs/j"


@pytest.mark.parametrize("policy_names", list(AdminOverride))
def test_what_is_written_of_all_is_what_the_autoscaler_reads(policy_names):
    write = override_patch("ns/name", policy_names)
    assert read_admin_override(write.body["data"]) == (policy_names, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["pause"],
        ["pause", "Job/ns/j", "--all"],
        ["pause", "Job/ns/j", "--until", "2027-01-15T09:00:00Z", "--for", "1h"],
        ["resume", "--release", "--all"],
    ],
)
def test_a_command_line_that_says_two_things_is_refused(argv):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pause", "Job/ns/j", "--release"], "--release goes with --all"),
        (["pause", "--all", "--only", "grow"], "--only goes with one job"),
        (["pause", "Pod/ns/a"], "is no kind of job here"),
        (["pause", "--all", "--for", "soon"], "must be a duration"),
    ],
)
def test_what_makes_no_sense_is_told(argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest_asyncio.fixture
async def cluster(tmp_path):
    async with local_cluster_with_jobs(tmp_path) as local_cluster:
        yield local_cluster


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_job_is_paused_and_everything_is_taken_back_before_an_uninstall(cluster):
    async def turnout(*argv, code=0):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnout.cli", *argv, "--kubeconfig", str(cluster.kubeconfig)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate()
        assert child.returncode == code, err.decode()
        return (out + err).decode()

    await cluster.autoscaler("--act", "--cooldown-s", "0", "--restart-s", "0")
    await cluster.submit("a", 2, 8)
    await cluster.until(a=8)
    assert "keeps its size" in await turnout("pause", "VolcanoJob/default/a")
    await cluster.submit("b", 3)
    await cluster.told("b", "NeedsMore", "stays at 3 workers: its min asks for 3 nvidia.com/gpu")
    await turnout("resume", "VolcanoJob/default/a")
    await cluster.until(a=5, b=3)
    await turnout("pause", "--all", "--release")
    await cluster.until(a=2, b=3)
    assert (await cluster.api.call("GET", f"{JOBS}/a"))["spec"]["tasks"][0]["replicas"] == 2
    await turnout("resume", "--all")
    await cluster.until(a=5, b=3)
    assert "there is no VolcanoJob 'none' in namespace default" in await turnout(
        "pause", "VolcanoJob/default/none", code=1
    )
