"""The papers are true: links lead somewhere, targets and flags exist, words and metrics are those of the code."""

import ast
import difflib
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from hack.bench.__main__ import names_of_benchmarks
from hack.lint.architecture import FLOORS, IO_ROOMS
from hack.lint.source_tree import definitions
from turnout.autoscaler.controller.metrics import Metrics as Lending
from turnout.autoscaler.model import Reason as Lent
from turnout.autoscaler.node_faults.model import NodeReason as OfNode
from turnout.controllers.model import Reason as Controlled
from turnout.controllers.runtime.metrics import Metrics as Controls
from turnout.kube import labels
from turnout.kube.client.clock import RealClock
from turnout.launcher.agent.metrics import Metrics as Launched
from turnout.scheduler_ext.gates.runtime.gate_metrics import EvictionCounts, Gates, RepairCounts
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.planner.nominate import Why
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.nomination_writer import Nominations
from turnout.scheduler_ext.server.switch_path_writer import SwitchPaths
from turnout.simulator.cluster import kubelet
from turnout.topology import configmap_keys
from turnout.topology.configmap_keys import CONFIRM
from turnout.topology.sources import parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for room in ("docs", "deploy", "examples") for page in ROOT.glob(f"{room}/**/*.md"))]
)
BY_NAME = {paper.relative_to(ROOT).as_posix(): paper for paper in PAGES}
EVERY_PAGE = pytest.mark.parametrize("paper", PAGES, ids=list(BY_NAME))
# These quote the commands, flags and files of guides and of other projects.
OWN = {
    name: paper
    for name, paper in BY_NAME.items()
    if not name.startswith(("docs/contract.md", "docs/guide-index.md", "docs/facts/"))
}
EVERY_PAGE_OF_OWN_WORDS = pytest.mark.parametrize("paper", OWN.values(), ids=list(OWN))

OF_PODS = {kubelet.RUNS_FOR, kubelet.EXIT_CODE, kubelet.IGNORES_TERM}
ELSEWHERE = {"venv", "pip", "pytest", "torch.distributed.run"}  # not ours, as `python -m` names them
# of our bench and CLI, of helm, kube-scheduler and kubectl
OTHER_PROGRAMS_FLAGS = {
    *("--quick", "--set", "--config", "--server-side", "--tail", "--follow", "--previous"),
    *("--nnodes", "--node_unit", "--min-np", "--max-np"),  # of torchrun, DLRover and Horovod
    "--json",  # of py-spy
}
ANNOTATION = r"(?:\w+\.)?turnout\.dev/[a-z-]+"


def text(name):
    return BY_NAME[name].read_text()


def code(page):
    """Give what a reader may type or look up: fenced blocks and code spans."""
    fences = re.findall(r"^```[a-z]*\n(.*?)^```", page, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", rest)])


def anchors(page):
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def yaml_blocks(page):
    for block in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S):
        yield from yaml.safe_load_all(block)


@cache
def help_of(*command):
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def flags(words):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words))


@EVERY_PAGE
def test_every_link_leads_somewhere(paper):
    page = paper.read_text()
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (paper.parent / path).resolve() if path else paper
        if not there.exists() or (anchor and anchor not in anchors(there.read_text())):
            dead.append(target)
    assert dead == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_make_target_and_program_that_is_named_is_there(paper):
    said = code(paper.read_text())
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?<![\w/-])make ([a-z][a-z-]*)", said)) - targets == set()
    for module in set(re.findall(r"python(?:3\.11)? -m ([\w.]+)", said)) - ELSEWHERE:
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        if spec.submodule_search_locations:
            assert importlib.util.find_spec(f"{module}.__main__"), module
    for name in set(re.findall(r"python -m hack\.bench ([a-z]+)", said)):
        assert name in names_of_benchmarks()


@EVERY_PAGE_OF_OWN_WORDS
def test_every_command_of_turnout_that_is_named_is_there(paper):
    commands = re.findall(
        r"(?<![\w./-])(?<!from )(?<!--install )turnout ((?:[a-z]+(?:-[a-z]+)* ?)+)", code(paper.read_text())
    )
    assert [command for command in sorted(set(commands)) if not help_of("turnout.cli", *command.split())] == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_file_and_folder_that_is_named_is_there(paper):
    named = re.findall(
        r"(?<![\w./:~-])((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|yaml|txt|cfg|toml))?)(?![\w/])", code(paper.read_text())
    )
    ours = {path for path in named if (ROOT / path.split("/", 1)[0]).exists()} - {"build/bench/"}
    assert sorted(path for path in ours if not (ROOT / path).exists()) == []


def test_the_picture_of_the_house_names_every_room():
    page = text("docs/architecture.md")
    rooms = {init.parent for floor in (*FLOORS, "hack") for init in (ROOT / floor).rglob("__init__.py")}
    small = {"hack/bench"}  # its own folders are named by its benchmarks
    paths = {room.relative_to(ROOT).as_posix() for room in rooms}
    paths = {path for path in paths if not any(path.startswith(f"{above}/") for above in small)}
    assert sorted(path for path in paths if f"{path}/" not in page) == []


def test_the_tables_of_the_architecture_say_what_may_do_io():
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\| ([^|]*) \|$", text("docs/architecture.md"), re.M)
    told = {folder.replace("/", ".") for folder, io in rows if "**I/O**" in io}
    told |= {f"{folder.replace('/', '.')}.{name}" for folder, io in rows for name in re.findall(r"`(\w+)\.py`", io)}
    assert told == set(IO_ROOMS)


def test_ci_runs_the_test_command_of_the_readme():
    marked = re.search(r"<!-- the test command -->\n```sh\n(.*?)\n```", text("README.md"), re.S)
    assert marked is not None
    assert marked.group(1) == "make test"
    assert "<!-- the test command -->" in (ROOT / ".ci/run").read_text()


@EVERY_PAGE
def test_yaml_that_is_shown_can_be_used(paper):
    maps = [block for block in yaml_blocks(paper.read_text()) if block.get("kind") == "ConfigMap"]
    assert [parse.read(block["data"]).faults for block in maps] == [()] * len(maps)


def test_the_readme_shows_both_forms_of_the_map():
    blocks = (block for block in yaml_blocks(text("README.md")) if block.get("kind") == "ConfigMap")
    assert {key for block in blocks for key in block["data"]} == {configmap_keys.YAML_KEY}
    (lines,) = re.findall(r"topology\.txt <<'EOF'\n(.*?)EOF\n", text("README.md"), re.S)
    assert parse.read({configmap_keys.TEXT_KEY: lines}).faults == ()


def test_the_extender_block_of_the_readme_is_that_of_the_shipped_file():
    shipped = yaml.safe_load((ROOT / "deploy/scheduler/kube-scheduler-config.yaml").read_text())
    (shown,) = [block for block in yaml_blocks(text("README.md")) if "extenders" in block]
    assert shown["percentageOfNodesToScore"] == shipped["percentageOfNodesToScore"]
    (ours,), (theirs,) = shown["extenders"], shipped["extenders"]
    assert ours.items() <= theirs.items()


def test_the_notes_of_helm_agree_with_the_shipped_scheduler_file():
    shipped = yaml.safe_load((ROOT / "deploy/scheduler/kube-scheduler-config.yaml").read_text())["extenders"][0]
    notes = (ROOT / "deploy/charts/turnout/templates/NOTES.txt").read_text()
    for key in ("caFile", "certFile", "keyFile"):
        assert f"{key}: {shipped['tlsConfig'][key]}\n" in notes
    (devices,) = re.findall(r"range list (.*) }}", notes)
    assert devices.replace('"', "").split() == [each["name"] for each in shipped["managedResources"]]


def test_every_flag_is_told_and_every_told_flag_is_there():
    there = flags(help_of("turnout.scheduler_ext") + help_of("turnout.scheduler_ext.nominator")) - {"--help"}
    told = flags(code(text("docs/extender.md")))
    assert there - told == set()
    assert told - there - OTHER_PROGRAMS_FLAGS == set()


@EVERY_PAGE_OF_OWN_WORDS
def test_no_paper_tells_a_flag_of_ours_that_is_not_there(paper):
    programs = (
        ("turnout.scheduler_ext",),
        ("turnout.scheduler_ext.nominator",),
        ("turnout.autoscaler",),
        ("turnout.controllers",),
        ("hack.bench",),
        ("turnout.cli", "local", "up"),
        ("turnout.cli", "demo"),
        ("turnout.cli", "why"),
        ("turnout.cli", "jobs"),
        ("turnout.cli", "logs"),
        ("turnout.cli", "explain"),
        ("turnout.cli", "history"),
        ("turnout.cli", "simulate"),
        ("turnout.cli", "pause"),
        ("turnout.cli", "nodes"),
        ("turnout.cli", "version"),
        ("turnout.launcher",),
    )
    there = flags("".join(help_of(*program) for program in programs))
    # In the open, only flags of our own programs: those in shell blocks belong to anybody.
    spans = re.findall(r"`(--[a-z-]+)`", paper.read_text())
    assert set(spans) - there - OTHER_PROGRAMS_FLAGS == set()


def test_every_flag_and_reason_of_the_job_controllers_is_told():
    page = text("docs/jobs.md")
    there = flags(help_of("turnout.controllers")) - {"--help", "--kubeconfig", "--context", "--log-level"}
    assert there - flags(code(page)) == set()
    assert [each.value for each in Controlled if f"`{each.value}`" not in page] == []


def test_every_flag_and_reason_of_the_autoscaler_is_told():
    page = text("docs/autoscaler.md")
    there = flags(help_of("turnout.autoscaler")) - {"--help"}
    assert there
    assert there - flags(code(page)) == set()
    assert set(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.M)) == {reason.value for reason in Lent}


def test_every_word_of_a_node_is_told():
    assert set(re.findall(r"^\| `([A-Z]\w+)` \|", text("docs/faulty-nodes.md"), re.M)) == {
        word.value for word in OfNode
    }


def test_every_flag_of_the_local_cluster_is_told():
    there = flags(help_of("turnout.cli", "local", "up")) - {"--help"}
    assert there
    assert there - flags(code(text("docs/local-cluster.md"))) == set()


def test_every_reason_is_told():
    page = text("docs/extender.md")
    table = set(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.M))
    assert table == {word.value for word in EventReason}
    assert [why.value for why in Why if f"`{why.value}`" not in page] == []


def metrics():
    page = Metrics()
    page.certificate_ends(0.0)
    page.pass_through(list, RealClock())
    Nominations(page.registry)
    Gates(page.registry)
    EvictionCounts(page.registry)
    RepairCounts(page.registry)
    SwitchPaths(page.registry)
    both = page.page().decode() + Lending("nvidia.com/gpu").page().decode()
    both += generate_latest(Launched("bert").registry).decode() + Controls(int).page().decode()
    return set(re.findall(r"^# TYPE (turnout_\w+) ", both, re.M))


def test_every_metric_is_told():
    told = text("docs/extender.md") + text("docs/autoscaler.md") + text("docs/launcher.md") + text("docs/jobs.md")
    assert sorted(metrics() - set(re.findall(r"turnout_\w+", told))) == []


@pytest.mark.contract("VE-09")
@EVERY_PAGE_OF_OWN_WORDS
def test_every_told_metric_is_there(paper):
    said = set(re.findall(r"`(turnout_\w+)`", paper.read_text()))
    assert sorted(said - metrics()) == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_told_annotation_is_ours(paper):
    ours = {value for value in vars(labels).values() if isinstance(value, str)} | {CONFIRM} | OF_PODS
    assert set(re.findall(ANNOTATION, paper.read_text())) - ours == set()


def test_every_annotation_of_ours_is_told():
    ours = {value for value in vars(labels).values() if isinstance(value, str) and value.startswith("turnout.dev/")}
    told = set(re.findall(ANNOTATION, text("README.md") + text("docs/extender.md") + text("docs/autoscaler.md")))
    assert ours - told == set()
    assert OF_PODS - set(re.findall(ANNOTATION, text("docs/local-cluster.md"))) == set()


@pytest.mark.contract("DL-124")
def test_koordinators_install_is_told_with_what_works_beside_it():
    page = text("docs/install-koordinator.md")
    said = code(page)
    for word in ("helm install koordinator koordinator-sh/koordinator", "imageRepositoryHost", "-n koordinator-system"):
        assert word in said, word
    go_mod = (ROOT / "hack/controlplane/modules/kube/go.mod").read_text()
    (tried,) = re.findall(r"^\s*k8s\.io/kubernetes v([\d.]+)", go_mod, re.M)
    matrix = [line for line in page.splitlines() if re.match(r"\| (kube-scheduler|koord-scheduler|Volcano)", line)]
    assert len(matrix) == 4
    assert f"{tried} in the tests" in matrix[0]
    group = next(block for block in yaml_blocks(page) if block["kind"] == "PodGroup")
    assert group["spec"] == {"scheduleTimeoutSeconds": 100, "minMember": 4}


@EVERY_PAGE
def test_every_test_that_is_named_is_there(paper):
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", paper.read_text()))
    there = {path: {each.name for each in definitions(ast.parse((ROOT / path).read_text()))} for path, _ in named}
    assert [f"{path}::{name}" for path, name in sorted(named) if name not in there[path]] == []


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_lines_that_differ_from_plain_torchrun_are_those_of_the_scripts(kind):
    plain, elastic = ((ROOT / f"examples/{kind}/{name}.py").read_text().splitlines() for name in ("plain", "elastic"))
    found = list(difflib.unified_diff(plain, elastic, n=0, lineterm=""))[2:]
    block = "\n".join("" if line.startswith("@@") else line for line in found).strip()
    page = text("examples/README.md")
    assert f"```diff\n{block}\n```" in page
    gone, come = (sum(line.startswith(mark) and line != mark for line in found) for mark in "-+")
    assert f"{gone} lines go, {come} come" in page
