"""Controls when a wrapped model averages gradients over the ranks, for each kind of wrapper.

No wrapper is imported: a model is recognised by its methods.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def synced(model: Any, sync: bool) -> AbstractContextManager[None]:
    """Return a context for one forward and backward pass that averages gradients (`sync`) or only accumulates them.

    FSDP2 uses set_requires_gradient_sync, which takes effect at this call and lasts until the next one. DDP and the
    older FSDP use no_sync within the context. A model without either is alone and averages nothing.
    """
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(sync)
        return nullcontext()
    if sync or not hasattr(model, "no_sync"):
        return nullcontext()
    adding_up: AbstractContextManager[None] = model.no_sync()
    return adding_up
