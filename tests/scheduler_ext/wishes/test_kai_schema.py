"""The PodGroups of KAI in the tables of wishes are such as its CRD takes, by tests/crds/kai."""

import pytest

from tests.jobs.test_queue_schema import misfits, schema
from tests.scheduler_ext.wishes.test_landings import TABLE
from tests.scheduler_ext.wishes.test_layered_wishes import ROWS
from tests.scheduler_ext.wishes.test_wishes import EVERY_ROW
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect

VERSION = POD_GROUP_VERSIONS[Dialect.KAI]
RULE = schema("kai/scheduling.run.ai_podgroups", VERSION.split("/")[1])
SHOWN = [*(row.groups for row in TABLE), *(row.values[3] for row in EVERY_ROW), *(row.values[2] for row in ROWS)]
SPECS = [group["spec"] for groups in SHOWN for group in groups if group.get("apiVersion") == VERSION]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "+".join(spec))
def test_a_podgroup_of_the_tables_is_one_that_kai_takes(spec):
    assert misfits(spec, RULE) == []
    assert misfits({**spec, "nonsense": 1}, RULE) == ["spec.nonsense"]


def test_the_tables_have_many_of_them():
    assert len(SPECS) > 20
