"""Defines dlrover-run's options and those of the guide. Source: docs/facts/dlrover.md 4, contract DL-28 to DL-42."""

from __future__ import annotations

from turnout.launcher.cli import value_types
from turnout.launcher.cli.option import Effect, Option, Origin

_CHECKS = "checks.network"

_UPSTREAM = (
    Option(
        "node-unit",
        "the world is a multiple of so many workers.",
        value="N",
        example="2",
        sets=("terms.unit",),
        read=value_types.some,
        also=("unit",),
        origin=Origin.DLROVER,
    ),
    Option(
        "auto-config",
        "--nnodes from NODE_NUM and --nproc-per-node auto, where they are not given. No network check is added.",
        sets=("processes",),
        origin=Origin.DLROVER,
    ),
    Option(
        "numa-affinity",
        "the same as --numa-binding node.",
        sets=("start.numa",),
        origin=Origin.DLROVER,
    ),
    Option(
        "network-check",
        "check every node before each start and restart: those that are proven faulty end with 138, the others train.",
        sets=(_CHECKS,),
        origin=Origin.DLROVER,
    ),
    Option(
        "precheck",
        "0 checks nothing; 1 is --network-check; 2 is --comm-perf-test with it.",
        value="0|1|2",
        example="1",
        sets=(_CHECKS,),
        read=value_types.count,
        choices=("0", "1", "2"),
        origin=Origin.DLROVER,
    ),
    Option(
        "comm-perf-test",
        "a part of --network-check, and refused without it: how fast all who passed are together; it is told, and "
        "nobody is judged by it.",
        sets=("checks.performance",),
        origin=Origin.DLROVER,
    ),
    Option(
        "exclude-straggler",
        "a part of --network-check, and refused without it: a node that needs more than twice the mean of the others, "
        "alone or in the network, ends with 138.",
        sets=("checks.exclude_straggler",),
        origin=Origin.DLROVER,
    ),
)

_NOTHING = (
    Option(
        "auto-tunning",
        "batch sizes are the script's: ElasticBatch keeps the global one.",
        also=("auto-tuning",),
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
    Option(
        "save-at-breakpoint",
        "there is no memory checkpoint yet that could be written when a process fails.",
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
    Option(
        "accelerator",
        "torch finds the devices.",
        value="NAME",
        example="metax-tech.com/gpu",
        choices=("nvidia.com/gpu", "ascend-npu", "mthreads.com/gpu", "metax-tech.com/gpu"),
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
    Option(
        "training-port",
        "free ports are taken, and HCCL_IF_BASE_PORT stays as the pod has it.",
        value="PORT",
        example="60001",
        read=value_types.port,
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
    Option(
        "membind-policy",
        "only CPUs are bound, and memory is taken near them by Linux itself.",
        value="none|preferred|bind",
        example="bind",
        choices=("none", "preferred", "bind"),
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
    Option(
        "ucp-device-type",
        "universal checkpoints are not converted here.",
        value="NAME",
        example="cuda",
        origin=Origin.DLROVER,
        effect=Effect.NONE,
    ),
)

_GUIDE = (
    Option(
        "switchbox-check",
        "a part of --network-check, and refused without it: the links from switchbox to GPUs.",
        sets=("checks.switchbox",),
        origin=Origin.GUIDE,
    ),
    Option(
        "box-pairs",
        "pairs of sockets for --switchbox-check, GPUs by their numbers; '0:1 2:4 3:5 6:7' if nothing is given.",
        value="'A:B C:D'",
        example="0:1 2:3",
        sets=("checks.box_pairs",),
        read=value_types.box_pairs,
        origin=Origin.GUIDE,
    ),
    Option(
        "min-bandwidth",
        "MB/s below which --switchbox-check calls a link broken, 10000 if nothing is given.",
        value="MB/S",
        example="9999",
        sets=("checks.min_bandwidth_mb_per_s",),
        read=value_types.count,
        origin=Origin.GUIDE,
    ),
    Option(
        "min-channels",
        "pairs that --switchbox-check must find working, 2 if nothing is given; with fewer a node ends with 138.",
        value="N",
        example="3",
        sets=("checks.min_channels",),
        read=value_types.count,
        origin=Origin.GUIDE,
    ),
)

DLROVER = (*_UPSTREAM, *_NOTHING, *_GUIDE)

# Ours, for the checks that are DLRover's.
CHECKS = (
    Option(
        "node-verdicts",
        "with --network-check, write what the check has found of this node on the own pod, where an admin's "
        "turnout-autoscaler --taint-nodes reads it.",
        sets=("checks.verdicts",),
        origin=Origin.OURS,
    ),
    Option(
        "slow-rule",
        "with --network-check, beside what a node's time is held: twice the mean or the median of the others, or the "
        "median and how much they differ. mean, the guide's, if nothing is given; many slow nodes raise it.",
        value="mean|median|spread",
        example="median",
        sets=("checks.limits",),
        choices=("mean", "median", "spread"),
        origin=Origin.OURS,
    ),
    Option(
        "slow-compute-s",
        "with --network-check, a node whose matrix product takes longer is slow, whatever the others need.",
        value="S",
        example="0.02",
        sets=("checks.limits",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "slow-collective-s",
        "with --network-check, an all-reduce of two nodes that takes longer is slow, whatever the others need.",
        value="S",
        example="0.001",
        sets=("checks.limits",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-meet-s",
        "with --network-check, how long the processes that measure may take to start and to meet, 120 if nothing is "
        "given.",
        value="S",
        example="300",
        sets=("checks.probing",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-stage-s",
        "the same for each thing that they measure, 60 if nothing is given; who is stuck for longer is killed.",
        value="S",
        example="10",
        sets=("checks.probing",),
        read=value_types.duration,
        origin=Origin.OURS,
    ),
    Option(
        "probe-matmul",
        "rows of the square matrices that a probe multiplies; 512 on a CPU and 16384 on a GPU if nothing is given.",
        value="N",
        example="4096",
        sets=("checks.probing",),
        read=value_types.some,
        origin=Origin.OURS,
    ),
    Option(
        "probe-reduce-bytes",
        "bytes of a probe's all-reduce; 4 MiB on a CPU and 64 MiB on a GPU if nothing is given.",
        value="N",
        example="268435456",
        sets=("checks.probing",),
        read=value_types.some,
        origin=Origin.OURS,
    ),
)
