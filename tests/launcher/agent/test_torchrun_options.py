"""An option of torchrun that our rendezvous cannot use raises ValueError, as in the rendezvous of torch."""

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from turnout.launcher.agent.torchrun.handler import handler


@pytest.mark.parametrize(
    ("endpoint", "options", "message"),
    [
        pytest.param("w0:70000", {}, "port 70000 is outside", id="a port out of its bounds"),
        pytest.param("w0:port", {}, "port", id="a port that is no number"),
        pytest.param("w0:1", {"join_timeout": "-1"}, "outside 0 to", id="a time out of its bounds"),
        pytest.param("w0:1", {"last_call_timeout": "soon"}, "soon", id="a time that is no number"),
    ],
)
def test_an_option_that_cannot_be_used_is_a_value_error(endpoint, options, message):
    parameters = RendezvousParameters("turnout", endpoint, "run", 1, 2, **options)
    with pytest.raises(ValueError, match=message):
        handler()(parameters)
