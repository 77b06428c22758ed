"""How far a job's pods may be apart, for forecasts: the same words that the extender reads."""

import pytest

from turnout.jobs.annotations import spread
from turnout.jobs.model import Spread
from turnout.jobs.wishes import kai, kueue, volcano
from turnout.kube import labels

REQUIRED = {labels.TOPOLOGY: "required"}


@pytest.mark.parametrize(("notes", "found"), [
    pytest.param({}, Spread(None, 1), id="nothing said"),
    pytest.param(REQUIRED, Spread(1, 1), id="required is a leaf"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: "2"}, Spread(2, 1), id="a tier"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: "0"}, Spread(0, 1), id="one host"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: "block"}, Spread(2, 1), id="a word"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: "x.io/zone"}, Spread(3, 1), id="a key that ends in a word"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: labels.HOSTNAME}, Spread(0, 1), id="the host's own label"),
    pytest.param({**REQUIRED, labels.TOPOLOGY_TIER: "-9"}, Spread(1, 1), id="what cannot be read"),
    pytest.param({kueue.REQUIRED: "cloud.provider.com/topology-block"}, Spread(2, 1), id="Kueue's"),
    pytest.param({volcano.HIGHEST_TIER: "2"}, Spread(2, 1), id="Volcano's"),
    pytest.param({kai.REQUIRED: "rack", labels.PODS_PER_HOST_MULTIPLE: "2"}, Spread(1, 2), id="KAI's, and ours"),
])  # fmt: skip
def test_a_wish_is_read_as_the_extender_reads_it(notes, found):
    assert spread(notes) == found
