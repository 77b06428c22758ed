"""Text to training data: ours beside gigatoken's own reader, Megatron-LM's two scripts and datatrove's writer.

Every run is a process of its own over the same generated text with the same tokenizer, two workers or threads, from a
file in the page cache to files on a disk. Sides take turns, so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from hack.bench.preprocess import measure, sides
from hack.bench.preprocess.corpus import Corpus
from hack.bench.preprocess.measure import CommandFailed, Usage
from hack.bench.preprocess.results import MergeResult, PreprocessFindings, PreprocessRunResult, tables, targets
from hack.bench.preprocess.sides import DATATROVE, FAST, OLD, OURS, MissingPreprocessor, Preprocessor
from hack.bench.support.measure import progress
from hack.bench.support.outcome import Outcome, Scale

DISK = Path("/var/tmp")
MB, GB = 1_000_000, 1_000_000_000
SLOW = (OLD, DATATROVE)  # below 5 MB/s on a core; they read less of the same text


@dataclass(frozen=True, slots=True)
class PreprocessPlan:
    """Sizes of a run."""

    text_bytes: int
    slow_bytes: int
    rounds: int
    memory: tuple[tuple[int, int], ...]  # bytes of a file, and how many times the file is read
    long_bytes: int  # of the long document, and of all small ones together
    long_rounds: int
    merges: int


FULL = PreprocessPlan(
    GB, 64 * MB, rounds=5, memory=((GB, 1), (4 * GB, 1), (4 * GB, 4)), long_bytes=500 * MB, long_rounds=3, merges=5
)
QUICK = PreprocessPlan(64 * MB, 2 * MB, rounds=2, memory=((64 * MB, 1),), long_bytes=32 * MB, long_rounds=1, merges=3)
SMALLEST = PreprocessPlan(1 * MB, 1 * MB, rounds=1, memory=((1 * MB, 1),), long_bytes=1 * MB, long_rounds=1, merges=1)


def run(scale: Scale) -> Outcome:
    """Measure all sides. Only FULL has all of the text and all rounds."""
    with tempfile.TemporaryDirectory(prefix="turnout-preprocess-", dir=DISK) as folder:
        return run_preprocessors(Path(folder), scale.pick(FULL, QUICK, SMALLEST), full=scale is Scale.FULL)


def run_preprocessors(folder: Path, plan: PreprocessPlan, *, full: bool) -> Outcome:
    """Run the benchmark and return its outcome.

    folder: for the generated text, which stays there for another run. full: the sizes are those that the targets name.
    A side that failed or is not installed becomes a note.
    """
    busy = os.getloadavg()[0]
    bench = PreprocessBenchmark(Corpus(folder), plan)
    findings = bench.measure_all()
    found = [each.note for each in bench.peers if isinstance(each, MissingPreprocessor)]
    notes = [
        "Rates are after start-up: the time of a run over one short document is subtracted. MB are of JSON lines.",
        f"Megatron's preprocess_data.py and datatrove read {plan.slow_bytes / MB:,.0f} MB of the same text, once.",
        "The CPU time of datatrove's workers and of Spark's is not counted: their parents do not wait for them.",
        f"Memory: {_memory_note(plan)}.",
        f"{_versions()}; {len(os.sched_getaffinity(0))} cores, load average {busy:.1f} before the run.",
        *found,
        *bench.faults,
    ]
    return Outcome(
        title="preprocess: text to Megatron's indexed datasets",
        tables=tables(findings),
        targets=targets(findings, full=full),
        notes=notes,
    )


def _memory_note(plan: PreprocessPlan) -> str:
    """Return the note about the memory measurement: for each size, the file's size and how many times it is read."""
    sizes = [(f"{size_bytes * times / GB:g} GB is", size_bytes, times) for size_bytes, times in plan.memory]
    return ", ".join(
        f"{label} one file" if times == 1 else f"{label} one file of {size_bytes / GB:g} GB, read {times} times"
        for label, size_bytes, times in sizes
    )


def _versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("gigatoken", "tokenizers"))


@dataclass(slots=True)
class PreprocessBenchmark:
    """One run of the benchmark. faults: a line for each failure. peers: the sides that are not always there."""

    corpus: Corpus
    plan: PreprocessPlan
    faults: list[str] = field(default_factory=list)
    peers: list[Preprocessor | MissingPreprocessor] = field(default_factory=list)
    _digests: dict[tuple[str, Path], str] = field(default_factory=dict)  # of the tokens of a side for a file
    _starts: dict[str, list[Usage]] = field(default_factory=dict)
    _rounds: dict[str, list[PreprocessRunResult]] = field(default_factory=dict)

    def measure_all(self) -> PreprocessFindings:
        """Measure all sides and return the findings.

        A failure of one side is added to `faults`, and the others go on. `peers` is set.
        """
        tokenizer = self.corpus.tokenizer()
        vocabulary = tokenizer / "tokenizer.json"
        self.peers = [*sides.peers(os.environ, tokenizer), sides.spark_side(vocabulary)]
        gigatoken = sides.gigatoken_side(vocabulary)
        ours, auto = sides.our_side("gigatoken", vocabulary), sides.our_side("auto", vocabulary)
        others = [peer for peer in self.peers if isinstance(peer, Preprocessor)]
        every = [gigatoken, ours, auto, *others]
        for side in every:
            self._start(side)  # with cold files and without compiled modules; it does not count
        text, less = self.corpus.lines(self.plan.text_bytes), self.corpus.lines(self.plan.slow_bytes)
        for _ in range(self.plan.rounds):
            for side in every:
                if side.name not in SLOW:
                    self._measure(side, text)
        self._run_side(ours, less)
        self._run_side(sides.gigatoken_side(vocabulary, keep=True), less)
        for side in others:
            if side.name in SLOW:
                self._measure(side, less)
        return PreprocessFindings(
            starts=self._starts,
            rounds=self._rounds,
            long_document=self._long_document(ours),
            merges=self._merges(vocabulary, text),
            equal=self._compare_tokens(),
            memory=self._memory(ours, [side for side in others if side.name == FAST]),
        )

    def _start(self, side: Preprocessor) -> PreprocessRunResult | None:
        """Run a side over one short document. Return the run; None after a failure."""
        one, two = self.corpus.short_documents()
        return self._run_side(side, one, [one, two] if side.halves else [one])

    def _measure(self, side: Preprocessor, text: Path) -> None:
        """Run a side over one short document and over `text`. Store both runs, or none of them if one failed."""
        start, run = self._start(side), self._run_side(side, text)
        if start is not None and run is not None:
            self._starts.setdefault(side.name, []).append(start.usage)
            self._rounds.setdefault(side.name, []).append(run)

    def _merges(self, vocabulary: Path, text: Path) -> list[MergeResult]:
        """Time the merge of our shards against `cp` of the same files, `plan.merges` times.

        text: what the shards are made from. vocabulary: path of tokenizer.json. Returns [] after a failure, which is
        added to `faults`.
        """
        with tempfile.TemporaryDirectory(dir=self.corpus.folder) as folder:
            log = Path(folder) / "log"
            words = ["hack.bench.preprocess.merge_script", str(text), str(vocabulary), folder, str(self.plan.merges)]
            try:
                measure.run([sys.executable, "-m", *words], sides.environment(), log)
            except CommandFailed as error:
                self.faults.append(f"merge: {error}")
                return []
            return [MergeResult(*found) for found in json.loads(log.read_text().splitlines()[-1])]

    def _memory(self, ours: Preprocessor, others: Sequence[Preprocessor]) -> dict[str, list[PreprocessRunResult]]:
        """Measure the peak memory of `ours` for every size of the plan, and of `others` until a side has succeeded.

        Returns the runs by the name of the side, in the order of the sizes; failed runs are left out. The generated
        files are removed, except the one that the rates read.
        """
        found: dict[str, list[PreprocessRunResult]] = {}
        texts: set[Path] = set()
        for size_bytes, times in self.plan.memory:
            texts.add(text := self.corpus.lines(size_bytes))
            for side in (ours, *(others if not found else ())):
                if (run := self._run_side(side, text, [text] * times, memory=True)) is not None:
                    found.setdefault(side.name, []).append(run)
        for text in texts - {self.corpus.lines(self.plan.text_bytes)}:
            text.unlink()
        return found

    def _long_document(self, ours: Preprocessor) -> list[tuple[PreprocessRunResult, PreprocessRunResult]]:
        """Run `ours` over a text with one long document, and over the same text in small documents.

        This is done `plan.long_rounds` times. Returns (run over the long document, run over the small ones) for each
        round in which both succeeded. Both files are removed.
        """
        long, small = self.corpus.long_document(self.plan.long_bytes, self.plan.long_bytes)
        found = []
        for _ in range(self.plan.long_rounds):
            runs = self._run_side(ours, long), self._run_side(ours, small)
            if runs[0] is not None and runs[1] is not None:
                found.append((runs[0], runs[1]))
        long.unlink()
        small.unlink()
        return found

    def _run_side(
        self, side: Preprocessor, text: Path, paths: Sequence[Path] | None = None, *, memory: bool = False
    ) -> PreprocessRunResult | None:
        """Run a side once and store the digest of its tokens for `text`. Return the run; None after a failure, which is
        added to `faults`.

        paths: inputs in place of `text`; no digest is stored unless they are `text` alone. memory: also measure the
        peak memory. The output of the side is removed.
        """
        read = list(paths) if paths else [*self.corpus.halves(text)] if side.halves else [text]
        with tempfile.TemporaryDirectory(dir=self.corpus.folder) as folder:
            out = Path(folder) / "out"
            command = side.command(read, out)
            try:
                usage = measure.run(command, sides.environment(side), Path(folder) / "log", memory=memory)
            except CommandFailed as error:
                self.faults.append(f"{side.name}: {error}")
                progress(self.faults[-1])
                return None
            size_bytes = sum(path.stat().st_size for path in read)
            progress(f"{side.name}: {size_bytes / MB:,.0f} MB, {_usage_text(usage)}")
            if side.outputs and (paths is None or paths == [text]):
                self._digests.setdefault((side.name, text), _digest([Path(f"{out}{name}") for name in side.outputs]))
        return PreprocessRunResult(size_bytes, usage)

    def _compare_tokens(self) -> dict[str, bool]:
        """Return, by the name of a side, whether its tokens equal ours for every file that both read. Sides without
        such a file are absent.
        """
        found: dict[str, bool] = {}
        for (name, text), digest in self._digests.items():
            reference = self._digests.get((OURS, text))
            if reference is not None and name != OURS:
                found[name] = found.get(name, True) and digest == reference
        return found


def _digest(paths: Sequence[Path]) -> str:
    """Return the hexadecimal BLAKE2b digest of the files' contents, one after another. Missing files are skipped."""
    total = hashlib.blake2b()
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                while part := file.read(1 << 24):
                    total.update(part)
    return total.hexdigest()


def _usage_text(usage: Usage) -> str:
    peak = f", {usage.peak_mib:,.0f} MiB" if usage.peak_mib else ""
    return f"{usage.wall_s:.1f} s, CPU {usage.cpu_s:.1f} s{peak}"
