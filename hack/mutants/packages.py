"""Which pure modules are mutated, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """sources, tests: files and folders of the checkout."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


PACKAGES = (
    Package("topology", ("topology",), ("tests/topology",)),
    Package(
        "planner",
        ("scheduler_ext/planner", "scheduler_ext/cache", "scheduler_ext/verbs.py"),
        ("tests/scheduler_ext/planner", "tests/scheduler_ext/cache", "tests/scheduler_ext/test_verbs.py"),
    ),
    Package(
        "scaling",
        ("autoscaler/scaling", "autoscaler/decide.py"),
        ("tests/autoscaler/scaling", "tests/autoscaler/test_decide.py", "tests/autoscaler/test_laws.py",
         "tests/autoscaler/test_limits.py", "tests/autoscaler/test_tenant_words.py"),
    ),
    Package(
        "queues",
        ("jobs/queues",),
        ("tests/jobs/test_queue.py", "tests/jobs/test_queue_fields.py", "tests/jobs/test_queue_koordinator.py",
         "tests/jobs/test_queue_kueue.py", "tests/jobs/test_queue_laws.py", "tests/jobs/test_queue_schema.py"),
    ),
    Package(
        "rendezvous",
        ("launcher/rendezvous",),
        ("tests/launcher/rendezvous", "tests/launcher/arbiters/test_arbiter.py",
         "tests/launcher/health/test_comes_back.py"),
    ),
    Package("checkpoint format", ("launcher/checkpoint",), ("tests/launcher/checkpoint",)),
    Package(
        "health",
        ("launcher/health",),
        ("tests/launcher/health/test_checking.py", "tests/launcher/health/test_comes_back.py",
         "tests/launcher/health/test_groups.py", "tests/launcher/health/test_hangs.py",
         "tests/launcher/health/test_hung.py", "tests/launcher/health/test_slow.py",
         "tests/launcher/health/test_switchbox.py", "tests/launcher/health/values",
         "tests/launcher/calls/test_judging.py", "tests/launcher/calls/test_records.py",
         "tests/launcher/calls/test_telling.py", "tests/launcher/watching/test_merging.py",
         "tests/launcher/watching/test_stacks_folded.py", "tests/launcher/watching/test_stacks_read.py"),
    ),
)  # fmt: skip
