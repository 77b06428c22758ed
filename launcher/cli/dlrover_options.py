"""Defines dlrover-run's options and those of the guide. Source: docs/facts/dlrover.md 4, contract DL-28 to DL-42."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.option import Option, Origin

_CHECKS = "checks.network"

_UPSTREAM = (
    Option(
        "node-unit",
        "the size of the world is a multiple of N workers.",
        value="N",
        example="2",
        sets=("elastic_spec.node_unit",),
        read=value_types.some,
        also=("unit",),
        origin=Origin.DLROVER,
    ),
    Option(
        "auto-config",
        "take --nnodes from NODE_NUM and --nproc-per-node auto where they are not given. It does not turn on "
        "--network-check.",
        sets=("processes",),
        origin=Origin.DLROVER,
    ),
    Option(
        "numa-affinity",
        "same as --numa-binding node.",
        sets=("start.numa",),
        origin=Origin.DLROVER,
    ),
    Option(
        "network-check",
        "check every node before each start and restart. Nodes proven faulty exit with 138; the others train.",
        sets=(_CHECKS,),
        origin=Origin.DLROVER,
    ),
    Option(
        "precheck",
        "0: no check; 1: --network-check; 2: --network-check and --comm-perf-test.",
        value="0|1|2",
        example="1",
        sets=(_CHECKS,),
        read=value_types.count,
        choices=("0", "1", "2"),
        origin=Origin.DLROVER,
    ),
    Option(
        "comm-perf-test",
        "also measure the network speed of all nodes that passed, and report it; no node is excluded by it. Requires "
        "--network-check.",
        sets=("checks.performance",),
        origin=Origin.DLROVER,
    ),
    Option(
        "exclude-straggler",
        "a node that takes more than twice the mean of the others, in computing or in the network, exits with 138. "
        "Requires --network-check.",
        sets=("checks.exclude_straggler",),
        origin=Origin.DLROVER,
    ),
)

_GUIDE = (
    Option(
        "switchbox-check",
        "also check the links between GPUs through the switch box. Requires --network-check.",
        sets=("checks.switchbox",),
        origin=Origin.GUIDE,
    ),
    Option(
        "box-pairs",
        "pairs of GPU numbers for --switchbox-check; '0:1 2:4 3:5 6:7' by default.",
        value="'A:B C:D'",
        example="0:1 2:3",
        sets=("checks.box_pairs",),
        read=value_types.box_pairs,
        origin=Origin.GUIDE,
    ),
    Option(
        "min-bandwidth",
        "bandwidth in MB/s below which --switchbox-check calls a link broken; 10000 by default.",
        value="MB/S",
        example="9999",
        sets=("checks.min_bandwidth_mb_per_s",),
        read=value_types.count,
        origin=Origin.GUIDE,
    ),
    Option(
        "min-channels",
        "number of working pairs that --switchbox-check requires, 2 by default; a node with fewer exits with 138.",
        value="N",
        example="3",
        sets=("checks.min_channels",),
        read=value_types.count,
        origin=Origin.GUIDE,
    ),
)

DLROVER = (*_UPSTREAM, *_GUIDE)

# Turnout's options for DLRover's checks.
CHECKS = (
    Option(
        "node-verdicts",
        "with --network-check, write the result of this node's check on the worker's own pod, where turnout- "
        "autoscaler --taint-nodes reads it.",
        sets=("checks.verdicts",),
        origin=Origin.OURS,
    ),
    Option(
        "slow-rule",
        "with --network-check, the limit for a slow node: twice the mean of the others, twice their median, or the "
        "median plus their spread; mean, the guide's rule, by default. Many slow nodes raise the mean.",
        value="mean|median|spread",
        example="median",
        sets=("checks.limits",),
        choices=("mean", "median", "spread"),
        origin=Origin.OURS,
    ),
    Option(
        "slow-compute-s",
        "with --network-check, a node whose matrix product takes longer is slow, whatever the others take.",
        value="S",
        example="0.02",
        sets=("checks.limits",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "slow-collective-s",
        "with --network-check, an all-reduce of two nodes that takes longer is slow, whatever the others take.",
        value="S",
        example="0.001",
        sets=("checks.limits",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-meet-s",
        "with --network-check, seconds that probe processes may take to start and to connect; 120 by default.",
        value="S",
        example="300",
        sets=("checks.probing",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-stage-s",
        "with --network-check, seconds for each measurement, 60 by default; a process that takes longer is killed.",
        value="S",
        example="10",
        sets=("checks.probing",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-matmul",
        "with --network-check, rows of the square matrices that a probe multiplies; 512 on a CPU and 16384 on a GPU "
        "by default.",
        value="N",
        example="4096",
        sets=("checks.probing",),
        read=value_types.some,
        origin=Origin.OURS,
    ),
    Option(
        "probe-reduce-bytes",
        "with --network-check, bytes of a probe's all-reduce; 4 MiB on a CPU and 64 MiB on a GPU by default.",
        value="N",
        example="268435456",
        sets=("checks.probing",),
        read=value_types.some,
        origin=Origin.OURS,
    ),
)
