"""The definitions of all kinds that the job controllers know, and of ScalePlans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from turnout.controllers.kinds.elasticjob import API
from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.colossalaijob import colossalaijob
from turnout.controllers.schemas.elasticjob import elasticjob, scale_plan
from turnout.controllers.schemas.msjob import msjob
from turnout.controllers.schemas.pytorchjob import pytorchjob
from turnout.controllers.schemas.volcanojob import volcanojob

SCHEMAS: Mapping[str, Callable[[Kind, str, str], Object]] = {
    "ColossalAIJob": colossalaijob,
    "ElasticJob": elasticjob,
    "MSJob": msjob,
    "PyTorchJob": pytorchjob,
    "VolcanoJob": volcanojob,
}


def definitions() -> Iterator[Object]:
    """Give the definition of each kind in each group that serves it, then that of ScalePlans."""
    for name, schema in SCHEMAS.items():
        for api in KINDS[name].apis:
            group, _, version = api.partition("/")
            yield schema(KINDS[name], group, version)
    group, _, version = API.partition("/")
    yield scale_plan(group, version)
