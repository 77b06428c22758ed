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
    Package(
        "topology",
        ("topology",),
        (
            "tests/topology",
            "tests/scheduler_ext/planner/placing/test_multiples.py",
            "tests/scheduler_ext/wishes/test_layered_wishes.py",
            "tests/scheduler_ext/wishes/test_mesh_repair.py",
        ),
    ),
    Package(
        "planner",
        ("scheduler_ext/planner", "scheduler_ext/cache", "scheduler_ext/verbs.py"),
        (
            "tests/scheduler_ext/planner",
            "tests/scheduler_ext/cache",
            "tests/scheduler_ext/test_verbs.py",
            "tests/scheduler_ext/wishes",
            "tests/scheduler_ext/gates/test_room.py",
            "tests/kube/test_node_capacity.py",
        ),
    ),
    Package(
        "scaling",
        ("autoscaler/scaling", "autoscaler/decide.py"),
        (
            "tests/autoscaler/scaling",
            "tests/autoscaler/test_decide.py",
            "tests/autoscaler/test_laws.py",
            "tests/autoscaler/test_limits.py",
            "tests/autoscaler/test_tenant_words.py",
            "tests/autoscaler/controller/test_memory_writer.py",
        ),
    ),
    Package(
        "queues",
        ("jobs/queues",),
        (
            "tests/jobs/test_queue.py",
            "tests/jobs/test_queue_fields.py",
            "tests/jobs/test_queue_koordinator.py",
            "tests/jobs/test_queue_kueue.py",
            "tests/jobs/test_queue_laws.py",
            "tests/jobs/test_queue_schema.py",
            "tests/jobs/test_strict_queues.py",
        ),
    ),
    Package(
        "rendezvous",
        ("launcher/rendezvous",),
        ("tests/launcher/rendezvous", "tests/launcher/checkpoint/format"),
    ),
    Package("checkpoint format", ("launcher/checkpoint/format",), ("tests/launcher/checkpoint/format",)),
    Package(
        "health",
        ("launcher/health",),
        (
            "tests/launcher/rendezvous/diagnosis/test_node_check.py",
            "tests/launcher/rendezvous/diagnosis/test_excluded_nodes.py",
            "tests/launcher/health/test_probe_groups.py",
            "tests/launcher/health/test_hang_detector.py",
            "tests/launcher/rendezvous/diagnosis/test_hang_collection.py",
            "tests/launcher/health/test_stragglers.py",
            "tests/launcher/health/test_gpu_links.py",
            "tests/launcher/health/values",
            "tests/launcher/health/hang_monitor/test_stack_merge.py",
            "tests/launcher/health/stack_traces/test_merge.py",
            "tests/launcher/health/stack_traces/test_parse.py",
        ),
    ),
    Package(
        "controllers",
        (
            "controllers/roles/back_off.py",
            "controllers/children.py",
            "controllers/conditions.py",
            "controllers/roles/devices.py",
            "controllers/kinds",
            "controllers/reconcile.py",
            "controllers/roles/replicas.py",
            "controllers/roles/pods.py",
            "controllers/scale_plan.py",
        ),
        ("tests/controllers",),
    ),
)
