"""How a shell tells what happened: a past-tense word and its facts. The log and the metrics both hear it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Say: TypeAlias = Callable[[str, Mapping[str, object]], None]
