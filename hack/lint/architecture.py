"""The rules of the architecture, checked: layers, purity, cycles, sizes, decoders. `python -m hack.lint.architecture`.

The rules are those of docs/architecture.md. How files are read is in source_tree.py. Import
statements are checked by import-linter, whose contracts are in pyproject.toml.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from hack.lint.source_tree import BESIDE, PACKAGE, Import, Module, read, statements

# The layer of each package. A package may import packages of lower layers only.
LAYERS = {
    "topology": 0,
    "kube": 0,
    "jobs": 1,
    "launcher": 1,
    "preprocess": 1,
    "scheduler_ext": 2,
    "autoscaler": 2,
    "controllers": 2,
    "simulator": 3,
    "cli": 4,
}
THREADED = ("launcher", "preprocess")

# Subpackages and modules that may use clock, network, disk and environment: docs/architecture.md lists them, too.
IO_MODULES = (
    "kube.client",
    "kube.server",
    "kube.version",  # reads what pip noted of this installation
    "launcher.agent.agent",
    "launcher.agent.start_agent",
    "launcher.agent.coordinator_only",
    "launcher.agent.coordinator_session",
    "launcher.agent.goodput_metrics",
    "launcher.agent.save_metrics",
    "launcher.agent.metrics",
    "launcher.agent.switch_path",
    "launcher.agent.torchrun",
    "launcher.checkpoint.arena",
    "launcher.checkpoint.daemon",
    "launcher.checkpoint.dcp",
    "launcher.checkpoint.engine",
    "launcher.checkpoint.replication",
    "launcher.checkpoint.storage",
    "launcher.elastic.steps",
    "launcher.flash_checkpoint.accelerate",
    "launcher.flash_checkpoint.ddp_engine",
    "launcher.flash_checkpoint.deepspeed",
    "launcher.flash_checkpoint.fsdp_engine",
    "launcher.flash_checkpoint.hf_trainer",
    "launcher.flash_checkpoint.lightning",
    "launcher.flash_checkpoint.megatron",
    "launcher.flash_checkpoint.named_parts",
    "launcher.health.hang_monitor",
    "launcher.health.probes",
    "launcher.rendezvous.locks",
    "launcher.rendezvous.transport",
    "launcher.workers.forkserver",
    "launcher.workers.numa",
    "launcher.workers.worker_group",
    "launcher.workers.worker_output",
    "launcher.workers.worker_processes",
    "launcher.workers.worker_spec",
    "launcher.accelerator",
    "launcher.addresses",
    "launcher.event_log",
    "launcher.linux",
    "launcher.torch_version",
    "preprocess.archives",
    "preprocess.command",
    "preprocess.dataset",
    "preprocess.local_runner",
    "preprocess.merge",
    "preprocess.plan",
    "preprocess.pyspark_preprocess",
    "preprocess.run",
    "preprocess.run_lock",
    "preprocess.run_record",
    "preprocess.sample",
    "preprocess.shards",
    "preprocess.spark_pod",
    "preprocess.spark_runner",
    "preprocess.storage",
    "preprocess.tokenizers.encoders",
    "scheduler_ext.nominator",  # wiring of a second program: a package has only one __main__
    "scheduler_ext.writers",
    "scheduler_ext.server",
    "autoscaler.controller",
    "controllers.runtime",
    "simulator.api.server",
    "simulator.cluster.runtime",
    "simulator.local_cluster",
    "simulator.processes.runtime",
    "simulator.replay.trace_files",
    "cli.check.command",
    "cli.check.facts",
    "cli.verb_support",
    "cli.demo.driver",
    "cli.demo.lending.driver",
    "cli.demo.lending.screen",
    "cli.demo.lending.testbed",
    "cli.demo.page",
    "cli.demo.screen",
    "cli.local_cluster.commands",
    "cli.local_cluster.control_plane",
    "cli.local_cluster.daemon",
    "cli.local_cluster.prestart",
    "cli.local_cluster.serve",
    "cli.page.access",
    "cli.page.event_stream",
    "cli.page.job_routes",
    "cli.page.metrics",
    "cli.page.prometheus",
    "cli.page.responses",
    "cli.page.serve",
    "cli.page.server",
    "cli.page.source",
    "cli.page.usage_log",
    "cli.page.viewers",
    "cli.programs",
    "cli.release.command",
    "cli.release.facts",
    "cli.verbs",
)

MAX_LINES, MAX_FUNCTION_LINES = 600, 40

# What a pure module may not import: the clock, random numbers, disk, network, threads, environment, logs and metrics.
# fmt: off
IMPURE = frozenset([
    "aiohttp", "asyncio", "concurrent", "fcntl", "gc", "getpass", "glob", "grpc", "http", "io", "kubernetes", "logging",
    "mmap", "multiprocessing", "os", "platform", "prometheus_client", "queue", "requests", "resource", "rich", "sched",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "sys", "tempfile", "threading", "time", "torch", "urllib", "urllib3", "uuid", "websocket",
])
PURE_PARTS = ("urllib.parse",)  # of a package that is impure as a whole
NO_CALLS = frozenset(["open", "print", "input", "breakpoint", "exec", "eval"])
# Methods that look at the clock or the disk, whatever object they are called on.
NO_METHODS = frozenset([
    "now", "utcnow", "today", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "rglob", "mkdir",
    "unlink",
])
# fmt: on


@dataclass(frozen=True, slots=True)
class Fault:
    """One violation of an architecture rule."""

    rule: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def faults(modules: Sequence[Module]) -> tuple[Fault, ...]:
    """Return every violation of every rule, by path, line and text."""
    rules = (layer_order, purity, import_cycles, sizes, decoders)
    return tuple(sorted((fault for rule in rules for fault in rule(modules)), key=lambda f: (f.path, f.line, f.text)))


def layer_order(modules: Sequence[Module]) -> Iterator[Fault]:
    """Yield a fault for each import against the order of layers that import-linter cannot see.

    These are imports by a name at run time, imports of tests, and the launcher's imports of kube.
    """
    for module in modules:
        for found in module.imports:
            target = found.target.split(".", 1)[0]
            if found.bare and target in LAYERS and (found.by_name or module.package == "tests"):
                yield Fault("layer", module.path, found.line, f"{found.target} is imported as {PACKAGE}.{found.target}")
            elif target != module.package and (why := _wrong_way(module, found, target)):
                yield Fault("layer", module.path, found.line, f"{module.package} imports {found.target}: {why}")


def _wrong_way(module: Module, found: Import, target: str) -> str | None:
    """Return why a module may not import from the package `target` in this way; None if it may.

    found: the import in the module; whether it is lazy or by name counts.
    """
    if found.by_name and module.package != "tests" and target in BESIDE:
        return f"nobody imports {target}"
    if target not in LAYERS or module.package in BESIDE:
        return None
    own, its = LAYERS[module.package], LAYERS[target]
    if found.by_name and its >= own:
        return f"{module.package} (layer {own}) must not import {target} (layer {its})"
    if module.package == "launcher" and target == "kube" and not (found.lazy and does_io(module.name)):
        return "only the launcher's I/O imports kube, and lazily"
    return None


def purity(modules: Sequence[Module]) -> Iterator[Fault]:
    """Yield a fault for each I/O outside I/O modules and __main__.py.

    I/O: await, clock, random numbers, disk, network, environment variables, logs and metrics.
    """
    for module in modules:
        if module.package not in LAYERS or does_io(module.name):
            continue
        for found in module.imports:
            if _impure(found.target):
                yield Fault("purity", module.path, found.line, f"a pure module imports {found.target}")
        for node in ast.walk(module.tree):
            if why := _touches_the_world(node):
                yield Fault("purity", module.path, getattr(node, "lineno", 1), why)


def does_io(name: str) -> bool:
    """Return True if the module of this dotted name may do I/O."""
    return name.endswith(".__main__") or any(name == each or name.startswith(f"{each}.") for each in IO_MODULES)


def _impure(target: str) -> bool:
    """Return True if a pure module may not import `target`, a dotted name."""
    if any(target == part or target.startswith(f"{part}.") for part in PURE_PARTS):
        return False
    return target.split(".", 1)[0] in IMPURE


def _touches_the_world(node: ast.AST) -> str | None:
    """Return why a node of the syntax tree is I/O; None if it is not."""
    match node:
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return "a pure module waits"
        case ast.Call(func=ast.Name(id=name)) if name in NO_CALLS:
            return f"a pure module calls {name}()"
        case ast.Call(func=ast.Attribute(attr=name)) if name in NO_METHODS:
            return f"a pure module calls .{name}()"
        case ast.ImportFrom(module="random", names=names) if any(alias.name != "Random" for alias in names):
            return "a pure module draws random numbers: only a Random that is passed in or seeded"
        case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
            return f"a pure module draws random numbers: random.{name}"
        case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
            return "a pure module draws random numbers: numpy.random"
        case ast.Call(func=ast.Attribute(attr="Random") | ast.Name(id="Random"), args=[], keywords=[]):
            return "a pure module draws random numbers: Random() without a seed"
    return None


def import_cycles(modules: Sequence[Module]) -> Iterator[Fault]:
    """Yield one fault if modules import each other in a cycle, lazy imports included: for the first cycle that is
    found.
    """
    by_name = {module.name: module for module in modules}
    graph = {module.name: _needs(module, by_name.keys()) for module in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        first = by_name[min(circle)]
        yield Fault("cycle", first.path, 1, " imports ".join(circle))


def _needs(module: Module, names: Collection[str]) -> set[str]:
    """Return the names of the modules that a module imports, itself excluded. names: of all modules."""
    needed = set()
    for found in module.imports:
        parts = found.target.split(".")
        longest = next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in names), None)
        if longest is not None and longest != module.name:
            needed.add(longest)
    return needed


def sizes(modules: Sequence[Module]) -> Iterator[Fault]:
    """Yield a fault for each module above 600 lines and each function above 40 lines, its docstring not counted."""
    for module in modules:
        if module.lines > MAX_LINES:
            yield Fault("size", module.path, 1, f"{module.lines} lines, at most {MAX_LINES}")
        for node in statements(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = _line_count(node) - _docstring_lines(node)
                if lines > MAX_FUNCTION_LINES:
                    text = f"{node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
                    yield Fault("size", module.path, node.lineno, text)


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's docstring, 0 without one."""
    return _line_count(node.body[0]) if ast.get_docstring(node) is not None else 0


def _line_count(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def decoders(modules: Sequence[Module]) -> Iterator[Fault]:
    """Yield a fault where a program with threads decodes by a type for which no Decoder is made at import.

    msgspec prepares a structure at its first use. Two threads that both use it first crash the process.
    """
    for module in modules:
        if module.package not in THREADED:
            continue
        for line in sorted({line for line, type_ in _decoded_types(module.tree) if not _is_built_in(type_)}):
            text = "two threads that decode a type first crash: make a Decoder where the module begins"
            yield Fault("decoder", module.path, line, text)


def _decoded_types(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Yield (line, type) of each decode() and convert() of msgspec with a type, and of each Decoder in a function.

    A type that the function makes itself, by a call such as defstruct(), is left out: no other thread has it. A call in
    nested functions may be yielded several times.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="msgspec")), attr="decode"), keywords=options
            ):
                yield from ((node.lineno, each.value) for each in options if each.arg == "type")
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="msgspec"), attr="convert"), args=values, keywords=options
            ):
                yield from ((node.lineno, value) for value in values[1:2])
                yield from ((node.lineno, each.value) for each in options if each.arg == "type")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
                yield from (
                    (call.lineno, type_)
                    for call in calls
                    if isinstance(call.func, ast.Attribute) and call.func.attr == "Decoder"
                    for type_ in [*call.args[:1], *(each.value for each in call.keywords if each.arg == "type")]
                    if not isinstance(type_, ast.Call)
                )


def _is_built_in(type_: ast.expr) -> bool:
    """Return True for a type such as `list[str]`, for which msgspec keeps nothing."""
    names = {node.id for node in ast.walk(type_) if isinstance(node, ast.Name)}
    return names <= {"str", "bytes", "int", "float", "bool", "list", "dict", "tuple"}


def read_tree(root: Path) -> tuple[Module, ...]:
    """Read the modules of all packages in LAYERS and BESIDE. root: of the checkout."""
    return read(root, [*LAYERS, *BESIDE])


def main() -> int:
    """Print every violation in this checkout to stderr. Return 1 if there is one, else 0."""
    found = faults(read_tree(Path(__file__).resolve().parents[2]))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
