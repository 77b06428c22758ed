"""How tests are dealt to the processes that run them side by side: longest first, most files in one piece.

The tests of a file share what is made once a module, so a file stays with one process. The files named here are long
and their tests share nothing: each of their tests goes to whoever is free, so that nobody waits for one file.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# Where tests wait for programs, the longest first, and those on a control plane together, so that few are started.
# What is not named follows, in the order in which it was found.
LONG = (
    "tests/chaos/test_on_a_local_cluster.py",
    "tests/e2e/whole_cluster/",
    "tests/e2e/autoscaler/",
    "tests/e2e/launcher/",
    "tests/e2e/",
    "tests/preprocess/test_on_spark.py",
    "tests/deploy/",
    "tests/controlplane/",
    "tests/conformance/",
    "tests/kube/test_real.py",
    "tests/jobs/kinds/test_on_schemas.py",
    "tests/launcher/rendezvous/locks/test_lease_lock.py",
    "tests/launcher/health/test_bad_link.py",
    "tests/launcher/checkpoint/adapters/",
    "tests/launcher/checkpoint/engine/test_flash_restarts.py",
    "tests/launcher/checkpoint/replication/test_leaving_workers.py",
    "tests/launcher/agent/",
    "tests/launcher/health/hang_monitor/",
    "tests/launcher/checkpoint/engine/",
    "tests/launcher/elastic/",
    "tests/autoscaler/test_on_a_local_cluster.py",
    "tests/cli/",
    "tests/launcher/health/",
    "tests/launcher/checkpoint/replication/",
    "tests/launcher/workers/",
    "tests/launcher/",
)
APART = (
    "tests/e2e/test_",
    "tests/e2e/autoscaler/test_fills.py",
    "tests/launcher/agent/",
    "tests/launcher/checkpoint/replication/test_leaving_workers.py",
    "tests/launcher/health/test_before_a_start.py",
    "tests/launcher/checkpoint/engine/test_flash_checkpoint.py",
    "tests/launcher/checkpoint/engine/test_flash_restarts.py",
    "tests/launcher/elastic/test_examples.py",
    "tests/launcher/health/hang_monitor/test_hung_agents.py",
    "tests/autoscaler/test_on_a_local_cluster.py",
    "tests/cli/demo/test_demo",
    "tests/cli/test_why_command.py",
    "tests/controlplane/test_build.py",
)


def place(nodeid: str) -> int:
    """Give the place of a test in the order in which they begin."""
    return next((at for at, prefix in enumerate(LONG) if nodeid.startswith(prefix)), len(LONG))


class ByFile(LoadScopeScheduling):
    """One file a process, but for those whose tests share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config, log):
    """Deal by file instead of by xdist's own rules; the order of the tests is ours."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
