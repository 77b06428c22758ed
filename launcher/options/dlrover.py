"""dlrover-run's options and those that only the guide has. Source: facts/dlrover.md §4, contract DL-28 to DL-42."""

from __future__ import annotations

from launcher.options import values
from launcher.options.option import Effect, Option, Origin

NOT_YET = "the health checks come with a later version"
_CHECKS = "checks.network"

_UPSTREAM = (
    Option(
        "node-unit",
        "the world is a multiple of so many workers.",
        value="N",
        example="2",
        sets=("terms.unit",),
        read=values.some,
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
        "check every node before each start, leave out the faulty ones: refused, the health checks are not there yet.",
        sets=(_CHECKS,),
        origin=Origin.DLROVER,
        effect=Effect.NOT_YET,
    ),
    Option(
        "precheck",
        "0 checks nothing; 1 is --network-check, 2 --comm-perf-test with it: refused, not there yet.",
        value="0|1|2",
        example="1",
        sets=(_CHECKS,),
        read=values.count,
        choices=("0", "1", "2"),
        origin=Origin.DLROVER,
        effect=Effect.NOT_YET,
    ),
    Option(
        "comm-perf-test",
        "a part of --network-check, and refused without it: the speed of all nodes together.",
        sets=("checks.performance",),
        origin=Origin.DLROVER,
        effect=Effect.NOT_YET,
    ),
    Option(
        "exclude-straggler",
        "a part of --network-check, and refused without it: slow nodes are left out.",
        sets=("checks.exclude_straggler",),
        origin=Origin.DLROVER,
        effect=Effect.NOT_YET,
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
        read=values.port,
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
        effect=Effect.NOT_YET,
    ),
    Option(
        "box-pairs",
        "pairs of sockets for --switchbox-check, '0:1 2:4 3:5 6:7' if nothing is given; it waits for that check.",
        value="'A:B C:D'",
        example="0:1 2:3",
        sets=("checks.box_pairs",),
        read=values.box_pairs,
        origin=Origin.GUIDE,
        effect=Effect.NONE,
    ),
    Option(
        "min-bandwidth",
        "MB/s below which --switchbox-check calls a link broken, 10000 if nothing is given; it waits for that check.",
        value="MB/S",
        example="9999",
        sets=("checks.min_bandwidth_mb_per_s",),
        read=values.count,
        origin=Origin.GUIDE,
        effect=Effect.NONE,
    ),
    Option(
        "min-channels",
        "pairs that --switchbox-check must find working, 2 if nothing is given; it waits for that check.",
        value="N",
        example="3",
        sets=("checks.min_channels",),
        read=values.count,
        origin=Origin.GUIDE,
        effect=Effect.NONE,
    ),
)

DLROVER = (*_UPSTREAM, *_NOTHING, *_GUIDE)
