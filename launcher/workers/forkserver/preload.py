"""Names the modules that the parent of training processes imports ahead by default.

server.py imports them. The user's own modules are added by `--preload`.
"""

from __future__ import annotations

TORCH = "torch"
# What torch imports late, in a first step of training: seconds of a core in every process. Ours needs torch too.
LATE = (
    "torch._dynamo",  # optimizers and DDP
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.optimizer",
    "torch.distributed.optim",
    "turnout.launcher.checkpoint.engine.checkpointer",
    "turnout.launcher.flash_checkpoint",
)
DEFAULT = (TORCH, *LATE)
LEFT_OUT = "="  # between a module and the reason why it must not be imported, in the arguments of a parent
