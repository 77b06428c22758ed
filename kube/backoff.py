"""How long to wait before the next try: exponential, with full jitter so that many clients do not march in step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The rule that client-go's reflectors keep. Source: docs/facts/ecosystem.md 1.6."""

    first_s: float = 0.8
    most_s: float = 30.0
    factor: float = 2.0
    most_asked_s: float = 300.0  # a server that asks for more is not believed

    def wait_s(self, failures: int, draw: float, asked_s: float = 0.0) -> float:
        """failures: in a row, 1 or more. draw: uniform in [0, 1). asked_s: the server's Retry-After, 0 for none."""
        ceiling_s = min(self.most_s, self.first_s * self.factor ** min(failures - 1, 32))
        return max(draw * ceiling_s, min(asked_s, self.most_asked_s))
