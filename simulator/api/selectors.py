"""Parse label and field selectors into a predicate on objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind

ObjectPredicate = Callable[[Object], bool]

_KEY = r"[^\s=!,()<>]+"  # of a label or field
_SET = re.compile(rf"^\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL = re.compile(rf"^\s*({_KEY})\s*(==|=|!=)\s*([^\s=!,()<>]*)\s*$")
_COMPARISON = re.compile(rf"^\s*({_KEY})\s*([<>])\s*([+-]?[0-9]{{1,19}})\s*$")
_EXISTS = re.compile(rf"^\s*(!?)\s*({_KEY})\s*$")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


def object_predicate(kind: ResourceKind, labels: str, fields: str) -> ObjectPredicate:
    """Return the predicate for objects that match both selectors. A selector "" matches all objects.

    labels, fields: as in labelSelector and fieldSelector of a query. Raises ApiRefusal (400) for a malformed selector,
    and for a field that the kind does not offer.
    """
    requirements = [*_label_predicates(labels), *_field_predicates(kind, fields)]
    if not requirements:
        return _everything
    return lambda obj: all(predicate(obj) for predicate in requirements)


def _everything(_: Object) -> bool:
    """Return True for every object."""
    return True


def _label_predicates(text: str) -> list[ObjectPredicate]:
    """Return a predicate for each term of a label selector. Raises ApiRefusal (400) for a malformed term."""
    # A comma inside the brackets of `in (a, b)` does not separate two terms.
    return [_label_predicate(term) for term in re.split(r",(?![^()]*\))", text) if term.strip()]


def _label_predicate(term: str) -> ObjectPredicate:
    """Return the predicate of one term of a label selector: `a=b`, `a!=b`, `a in (b, c)`, `a notin (b)`, `a>1`, `a<1`,
    `a` or `!a`.

    An object without the label matches `!=` and `notin`. Only a label with a whole number matches `>` and `<`. Raises
    ApiRefusal (400) for any other term.
    """
    if match := _SET.match(term):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda obj: _label(obj, key) in values
        return lambda obj: _label(obj, key) not in values
    if match := _EQUAL.match(term):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda obj: _label(obj, key) != value
        return lambda obj: _label(obj, key) == value
    if match := _COMPARISON.match(term):
        key, operator, bound = match[1], match[2], int(match[3])
        return lambda obj: _is_beyond(_label(obj, key), operator, bound)
    if match := _EXISTS.match(term):
        absent, key = match.groups()
        return lambda obj: (_label(obj, key) is None) == bool(absent)
    raise ApiRefusal("BadRequest", f"unable to parse requirement: {term.strip()!r}")


def _is_beyond(value: str | None, operator: str, bound: int) -> bool:
    """Return True if a label's value is a whole number above (`>`) or below (`<`) the bound."""
    if value is None or not _WHOLE_NUMBER.fullmatch(value):
        return False
    return int(value) > bound if operator == ">" else int(value) < bound


def _field_predicates(kind: ResourceKind, text: str) -> list[ObjectPredicate]:
    """Return a predicate for each term of a field selector.

    Raises ApiRefusal (400) for a malformed term, and for a field that the kind does not offer.
    """
    known = ("metadata.name", *(("metadata.namespace",) if kind.namespaced else ()), *kind.fields)
    predicates: list[ObjectPredicate] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _EQUAL.match(term)
        if match is None:
            raise ApiRefusal("BadRequest", f"invalid selector: {term!r}; can't understand it")
        key, operator, value = match.groups()
        if key not in known:
            raise ApiRefusal("BadRequest", f'field label not supported: "{key}"; known for {kind.plural}: {known}')
        predicates.append(_field_predicate(tuple(key.split(".")), value, operator != "!="))
    return predicates


def _field_predicate(path: tuple[str, ...], value: str, equal: bool) -> ObjectPredicate:
    """Return the predicate that compares a field with a value. equal: False for an inequality."""
    return lambda obj: (_field_text(obj, path) == value) == equal


def _label(obj: Object, key: str) -> str | None:
    """Return the value of an object's label, None without one."""
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels.get(key)


def _field_text(obj: Object, path: tuple[str, ...]) -> str:
    """Return the value of a field as text, as a field selector compares it.

    "true" or "false" for a bool. "" for a missing field, but "false" for spec.unschedulable.
    """
    at: Any = obj
    for step in path:
        at = at.get(step) if isinstance(at, dict) else None
    if isinstance(at, bool):
        return "true" if at else "false"
    # `spec.unschedulable` is left out of the object when false; a selector asks for the word.
    return str(at) if at is not None else ("false" if path == ("spec", "unschedulable") else "")
