"""The definitions of all kinds that the job controllers know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.colossalaijob import colossalaijob
from turnout.controllers.schemas.elasticjob import elasticjob
from turnout.controllers.schemas.msjob import msjob
from turnout.controllers.schemas.pytorchjob import pytorchjob

SCHEMAS: Mapping[str, Callable[[Kind, str, str], Object]] = {
    "ColossalAIJob": colossalaijob,
    "ElasticJob": elasticjob,
    "MSJob": msjob,
    "PyTorchJob": pytorchjob,
}


def definitions() -> Iterator[Object]:
    """Give the definition of each kind in each group that serves it."""
    for name, schema in SCHEMAS.items():
        for api in KINDS[name].apis:
            group, _, version = api.partition("/")
            yield schema(KINDS[name], group, version)
