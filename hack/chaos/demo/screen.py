"""Shows the demo: a line for whatever happens, with who holds which node, and below them the loss as it falls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hack.chaos.demo.claims import Claim, losses_of, sparkline
from hack.chaos.testbed.manifests import JOB, MAX_WORKERS, node_places
from hack.chaos.testbed.testbed import Testbed

_FREE, _GONE = "·", "x"
_INDENT = 25


class TrainScreen:
    """The story on one terminal, or in one file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._began_s = time.monotonic()
        self.lost_nodes: set[str] = set()

    def open(self) -> None:
        """Print what the demo will show."""
        self._console.print()
        self._console.print(Text("Turnout: no step is lost", style="bold"))
        self._console.print(
            "Four nodes of a GPU under two leaf switches, on an embedded local cluster; pods are processes in "
            "namespaces of their own. Job A trains a torch model over gloo under `turnout-run`, with 1 to "
            f"{MAX_WORKERS} workers, and saves to memory after every step. The real extender places, the real "
            "autoscaler lends, and things go wrong."
        )
        self._console.print()
        self._console.print(
            f"Each line shows who holds the nodes of each leaf: A is a worker of job A, R one of a rigid job, {_FREE} "
            f"an idle node, {_GONE} one that is lost. What is claimed is checked against what each process wrote down."
        )
        self._console.print()

    @contextmanager
    def acts(self) -> Iterator[None]:
        """Print the heading of the rows, and show the current loss at the bottom of the terminal while the block runs.

        Without a terminal only the heading is printed.
        """
        self._console.print(Text(f"{'at s':>5}  leaf-1 leaf-2  step  what happens", style="bold"))
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def print_event(self, stage: Testbed, text: str, style: str = "") -> None:
        """Print one line: time, GPUs in use, step, and the text of the event. style: of rich."""
        step = max((record.step for record in stage.records if record.event == "stepped"), default=0)
        row = Text(f"{time.monotonic() - self._began_s:5.1f}  ")
        for leaf in (node_places()[:2], node_places()[2:]):
            row.append_text(self._signs(stage, [place.name for place in leaf]))
            row.append(" " * 5)
        row.append(f"{step:>4}  ")
        for number, part in enumerate(wrap(text, max(30, self._console.width - _INDENT - 2))):
            row.append("\n" + " " * (_INDENT + 1) if number else "")
            row.append(part, style=style)
        self._console.print(row, soft_wrap=True)

    def show_claim(self, claim: Claim) -> None:
        """Print a claim, and whether it was true."""
        mark = Text("true   " if claim.holds else "FALSE  ", style="bold green" if claim.holds else "bold red")
        for number, part in enumerate(wrap(claim.text, max(30, self._console.width - 8))):
            self._console.print(Text("       ") if number else mark, Text(part), end="\n", sep="")

    def tick(self, stage: Testbed, total: int) -> None:
        """Update the loss and the step at the bottom of the terminal. total: steps of the whole job."""
        if self._live is not None:
            losses = losses_of(stage.records)
            step = len(losses)
            bar = sparkline(losses, max(20, self._console.width - 30))
            newest = f"  loss {losses[-1]:.3f}" if losses else ""
            self._live.update(Group(Text(), Text(f"  step {step}/{total}{newest}  {bar}", style="cyan")), refresh=True)

    def close(self, stage: Testbed, claims: Sequence[Claim]) -> None:
        """Print the loss from the first step to the last, and the claims."""
        self._console.print()
        self._console.print(Text("The loss from the first step to the last:", style="bold"))
        self._console.print(Text("  " + sparkline(losses_of(stage.records), self._console.width - 4), style="cyan"))
        self._console.print()
        for claim in claims:
            self.show_claim(claim)
        self._console.print()
        true = sum(claim.holds for claim in claims)
        style = "bold green" if true == len(claims) else "bold red"
        took_s = time.monotonic() - self._began_s
        self._console.print(Text(f"{true} of {len(claims)} claims are true, in {took_s:.0f} s.", style=style))

    def _signs(self, stage: Testbed, nodes: Sequence[str]) -> Text:
        """Return one character for each of `nodes`: A (our job), R (the rigid job), _GONE (lost) or _FREE."""
        found = Text()
        for node in nodes:
            pods = [name for name, pod in stage.pods.items() if _is_on(pod, node)]
            sign = _GONE if node in self.lost_nodes else _FREE
            if pods:
                sign = "A" if pods[0].startswith(f"{JOB}-") else "R"
            found.append(sign, style={"A": "bold cyan", "R": "bold yellow", _GONE: "red"}.get(sign, "dim"))
        return found


def _is_on(pod: dict[str, object], node: str) -> bool:
    """Return True if a pod is bound to this node and has not ended."""
    spec, status = pod["spec"], pod.get("status") or {}
    assert isinstance(spec, dict)
    assert isinstance(status, dict)
    return spec.get("nodeName") == node and status.get("phase") not in ("Succeeded", "Failed")
