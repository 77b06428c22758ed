"""The names of the kinds that the job controllers run; their modules are not imported to know them."""

from __future__ import annotations

JOB_KINDS = ("ColossalAIJob", "ElasticJob", "MSJob", "PyTorchJob", "VolcanoJob")  # controllers.kinds.registry.KINDS
