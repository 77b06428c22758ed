"""The kinds that the job controllers know, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnout.controllers.kinds.colossalaijob import COLOSSALAIJOB
from turnout.controllers.kinds.elasticjob import ELASTICJOB, with_master_image
from turnout.controllers.kinds.msjob import MSJOB
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.model import ControlledKind

KINDS: Mapping[str, ControlledKind] = {
    kind.full_name: kind for kind in (COLOSSALAIJOB, ELASTICJOB, MSJOB, PYTORCHJOB, VOLCANOJOB)
}


def by_api(names: Iterable[str], master_image: str = "") -> dict[str, ControlledKind]:
    """Return path of an API group (/apis/GROUP/VERSION) -> kind, for each group that serves one of the named kinds.

    master_image: image of masters of ElasticJobs that name none; "" for their workers' image. Raises KeyError for an
    unknown name.
    """
    known = {**KINDS, ELASTICJOB.kind: with_master_image(master_image)}
    return {f"/apis/{api}": known[name] for name in names for api in known[name].apis}
