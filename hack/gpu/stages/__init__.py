"""The stages of the GPU check, each a process of its own: `python -m hack.gpu.stages.NAME`."""
