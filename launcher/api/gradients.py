"""When the gradients of a wrapped model are averaged over the ranks, in the words of each wrapper.

No wrapper is imported: a model is known by the method that it has.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def synced(model: Any, sync: bool) -> AbstractContextManager[None]:
    """One forward and backward pass, after which gradients are averaged (sync) or only added up.

    FSDP2 is told by set_requires_gradient_sync, DDP and the older FSDP by no_sync. A model without either has no
    gradients to average: it is the only one.
    """
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(sync)
        return nullcontext()
    if sync or not hasattr(model, "no_sync"):
        return nullcontext()
    adding_up: AbstractContextManager[None] = model.no_sync()
    return adding_up
