"""Inject faults on demand, to test that a client survives them: refusals, slow answers, watches that end.

A rule applies to a number of requests and is then used up. Rules are tried in the order in which they were given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turnout.simulator.api.model import ApiRefusal

_VERBS = ("", "get", "list", "watch", "create", "update", "patch", "delete")
_CODES = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_LONGEST_S = 600.0


@dataclass(slots=True)
class FaultRule:
    """A rule for the next `times` requests of a verb on a resource."""

    verb: str = ""  # "" for any
    resource: str = ""  # "" for any
    code: int = 0  # HTTP status of the refusal, 0 for none
    slow_s: float = 0.0  # how much longer the answer takes, in seconds
    drop: bool = False  # True: running watches end once, when the rule is added
    retry_after_s: int = 1  # sent with a 429
    times: int = 1  # how many requests it still applies to, >= 1

    def refusal(self) -> ApiRefusal | None:
        """Return the refusal that the rule injects; None if it refuses nothing."""
        if not self.code:
            return None
        refusal = ApiRefusal(_CODES[self.code], "an injected fault")
        if self.code == 429:
            refusal.retry_after_s = self.retry_after_s
        return refusal


class FaultRules:
    """The rules in force."""

    def __init__(self) -> None:
        self._rules: list[FaultRule] = []

    def add_rule(self, document: Any) -> None:
        """Add a rule from decoded JSON, an object with the fields of FaultRule.

        A rule with neither a code nor a delay is not stored. The caller carries out `drop`. Raises ApiRefusal (400) for
        another document, for unknown fields, and for values of a wrong type or out of bounds.
        """
        known = set(FaultRule.__dataclass_fields__)
        if not isinstance(document, dict) or (odd := sorted(set(document) - known)):
            raise ApiRefusal(
                "BadRequest", f"a fault has {sorted(known)}" + (f", not {odd}" if isinstance(document, dict) else "")
            )
        fault = FaultRule(**document)
        if fault.verb not in _VERBS or fault.code not in (0, *_CODES):
            raise ApiRefusal("BadRequest", f"a fault's verb is one of {_VERBS[1:]}, its code one of {sorted(_CODES)}")
        if not isinstance(fault.slow_s, int | float) or not isinstance(fault.times, int):
            raise ApiRefusal("BadRequest", "slow_s is a number of seconds, times a whole number")
        if not 0 <= fault.slow_s <= _LONGEST_S or fault.times < 1:
            raise ApiRefusal("BadRequest", f"slow_s is from 0 to {_LONGEST_S:g}, times at least 1")
        if fault.code or fault.slow_s:
            self._rules.append(fault)

    def clear(self) -> None:
        """Remove every rule."""
        self._rules.clear()

    def next(self, verb: str, resource: str) -> FaultRule | None:
        """Return the first rule that matches a request, and count it down; None if no rule matches.

        verb: of the request, such as list. resource: the plural of its kind, without the group. A rule whose count
        reaches 0 is removed.
        """
        for fault in self._rules:
            if fault.verb in ("", verb) and fault.resource in ("", resource):
                fault.times -= 1
                if not fault.times:
                    self._rules.remove(fault)
                return fault
        return None
