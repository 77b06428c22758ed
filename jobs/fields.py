"""Typed fields of an object that anybody may have written. A fault names the field by its full path.

A field that is null counts as absent, as in the API server. `decode` reads the fields that a struct declares;
ObjectPart reads single fields of objects that have no struct; the annotation functions read values of annotations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from turnout.jobs.model import BadJob
from turnout.kube.errors import KubeError
from turnout.kube.pod_shape import amount

MAX_PODS = 1_000_000  # of one job: a larger number is a mistake, or means "no limit"
MAX_INT32 = 2**31 - 1
MAX_FAULTS = 32  # sentences about one object; an object may have tens of thousands of faults
_MAX_DIGITS = 9  # of a number that is written as a text


class FieldStruct(msgspec.Struct, frozen=True, rename="camel"):
    """Fields of an object, in camelCase on the wire. A field without a default is required."""


Fields = TypeVar("Fields", bound=FieldStruct)
Member = TypeVar("Member", bound=Enum)


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A part of an object. A wrong field raises BadJob, or adds a sentence to `faults` and counts as absent.

    A method that reads a field takes its name in this part as `key`, and so do the functions `read_*` for fields of
    other types.
    """

    value: Mapping[str, Any]  # the JSON object
    where: str = ""  # its path, as in `spec.tasks[0]`; "" for the object itself
    faults: list[str] | None = None  # at most MAX_FAULTS, shared by all parts of the object; None to raise BadJob

    def at(self, key: str) -> str:
        """Return the path of a field of this part, as in `spec.tasks[0].name`. key: "" for the part itself."""
        return f"{self.where}.{key}" if self.where and key else self.where or key

    def fault(self, key: str, value: Any, why: str) -> None:
        """Report a wrong field: raise BadJob, or append a sentence to `faults` unless it is in the list already.

        The last of MAX_FAULTS sentences says that further faults are not listed. key: the name of the field, "" for the
        part itself. value: the wrong value, of any type; at most 40 characters are shown. why: the rule that it breaks,
        such as "it must be an object".
        """
        shown = repr(value[:40]) if isinstance(value, str) else f"{value!r:.40}"
        sentence = f"{self.at(key)} is {shown}: {why}"
        if self.faults is None:
            raise BadJob(sentence)
        if len(self.faults) < MAX_FAULTS and sentence not in self.faults:
            is_last = len(self.faults) == MAX_FAULTS - 1
            self.faults.append("further faults are not listed" if is_last else sentence)

    def has(self, key: str) -> bool:
        """Return True if the field is set and not null."""
        return self.value.get(key) is not None

    def part(self, key: str) -> ObjectPart:
        """Return the object in the field `key` as a part.

        An empty part if the field is absent or no object (which is a fault).
        """
        return ObjectPart(self._typed(key, Mapping, "an object") or {}, self.at(key), self.faults)

    def parts(self, key: str) -> tuple[ObjectPart, ...]:
        """Return the objects of the list in the field `key`, in their order; () if it is absent.

        Items that are no objects are left out. Such an item, and a value that is no list, is a fault.
        """
        parts = []
        for number, each in enumerate(self._typed(key, list, "a list") or ()):
            name = f"{key}[{number}]"
            if isinstance(each, Mapping):
                parts.append(ObjectPart(each, self.at(name), self.faults))
            else:
                self.fault(name, each, "it must be an object")
        return tuple(parts)

    def parts_by_name(self, key: str) -> dict[str, ObjectPart]:
        """Return the objects inside the object in the field `key`, by their names, as parts.

        {} if the field is absent or no object. A null is left out. A value that is no object is a fault, and an empty
        part.
        """
        inner = self.part(key)
        return {name: inner.part(name) for name in inner.value if inner.has(name)}

    def text(self, key: str, default: str = "") -> str:
        """Return the text in the field `key`; the default if it is absent, empty or no text (which is a fault)."""
        text: str = self._typed(key, str, "a text") or default
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of the list in the field `key`; () if it is absent.

        Items of other types are left out. They are a fault, and so is a value that is no list.
        """
        listed = self._typed(key, list, "a list of texts") or ()
        texts = tuple(each for each in listed if isinstance(each, str))
        if len(texts) < len(listed):
            self.fault(key, listed, "it must be a list of texts")
        return texts

    def text_map(self, key: str) -> dict[str, str]:
        """Return the object of texts in the field `key`, such as labels; {} if it is absent.

        A null is left out. A value of another type is a fault, and becomes "".
        """
        inner = self.part(key)
        return {name: inner.text(name) for name in inner.value if inner.has(name)}

    def flag(self, key: str) -> bool:
        """Return the boolean in the field `key`; False if it is absent or no boolean (which is a fault)."""
        return bool(self._typed(key, bool, "true or false"))

    def count(self, key: str, default: int, minimum: int = 0, maximum: int = MAX_PODS) -> int:
        """Return the whole number in the field `key`, from `minimum` to `maximum`, both included.

        Return the default if the field is absent. Any other value is a fault: it raises BadJob, or it is reported in
        `faults` and the default is returned.
        """
        value = self.value.get(key)
        if value is None:
            return default
        if _is_whole(value) and minimum <= value <= maximum:
            return int(value)
        self.fault(key, value, f"it must be a whole number from {minimum} to {maximum}")
        return default

    def _typed(self, key: str, kind: type, expected: str) -> Any:
        """Return the value of the field `key` if it has the type `kind`; None if it is absent or null.

        A value of another type is a fault, and the result is None. expected: the type in words, for the sentence of the
        fault.
        """
        value = self.value.get(key)
        if value is None or isinstance(value, kind):
            return value
        self.fault(key, value, f"it must be {expected}")
        return None


def lenient_part(value: Any, where: str = "", faults: list[str] | None = None) -> ObjectPart:
    """Return a part that collects the faults of its fields instead of raising BadJob.

    value: the object, of any type; None is an empty object, and any other value that is no object is a fault and counts
    as an empty one. where: its path, "" for a whole object. faults: the list to append to. None, too, collects: in a
    new list, `faults` of the result; only the constructor of ObjectPart takes None to raise BadJob.
    """
    part = ObjectPart(value if isinstance(value, Mapping) else {}, where, [] if faults is None else faults)
    if value is not None and not isinstance(value, Mapping):
        part.fault("", value, "it must be an object")
    return part


def read_enum(part: ObjectPart, key: str, enum: type[Member], default: Member) -> Member:
    """Return the member of `enum` whose value is the text in the field `key`; the default if the field is absent or
    empty.

    A value that is no text, or that no member has, is a fault: BadJob, or the default if the part collects faults.
    """
    text = part.text(key)
    if not text or text in _words(enum):
        return enum(text) if text else default
    part.fault(key, text, f"it must be one of {', '.join(_words(enum))}")
    return default


def read_count_in_text(part: ObjectPart, key: str, default: int) -> int:
    """Return the whole number, 0 to 999999999, in the field `key` of type text, such as an annotation.

    Return the default if the field is absent. Any other value is a fault: it raises BadJob, or it is reported in
    `faults` and the default is returned.
    """
    text = part.text(key)
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    if part.has(key):
        part.fault(key, part.value[key], "it must be a whole number, 0 or more")
    return default


def read_quantity(part: ObjectPart, key: str, resource: str) -> int | None:
    """Return the Kubernetes quantity in the field `key` as a whole number, in the unit of
    turnout.kube.pod_shape.amount.

    None if the field is absent, or if its value is no quantity, which is a fault. resource: the name of the resource,
    such as cpu, which decides the unit.
    """
    value = part.value.get(key)
    if value is None:
        return None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return amount(resource, value)
        except (KubeError, ValueError):
            pass
    part.fault(key, value, "it is no Kubernetes quantity")
    return None


def read_amounts(part: ObjectPart, key: str) -> dict[str, int]:
    """Return the quantities of the object in the field `key`, by resource, in the unit of
    turnout.kube.pod_shape.amount.

    A null is left out, and so is a value that is no quantity, which is a fault. {} if the field is absent.
    """
    inner = part.part(key)
    sizes = {str(resource): read_quantity(inner, resource, str(resource)) for resource in inner.value}
    return {resource: size for resource, size in sizes.items() if size is not None}


def read_json(part: ObjectPart, key: str) -> Any:
    """Return the value of the JSON in the text field `key`, of any type; None if the field is absent or empty.

    A text that is no JSON is a fault: BadJob, or None if the part collects faults.
    """
    text = part.text(key)
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        part.fault(key, text, "it must be JSON")
        return None


def decode(type_: type[Fields], part: ObjectPart) -> Fields:
    """Return the fields of a part as a struct of the class `type_`.

    Fields that the struct does not declare are ignored. A null, and an empty text in a field of an Enum, count as
    absent. Raises BadJob, which names the first wrong field by its full path, also if the part collects faults.
    """
    try:
        return msgspec.convert(part.value, type_)
    except msgspec.ValidationError:
        info = _type_info(type_)
    value = _without_absent_fields(info, part.value)
    for fault in _faults(info, value, part.where):
        raise BadJob(fault)
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise BadJob(f"{part.where}: {error}") from error


@cache
def _type_info(type_: type[FieldStruct]) -> inspect.Type:
    """Return msgspec's description of a struct, computed once for each struct."""
    return inspect.type_info(type_)


def bare_type(info: inspect.Type) -> inspect.Type:
    """Return the type inside `Annotated[...]` and `X | None`, at any depth. Other types are returned unchanged.

    Of a union of several types, the first that is not None.
    """
    while True:
        if isinstance(info, inspect.Metadata):
            info = info.type
        elif isinstance(info, inspect.UnionType):
            info = next(each for each in info.types if not isinstance(each, inspect.NoneType))
        else:
            return info


def _without_absent_fields(info: inspect.Type, value: Any) -> Any:
    """Return a copy of decoded JSON without the fields that count as absent: a null, and an empty text in an Enum.

    This is done at every depth that the type declares. Fields that the type does not declare are left out, too. A value
    that does not fit the type is returned unchanged. info: msgspec's description of the type of `value`.
    """
    match bare_type(info), value:
        case inspect.StructType(fields=fields), dict():
            present = ((each.type, each.encode_name, value.get(each.encode_name)) for each in fields)
            return {
                name: _without_absent_fields(type_, each)
                for type_, name, each in present
                if not _is_absent(type_, each)
            }
        case inspect.DictType(value_type=inner), dict():
            return {
                name: _without_absent_fields(inner, each) for name, each in value.items() if not _is_absent(inner, each)
            }
        case inspect.ListType(item_type=inner), list():
            return [_without_absent_fields(inner, each) for each in value]
    return value


def _is_absent(info: inspect.Type, value: Any) -> bool:
    """Return True for a null, and for an empty text where the type is an Enum."""
    return value is None or (value == "" and isinstance(bare_type(info), inspect.EnumType))


def _faults(info: inspect.Type, value: Any, where: str) -> Iterator[str]:
    """Yield a sentence for each wrong or missing field of a value, in the order of the declared fields.

    info: the type that the value must have. where: the path of `value`, for the sentences. Yields nothing if it fits.
    """
    info = bare_type(info)
    if not _fits(info, value):
        yield f"{where} is {value!r:.40}: it must be {_expected(info)}"
        return
    match info:
        case inspect.StructType(fields=fields):
            for each in fields:
                path = f"{where}.{each.encode_name}"
                if each.encode_name in value:
                    yield from _faults(each.type, value[each.encode_name], path)
                elif each.required:
                    yield f"{path} is missing"
        case inspect.DictType(value_type=inner):
            for name, each in value.items():
                yield from _faults(inner, each, f"{where}.{str(name)[:60]}")
        case inspect.ListType(item_type=inner):
            for number, each in enumerate(value):
                yield from _faults(inner, each, f"{where}[{number}]")


_PYTHON_TYPES: Mapping[type[inspect.Type], type] = {
    inspect.StructType: dict,
    inspect.DictType: dict,
    inspect.StrType: str,
    inspect.BoolType: bool,
}


def _fits(info: inspect.Type, value: Any) -> bool:
    """Return True if a value has the type `info` and is within its bounds.

    The fields of an object and the items of a list are not checked.
    """
    match info:
        case inspect.ListType(max_length=maximum):
            return isinstance(value, list) and (maximum is None or len(value) <= maximum)
        case inspect.IntType(ge=minimum, le=maximum):
            return _is_whole(value) and (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
        case inspect.EnumType(cls=cls):
            return value in _words(cls)
    return isinstance(value, _PYTHON_TYPES.get(type(info), object))


def _is_whole(value: Any) -> bool:
    """Return True for an int. A bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _words(cls: type[Enum]) -> list[str]:
    """Return the values of an Enum of texts."""
    return [each.value for each in cls]


def _expected(info: inspect.Type) -> str:
    """Return a phrase about the values that a type allows, such as "one of A, B", for an error message."""
    match info:
        case inspect.IntType(ge=minimum, le=maximum):
            if minimum is not None and maximum is not None:
                return f"a whole number from {minimum} to {maximum}"
            return "a whole number" if minimum is None else f"a whole number of at least {minimum}"
        case inspect.EnumType(cls=cls):
            return f"one of {', '.join(filter(None, _words(cls)))}"
        case inspect.ListType(max_length=maximum):
            return "a list" if maximum is None else f"a list of at most {maximum} items"
        case inspect.StrType():
            return "a text"
        case inspect.BoolType():
            return "true or false"
    return "an object"


# Values of annotations. Each value that cannot be read adds a sentence to a list of faults.

MAX_COUNT = 999_999  # the largest number of pods that a term about a gang may name

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LEVEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")


def annotation_count(annotations: Mapping[str, str], key: str, faults: list[str]) -> int | None:
    """Return the whole number, 1 to 999999, in the annotation `key`; None if it is absent or unreadable.

    annotations: of one object. faults: receives a sentence if the value is unreadable.
    """
    text = annotations.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        faults.append(f"{key} is {text[:40]!r}: it must be a whole number from 1 to 999999, as a string")
        return None
    return int(text)


def annotation_level(annotations: Mapping[str, str], key: str, faults: list[str]) -> int | str | None:
    """Return the level in the annotation `key`: a tier number, the key of a node label, or a word for a tier.

    A number has at most two digits; 0 is a host, 1 a leaf. None if the annotation is absent or unreadable. faults:
    receives a sentence if the value is unreadable.
    """
    text = annotations.get(key)
    if text is None:
        return None
    level = level_of_text(text)
    if level is None:
        expected = "a tier (0 a host, 1 a leaf), a node label's key or a word for one"
        faults.append(f"{key} is {text[:40]!r}: it must be {expected}")
    return level


def level_of_text(text: str) -> int | str | None:
    """Return the level that a text names, as for annotation_level(); None if it names none."""
    if re.fullmatch(r"[0-9]{1,2}", text):
        return int(text)
    return None if text[:1].isdigit() or not _LEVEL_NAME.fullmatch(text) else text


def annotation_word(annotations: Mapping[str, str], key: str, faults: list[str]) -> str:
    """Return the value of the annotation `key`, which must also be a valid label value.

    "" if it is absent, empty or unreadable. faults: receives a sentence if the value is unreadable.
    """
    text = annotations.get(key, "")
    if text and not _LABEL_VALUE.fullmatch(text):
        faults.append(f"{key} is {text[:40]!r}: it must be a name of up to 63 letters, digits, dots and dashes")
        return ""
    return text


def annotation_set(annotations: Mapping[str, str], key: str, max_gangs: int, faults: list[str]) -> tuple[str, int]:
    """Return (name of a set of gangs, number of gangs in the set) from the annotation `key`, such as "name" or
    "name/3".

    The number is 2 to `max_gangs`, 0 if the annotation states none. ("", 0) if it is absent or unreadable. faults:
    receives a sentence if the value is unreadable.
    """
    text, slash, number = annotations.get(key, "").partition("/")
    number_is_valid = not slash or (re.fullmatch(r"[1-9][0-9]?", number) is not None and 2 <= int(number) <= max_gangs)
    if annotations.get(key) and not (_LABEL_VALUE.fullmatch(text) and number_is_valid):
        expected = f"a name of up to 63 letters, digits, dots and dashes, or name/N with N from 2 to {max_gangs}"
        faults.append(f"{key} is {annotations[key][:40]!r}: it must be {expected}")
        return "", 0
    return text, int(number) if slash else 0
