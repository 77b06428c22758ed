"""The installed torch is the judge: whatever its own parser takes, ours takes. DL-37."""

import re
from pathlib import Path

import pytest

from turnout.launcher.cli.parser import KEYS, OPTIONS
from turnout.launcher.cli.to_settings import read
from turnout.launcher.model import Exit
from turnout.launcher.settings import Settings

EXAMPLES = {string: option.example for option in OPTIONS for string in option.strings}


@pytest.fixture(scope="module")
def parser():
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def lines(parser):
    for action in parser._actions:
        for string in action.option_strings:
            if action.nargs == 0:
                yield [string]
            for value in action.choices or ([] if action.nargs == 0 else [EXAMPLES[string.replace("_", "-")]]):
                yield [string, str(value)]
                yield [f"{string}={value}"]


@pytest.mark.contract("DL-37")
def test_every_option_string_and_choice_of_the_installed_torch_is_taken(parser):
    refused, records = [], set()
    for line in lines(parser):
        found = read([*line, "train.py"], {})
        records.add(line[0].split("=")[0])
        if not isinstance(found, Settings) and found.exit is not Exit.DONE:
            refused.append((line, found.text))
    assert refused == []
    assert len(records) > 50  # dashes, underscores and short ones: the parser was really walked


def test_what_is_not_given_means_the_same_as_in_torchrun(parser):
    theirs = parser.parse_args(["train.py"])
    ours = read(["train.py"], {})
    assert f"{ours.elastic_spec.min_nodes}:{ours.elastic_spec.max_nodes}" == theirs.nnodes
    assert str(ours.processes) == theirs.nproc_per_node
    assert ours.elastic_spec.max_restarts == theirs.max_restarts
    assert ours.command.role == theirs.role
    assert ",".join(ours.start.signals) == theirs.signals_to_handle
    assert (ours.output.redirects.every, ours.output.tee.every) == (int(theirs.redirects), int(theirs.tee))
    assert ours.rendezvous.backend == theirs.rdzv_backend


def test_every_key_that_torchs_back_ends_ask_for_is_known():
    import torch

    folder = Path(torch.__file__).parent / "distributed/elastic/rendezvous"
    source = "".join(file.read_text() for file in sorted(folder.glob("*.py")))
    keys = set(re.findall(r"params\.(?:config\.)?get(?:_as_\w+)?\(\s*\"(\w+)\"", source))
    keys |= {f"{name}_timeout" for name in re.findall(r"_get_timeout\(params, \"(\w+)\"\)", source)}
    assert len(keys) > 12
    assert keys - {key.name for key in KEYS} == set()
