"""Converts a command line and an environment to settings, or to an answer if nothing is to be run.

The command line overrides PET_* variables, which override other variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from turnout.launcher.cli import help, parser, rdzv_endpoint
from turnout.launcher.cli.options import Effect
from turnout.launcher.cli.parser import BadCommand, Given, Line, look_up, parse_command_line, unknown_variables
from turnout.launcher.cli.value_types import BadValue, parse_positive_count
from turnout.launcher.errors import BadCheck, BadElasticSpec, BadSettings
from turnout.launcher.health.hang_detector import HangAction, HangPolicy
from turnout.launcher.health.model import NodeChecks, ProbePolicy, SlowRule, StragglerLimits
from turnout.launcher.model import ElasticSpec, Exit
from turnout.launcher.settings import (
    Command,
    Devices,
    NoteSubject,
    Output,
    PlaceSettings,
    ScriptKind,
    Settings,
    StartNote,
    StartSettings,
    Streams,
    Timing,
)

# Strategies that load their state in a world of any size.
_RESIZABLE = frozenset(["", "none", "single", "ddp", "torchddp", "pytorchddp", "distributeddataparallel"])

# Why a strategy cannot be resized, by the prefix of its name.
_SHARDED = "every rank holds a shard of the state; save it with torch.distributed.checkpoint, which loads in any world"

_ZERO = "ZeRO's checkpoints are of one world size; convert them to universal ones before each resize"

_GROUPS = "tensor and pipeline parallelism take whole groups of ranks; let the unit be a whole number of groups"

_REASONS = {"fsdp": _SHARDED, "fullysharded": _SHARDED, "deepspeed": _ZERO, "zero": _ZERO, "megatron": _GROUPS}

_UNKNOWN_STRATEGY = "it is not known to load its state in a world of another size"


def resize_warning(strategy: str, min_workers: int, max_workers: int) -> str | None:
    """Return the warning for an elastic job with this strategy, or None if there is none.

    strategy: as the job declares it, in any case and punctuation; "" if it declares none. min_workers, max_workers:
    numbers of workers.
    Source: DLRover's guide, DL-91: resizing is promised for DDP of torch alone
    """
    name = re.sub(r"[^a-z0-9]", "", strategy.lower())
    if min_workers == max_workers or name in _RESIZABLE:
        return None
    why = next((why for begins, why in _REASONS.items() if name.startswith(begins)), _UNKNOWN_STRATEGY)
    return (
        f"strategy {strategy} with {min_workers} to {max_workers} workers: resizing is promised for DDP only. "
        f"Here {why}. To be safe, give min and max the same number."
    )


# Parsed values by option name without "--". Options that are neither given nor set by an environment variable are
# missing.
ParsedOptions: TypeAlias = Mapping[str, Any]

MISSED_HEARTBEATS = 5  # missing heartbeats after which a peer is given up


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """A text to print when nothing is run: to stderr unless the exit code is DONE."""

    text: str
    exit: Exit


def read(
    argv: Sequence[str],
    environ: Mapping[str, str],
    program: str = "turnout-run",
    version: Callable[[], object] = lambda: "",
) -> Settings | CommandAnswer:
    """Read the agent's settings. argv: without the program's name. version: looks up what --version prints.

    Returns a CommandAnswer instead for --help, --version and --print-completion, and for an invalid command line: then
    its text names the fault.
    """
    try:
        line = parse_command_line(argv)
        if "help" in line.given:
            return CommandAnswer(help.usage(program), Exit.DONE)
        if "version" in line.given:
            return CommandAnswer(f"{program} {version()}", Exit.DONE)
        if shell := line.given.get("print-completion"):
            return CommandAnswer(help.completion_script(str(shell.value), program), Exit.DONE)
        return _settings(line, environ)
    except (BadCommand, BadSettings, BadElasticSpec, BadCheck) as error:
        return CommandAnswer(f"{program}: {error}", Exit.USAGE)


def _settings(line: Line, environ: Mapping[str, str]) -> Settings:
    """Convert a parsed command line and the environment to settings.

    A given option overrides its environment variable. The settings hold the notes about options without effect and
    unknown variables.
    """
    given = {**look_up(environ), **line.given}
    chosen: ParsedOptions = {name: each.value for name, each in given.items()}
    bounds = _bounds(chosen, environ)
    conf = given.get("rdzv-conf")
    keys, conf_notes = parser.parse_rdzv_conf(conf.text, conf.source) if conf else ({}, ())
    settings = Settings(
        command=_command(line, chosen, environ),
        elastic_spec=_elastic_spec(chosen, keys, bounds),
        processes=_processes(chosen),
        rendezvous=rdzv_endpoint.rendezvous_settings(chosen, keys, bounds, environ),
        place=_place_settings(chosen, environ),
        timing=_timing_settings(chosen, keys),
        start=_start_settings(chosen),
        output=_output_settings(chosen),
        checks=_node_checks(chosen),
        hangs=_hang_policy(chosen),
        strategy=chosen.get("strategy", ""),
        explain=chosen.get("explain", False),
        coordinates=chosen.get("coordinator-only", False),
        given_options=tuple(str(each) for each in given.values()),
    )
    notes = (*_notes(given, chosen, bounds), *conf_notes, *rdzv_endpoint.notes(given, settings.rendezvous, bounds))
    unknown = (StartNote(name, NoteSubject.NO_EFFECT, "no option has this name") for name in unknown_variables(environ))
    return replace(settings, notes=(*notes, *unknown))


def _bounds(chosen: ParsedOptions, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the smallest and the largest number of workers. Raises BadCommand if NODE_NUM counts and is no number from
    1 up.

    A standalone worker gets (1, 1) if the smallest number is 1, even if more are allowed. NODE_NUM counts with
    --auto-config if --nnodes is not given. A process that only coordinates defaults to (2, 2), for "several": it takes
    over the real numbers from the workers.
    """
    min_workers, max_workers = chosen.get("nnodes", (2, 2) if chosen.get("coordinator-only") else (1, 1))
    if "nnodes" not in chosen and chosen.get("auto-config") and (number := environ.get("NODE_NUM", "").strip()):
        try:
            min_workers = max_workers = parse_positive_count(number)
        except BadValue as error:
            raise BadCommand(f"NODE_NUM is {number!r}: {error}") from error
    return (min_workers, 1) if chosen.get("standalone") and min_workers == 1 else (min_workers, max_workers)


def _processes(chosen: ParsedOptions) -> int | Devices:
    """Return the number of processes on this worker, or the kind of devices that determines it."""
    count: int | Devices = chosen.get("nproc-per-node", Devices.AUTO if chosen.get("auto-config") else 1)
    return count


def _command(line: Line, chosen: ParsedOptions, environ: Mapping[str, str]) -> Command:
    """Return the command that every training process runs.

    line: its script and arguments. chosen: the options, those set by environment variables included. environ: only
    PYTHON_EXEC is read, the path of the Python interpreter. Raises BadCommand if --module and --no-python are both
    chosen without --run-path. Source: torchrun, where --run-path overrides the other two, and those exclude each other.
    """
    kinds = {"run-path": ScriptKind.RUN_PATH, "module": ScriptKind.MODULE, "no-python": ScriptKind.PROGRAM}
    chosen_kinds = [kind for name, kind in kinds.items() if chosen.get(name)]
    if chosen_kinds == [ScriptKind.MODULE, ScriptKind.PROGRAM]:
        raise BadCommand("--module and --no-python exclude each other: a module is run by Python")
    return Command(
        program=line.script,
        arguments=line.arguments,
        kind=chosen_kinds[0] if chosen_kinds else ScriptKind.SCRIPT,
        python=environ.get("PYTHON_EXEC", ""),
        role=chosen.get("role", "default"),
    )


def _elastic_spec(chosen: ParsedOptions, keys: Mapping[str, Any], bounds: tuple[int, int]) -> ElasticSpec:
    """Return the bounds and time limits of the elastic job.

    bounds: (min, max) workers. keys: those of --rdzv-conf, used where no option is given.
    """
    default = ElasticSpec()
    return ElasticSpec(
        min_nodes=bounds[0],
        max_nodes=bounds[1],
        node_unit=chosen.get("node-unit", 1),
        max_restarts=chosen.get("max-restarts", 0),
        last_call_s=chosen.get("last-call-s", keys.get("last_call_timeout", default.last_call_s)),
        join_timeout_s=keys.get("join_timeout", default.join_timeout_s),
        keeps_order=chosen.get("keep-rank-order", False),
    )


def _place_settings(chosen: ParsedOptions, environ: Mapping[str, str]) -> PlaceSettings:
    """Return the settings that describe where this worker runs. An option that was not given has its default.

    environ: used for the worker's index, if no option gives it.
    """
    return PlaceSettings(
        name=chosen.get("name", ""),
        host=chosen.get("host", ""),
        address=chosen.get("local-addr", ""),
        path=chosen.get("path", ()),
        path_file=chosen.get("path-file", ""),
        order=rdzv_endpoint.worker_index(chosen, environ),
    )


def _timing_settings(chosen: ParsedOptions, keys: Mapping[str, Any]) -> Timing:
    """Return the intervals and time limits, in seconds. keys: those of --rdzv-conf, used where no option is given."""
    default = Timing()
    heartbeat_s = chosen.get("heartbeat-s", keys.get("keep_alive_interval", default.heartbeat_s))
    return Timing(
        heartbeat_s=heartbeat_s,
        silence_s=chosen.get("silence-s", heartbeat_s * keys.get("keep_alive_max_attempt", MISSED_HEARTBEATS)),
        drain_grace_s=chosen.get("drain-grace-s", default.drain_grace_s),
        shutdown_s=chosen.get("shutdown-timeout", default.shutdown_s),
    )


def _start_settings(chosen: ParsedOptions) -> StartSettings:
    """Return the settings that say how worker processes are started. An option that was not given has its default."""
    default = StartSettings()
    return StartSettings(
        fork=not chosen.get("no-fork") and chosen.get("start-method") != "spawn",
        preload=chosen.get("preload", default.preload),
        numa=chosen.get("numa-binding", "node" if chosen.get("numa-affinity") else ""),
        one_device=chosen.get("virtual-local-rank", False),
        signals=chosen.get("signals-to-handle", default.signals),
    )


def _output_settings(chosen: ParsedOptions) -> Output:
    """Return the settings for logs, worker output and metrics. An option that was not given has its default."""
    return Output(
        log_dir=chosen.get("log-dir", ""),
        redirects=chosen.get("redirects", Streams()),
        tee=chosen.get("tee", Streams()),
        prefix=chosen.get("log-line-prefix-template", ""),
        local_ranks=chosen.get("local-ranks-filter", ()),
        stdout_filters=chosen.get("duplicate-stdout-filters", ()),
        stderr_filters=chosen.get("duplicate-stderr-filters", ()),
        metrics_port=chosen.get("metrics-port"),
        json=chosen.get("log-format") == "json",
    )


def _node_checks(chosen: ParsedOptions) -> NodeChecks:
    """Return which node checks run before training, and their limits.

    Options that are not given keep their defaults.
    """
    default, precheck = NodeChecks(), chosen.get("precheck", 0)
    return NodeChecks(
        network=chosen.get("network-check", False) or precheck > 0,
        performance=chosen.get("comm-perf-test", False) or precheck > 1,
        exclude_straggler=chosen.get("exclude-straggler", False),
        switchbox=chosen.get("switchbox-check", False),
        verdicts=chosen.get("node-verdicts", False),
        box_pairs=chosen.get("box-pairs", default.box_pairs),
        min_bandwidth_mb_per_s=chosen.get("min-bandwidth", default.min_bandwidth_mb_per_s),
        min_channels=chosen.get("min-channels", default.min_channels),
        limits=StragglerLimits(
            SlowRule(chosen.get("slow-rule", SlowRule.MEAN)),
            compute_s=chosen.get("slow-compute-s"),
            collective_s=chosen.get("slow-collective-s"),
        ),
        probing=ProbePolicy(
            chosen.get("probe-meet-s", default.probing.meet_s),
            chosen.get("probe-stage-s", default.probing.stage_s),
            chosen.get("probe-matmul"),
            chosen.get("probe-reduce-bytes"),
        ),
    )


def _hang_policy(chosen: ParsedOptions) -> HangPolicy:
    """Return when a process counts as hanging, what follows, and where its stacks are written."""
    return HangPolicy(
        at_most_s=chosen.get("hang-timeout"),
        act=HangAction(chosen.get("on-hang", HangAction.ASK)),
        folder=chosen.get("stacks-dir", ""),
    )


def _notes(given: Mapping[str, Given], chosen: ParsedOptions, bounds: tuple[int, int]) -> tuple[StartNote, ...]:
    """List notes about options without effect, and about the risk of a resize."""
    without_effect = [
        StartNote(each.source, NoteSubject.NO_EFFECT, each.option.text)
        for each in given.values()
        if each.option.effect is Effect.NONE and each.value is not False
    ]
    warning = resize_warning(chosen.get("strategy", ""), *bounds)
    return (
        (*without_effect, StartNote(given["strategy"].source, NoteSubject.RESIZING, warning))
        if warning
        else tuple(without_effect)
    )
