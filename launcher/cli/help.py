"""Writes the options as pages: the help, a shell completion, docs/launcher-options.md, and what --explain prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import groupby
from textwrap import wrap

from turnout.launcher.cli.options import OPTIONS, Effect, Option
from turnout.launcher.cli.parser import KEYS, ConfigKey
from turnout.launcher.model import Exit
from turnout.launcher.settings import Command, NoteSubject, Settings

# What each exit code means, for the page and the help.
EXITS = {
    Exit.DONE: "all workers have finished; they exit together",
    Exit.FAILED: "the restarts are spent, the world never formed, or no coordinator may decide; the log has the reason",
    Exit.USAGE: "the command line is invalid; the message names the faulty part",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.FAULTY: "this node is faulty; a job controller should start the worker elsewhere",
    Exit.DRAINED: "asked to leave by SIGTERM, and drained",
}

# What each subject of a warning at the start means.
WARNINGS = {
    NoteSubject.NO_EFFECT: "the option, its value, the key or the variable changes nothing; the reason follows",
    NoteSubject.NO_ADDRESS: "there are several workers and no rendezvous address: only those of this machine can meet",
    NoteSubject.OTHER_BACKEND: "static cannot be resized: the dynamic rendezvous is used instead",
    NoteSubject.RESIZING: "resizing is not promised for this strategy",
}

_HEAD = """# The options of turnout-run

`turnout-run [options] script [arguments]`; `dlrover-run`, of the extra `dlrover-names`, is the same program. It takes
every option of torchrun, and the options of DLRover's command that have an effect here, under the same names.
Arguments after the script are passed to it unchanged. Names may be written with dashes or underscores, and may not be
abbreviated.

Each option is also a variable, `PET_` and its name in capitals with underscores, as in `PET_MAX_RESTARTS=3`; a flag is
1 or 0. Turnout's own options can also be set as `TURNOUT_` and the name. The command line wins over `PET_`, and `PET_`
over the other variables in the table. An empty variable counts as unset. An invalid value ends the program with code 2
and a message that names it.

Options marked `no effect here` are accepted; the agent warns at its start, with the reason in the table. All other
options set the named fields of the agent's settings. The parser's tests check each row of these tables; the page is
written by `python -m turnout.launcher.cli`.
"""


def usage(program: str) -> str:
    """Return the help text: every option by origin, and the keys of --rdzv-conf. program: the name of the command."""
    lines = [f"usage: {program} [options] script [arguments of the script]", ""]
    lines += ["Each option is also PET_<NAME>; dashes and underscores are equal; names may not be abbreviated."]
    for origin, options in groupby(OPTIONS, lambda option: option.origin):
        lines += ["", f"{origin.value}:"]
        for option in options:
            names = ", ".join(reversed(option.strings))
            lines.append(f"  {names} {option.value}".rstrip())
            lines += _paragraph(_option_text(option))
    lines += ["", "keys of --rdzv-conf:"]
    for key in KEYS:
        lines += [f"  {key.name}", *_paragraph(_key_text(key))]
    return "\n".join(lines)


SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")


def completion_script(shell: str, program: str) -> str:
    """Return a script that makes a shell complete the options. shell: one of SHELLS, those that torchrun has."""
    names = [string for option in OPTIONS for string in option.strings if string.startswith("--")]
    match shell:
        case "tcsh":
            return f"complete {program} 'c/--/({' '.join(name[2:] for name in names)})/' 'p/*/f/'"
        case "fish":
            return "\n".join(f"complete -c {program} -l {name[2:]}" for name in names)
        case "powershell":
            listed = ", ".join(f"'{name}'" for name in names)
            return (
                f"Register-ArgumentCompleter -Native -CommandName {program} -ScriptBlock {{\n"
                "  param($word)\n"
                f'  @({listed}) | Where-Object {{ $_ -like "$word*" }}\n'
                "}"
            )
    words = f"complete -o default -W '{' '.join(names)}' {program}"
    return words if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{words}"


def markdown() -> str:
    """Return the whole page docs/launcher-options.md."""
    parts = [_HEAD]
    for origin, options in groupby(OPTIONS, lambda option: option.origin):
        rows = [
            (_names_cell(option), _variables_cell(option), _option_text(option), _fields_cell(option.sets))
            for option in options
        ]
        parts.append(_table(f"## Options of {origin.value}", ("option", "also read", "here", "sets"), rows))
    keys = [(f"`{key.name}`", _key_text(key), _fields_cell(key.sets)) for key in KEYS]
    parts.append(_table("## Keys of rdzv-conf", ("key", "here", "sets"), keys))
    warned = [(f"`{word.value}`", text) for word, text in WARNINGS.items()]
    parts.append(_table("## Warnings", ("warning", "says"), warned))
    exits = [(str(code.value), code.name.lower(), text) for code, text in EXITS.items()]
    parts.append(_table("## Exit codes", ("code", "name", "means"), exits))
    return "\n".join(parts)


def _option_text(option: Option) -> str:
    """Return what the option does here, or that it has no effect and why."""
    return f"{Effect.NONE.value}: {option.text}" if option.effect is Effect.NONE else option.text


def _key_text(key: ConfigKey) -> str:
    """Return what the key does here, or that it has no effect and why."""
    return key.text if key.sets else f"{Effect.NONE.value}: {key.text}"


def _paragraph(text: str) -> list[str]:
    """Return the text as indented lines of the help."""
    return wrap(text, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _names_cell(option: Option) -> str:
    """Write the spellings of an option as a cell of a Markdown table."""
    spans = [f"`{string} {option.value}".rstrip() + "`" for string in option.strings]
    return ", ".join(spans).replace("|", "\\|")


def _variables_cell(option: Option) -> str:
    """Write the variables that set an option as a cell, without the first: PET_ and the name."""
    return ", ".join(f"`{variable}`" for variable in option.variables[1:])


def _fields_cell(names: Sequence[str]) -> str:
    """Write the names of settings fields as a cell."""
    return ", ".join(f"`{name}`" for name in names)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table below its title, as text. heads: of the columns."""
    lines = [title, "", f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    lines += [f"| {' | '.join(cell.replace(' | ', ' ') for cell in row)} |" for row in rows]
    return "\n".join([*lines, ""])


_SHOWN_APART = ("given_options", "notes")  # fields that explain() prints on lines of their own


def explain(settings: Settings) -> str:
    """Return what --explain prints: the options as given, the settings that differ from the defaults, the notes."""
    defaults = dict(flatten_settings(Settings(Command("script"))))
    lines = [f"given: {' '.join(settings.given_options) or 'nothing'}"]
    lines += [
        f"{name} = {value}"
        for name, value in flatten_settings(settings)
        if value != defaults[name] and name != "explain"
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in settings.notes)])


def flatten_settings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value as text) for every field, except the options as given and the notes."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in _SHOWN_APART:
            continue
        if not is_dataclass(value):
            yield field.name, _text(value)
            continue
        for inner in fields(value):
            yield f"{field.name}.{inner.name}", _text(getattr(value, inner.name))


def _text(value: object) -> str:
    """Return a setting as --explain prints it."""
    return str(value.value) if isinstance(value, Enum) else str(value)
