"""Kubernetes quantities: from text to exact integers.

Every suffix and exponent of resource.Quantity is read. A fraction is rounded away from zero, as in Kubernetes, so that
a request never becomes smaller.
"""

from __future__ import annotations

import re
from functools import lru_cache

from turnout.kube.errors import BadQuantity

_MAX_AMOUNT = 2**63 - 1  # Kubernetes caps every quantity here, in base units
_MAX_TEXT_CHARS = 128  # characters; the longest quantity that the API server writes is far shorter
_MAX_EXPONENT = 256  # past it a text of _LONGEST digits is over the cap or under a nano all the same

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
# "1E" is exa and "1E3" a thousand: the exponent needs its digits, else the letter is a suffix.
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<int>[0-9]*)(?:\.(?P<frac>[0-9]*))?(?:[eE](?P<exp>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))"
)


@lru_cache(maxsize=8192, typed=True)
def milli(q: str | int | float) -> int:
    """Return a quantity in thousandths, rounded away from zero. Raises BadQuantity."""
    return _scale(q, 1000)


@lru_cache(maxsize=8192, typed=True)
def base_units(q: str | int | float) -> int:
    """Return a quantity in base units (bytes, devices, pods), rounded away from zero. Raises BadQuantity."""
    return _scale(q, 1)


def _scale(q: str | int | float, factor: int) -> int:
    """Return a quantity times `factor`, computed in integers because floats are not exact."""
    text = q if isinstance(q, str) else repr(q)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_TEXT_CHARS else None
    if match is None or isinstance(q, bool):
        raise BadQuantity(q)
    digits, frac, suffix = match["int"] or "", match["frac"] or "", match["suffix"] or ""
    if not digits and not frac:
        raise BadQuantity(q)
    exponent = int(match["exp"]) if match["exp"] else _DECIMAL.get(suffix, 0)
    exponent = max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT)) - len(frac)
    amount = int(digits + frac) * _BINARY.get(suffix, 1) * factor
    size: int = amount * 10**exponent if exponent >= 0 else -(-amount // 10**-exponent)
    size = min(size, _MAX_AMOUNT * factor)
    return -size if match["sign"] == "-" else size
