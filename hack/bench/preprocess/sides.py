"""The preprocessors that are compared, as commands: ours, and those of others where they are installed.

TURNOUT_PEERS names a folder. Its `Megatron-LM` is a copy of that repository with a `.venv` that can run its tools; its
`datatrove` is a virtual environment. gigatoken runs in this process's environment. They are not in this repository.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "TURNOUT_PEERS"
WORKERS = 2
GIGATOKEN = "gigatoken's file path, writes nothing"
FAST = "Megatron-LM, preprocess_data_fast.py"
OLD = "Megatron-LM, preprocess_data.py"
DATATROVE = "datatrove's Megatron writer"
OURS = "ours, --engine gigatoken"
AUTO = "ours, --engine auto"
SPARK = "ours, --engine gigatoken, on Spark's local[2]"
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]

Command = Callable[[Sequence[Path], Path], list[str]]  # from the files to read and the prefix or folder to write


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """One preprocessor."""

    name: str
    command: Command
    outputs: tuple[str, ...] = ()  # token files in order, after the prefix; empty where nothing is written
    halves: bool = False  # it needs as many files as workers
    variables: tuple[tuple[str, str], ...] = ()  # of the environment


@dataclass(frozen=True, slots=True)
class MissingPreprocessor:
    """A preprocessor that is not installed here."""

    name: str
    reason: str

    @property
    def note(self) -> str:
        """Return the line under the table."""
        return f"{self.name}: not run: {self.reason}."


def our_side(engine: str, vocabulary: Path) -> Preprocessor:
    """Return the side that runs our preprocessor with WORKERS processes.

    engine: "gigatoken" or "auto". vocabulary: path of tokenizer.json.
    """

    def command(paths: Sequence[Path], prefix: Path) -> list[str]:
        program = [sys.executable, "-m", "turnout.preprocess", "--workers", str(WORKERS)]
        return [*program, *_arguments(paths, prefix, engine, vocabulary)]

    return Preprocessor({"gigatoken": OURS, "auto": AUTO}[engine], command, ("_text_document.bin",))


def spark_side(vocabulary: Path) -> Preprocessor | MissingPreprocessor:
    """Return the side that runs our preprocessor on Spark's local[WORKERS], as docs/preprocess.md starts it.

    vocabulary: path of tokenizer.json. Returns MissingPreprocessor with the reason if pyspark or java is missing.
    """
    submit, script = Path(sys.executable).with_name("spark-submit"), _ROOT / "preprocess" / "pyspark_preprocess.py"
    if not submit.exists():
        return MissingPreprocessor(SPARK, "pyspark is not installed")
    if shutil.which("java") is None:
        return MissingPreprocessor(SPARK, "there is no java")

    def command(paths: Sequence[Path], prefix: Path) -> list[str]:
        program = [str(submit), f"--executor-cores={WORKERS}", "--master", f"local[{WORKERS}]", str(script)]
        return [*program, *_arguments(paths, prefix, "gigatoken", vocabulary)]

    variables = (("PYSPARK_PYTHON", sys.executable), ("SPARK_LOCAL_IP", "127.0.0.1"), ("PYTHONPATH", str(_ROOT)))
    return Preprocessor(SPARK, command, ("_text_document.bin",), variables=variables)


def _arguments(paths: Sequence[Path], prefix: Path, engine: str, vocabulary: Path) -> list[str]:
    """Return the command-line arguments of our preprocessor, on one machine and on Spark alike.

    paths: input files. prefix: of the output files. engine: value of --engine. vocabulary: path of tokenizer.json.
    """
    return [
        *("--input", ",".join(map(str, paths)), "--output-prefix", str(prefix), "--append-eod"),
        *("--tokenizer-type", "HFTokenizer", "--vocab-file", str(vocabulary), "--engine", engine),
        *("--log-interval", "10000"),
    ]


def gigatoken_side(vocabulary: Path, *, keep: bool = False) -> Preprocessor:
    """Return the side that runs gigatoken's own reader of JSON lines.

    vocabulary: path of tokenizer.json. keep: also write the tokens, so that they can be compared.
    """

    def command(paths: Sequence[Path], prefix: Path) -> list[str]:
        output = [f"{prefix}.bin"] if keep else []
        return [sys.executable, str(_HERE / "gigatoken_script.py"), str(vocabulary), str(paths[0]), *output]

    return Preprocessor(GIGATOKEN, command, (".bin",) if keep else ())


def peers(environ: Mapping[str, str], tokenizer: Path) -> list[Preprocessor | MissingPreprocessor]:
    """Return the sides of Megatron-LM's two scripts and of datatrove's writer, in this order.

    A side that is not installed is a MissingPreprocessor.
    environ: FOLDER names the folder with the peers. tokenizer: folder with tokenizer.json and tokenizer_config.json.
    """
    names = (FAST, OLD, DATATROVE)
    if not (folder := environ.get(FOLDER)):
        return [MissingPreprocessor(name, f"{FOLDER} names no folder") for name in names]
    megatron, datatrove = Path(folder) / "Megatron-LM", Path(folder) / "datatrove" / "bin" / "python"
    found: list[Preprocessor | MissingPreprocessor] = []
    python = megatron / ".venv" / "bin" / "python"
    for name, script, further in (
        (FAST, "preprocess_data_fast.py", ("--use-gigatoken",)),
        (OLD, "preprocess_data.py", ("--workers", str(WORKERS))),
    ):
        tool = megatron / "tools" / script
        missing = next((path for path in (tool, python) if not path.exists()), None)
        side = _megatron(name, tool, python, tokenizer, further)
        found.append(side if missing is None else MissingPreprocessor(name, f"there is no {missing}"))
    side = _datatrove(datatrove, tokenizer / "tokenizer.json")
    found.append(side if datatrove.exists() else MissingPreprocessor(DATATROVE, f"there is no {datatrove}"))
    return found


def _megatron(name: str, tool: Path, python: Path, tokenizer: Path, further: Sequence[str]) -> Preprocessor:
    """Return the side that runs a preprocessing script of Megatron-LM.

    name: of the side. tool: path of the script. python: interpreter of its environment. tokenizer: folder of the
    tokenizer. further: arguments after the common ones. Of several input files the script gets only the first.
    """

    def command(paths: Sequence[Path], prefix: Path) -> list[str]:
        return [
            *(str(python), str(tool), "--input", str(paths[0]), "--output-prefix", str(prefix)),
            *("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tokenizer), "--append-eod"),
            *further,
        ]

    return Preprocessor(name, command, ("_text_document.bin",))


def _datatrove(python: Path, vocabulary: Path) -> Preprocessor:
    """Return the side that runs datatrove's tokenizer, one task and one worker for each of the two input files.

    python: interpreter of datatrove's environment. vocabulary: path of tokenizer.json.
    """

    def command(paths: Sequence[Path], prefix: Path) -> list[str]:
        return [str(python), str(_HERE / "datatrove_script.py"), str(vocabulary), str(prefix), *map(str, paths)]

    return Preprocessor(DATATROVE, command, ("/00000_tokens.bin", "/00001_tokens.bin"), halves=True)


def environment(side: Preprocessor | None = None) -> dict[str, str]:
    """Return the variables that are added to the environment of a side: WORKERS threads for libraries that start
    their own, and the side's own variables. side: None for the first part alone.
    """
    return {"RAYON_NUM_THREADS": str(WORKERS), "OMP_NUM_THREADS": str(WORKERS), **dict(side.variables if side else ())}
