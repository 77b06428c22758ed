"""Room that is reserved for a gang: for whom, on which nodes, until when and why, and how it is published.

The nominator writes one key for each holder into a ConfigMap of the programs' namespace, where no tenant may write. The
extender and the autoscaler read it. A reservation expires at its own end time, so a program that has ended reserves
nothing for long. Room that strict order keeps is not published, because each program computes it.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.times import rfc3339, rfc3339_micro, unix_s

CONFIGMAP = "turnout-system/turnout-reservations"  # where the chart has it
MAX_RESERVATION_S = 3600  # seconds from reading a reservation to its end, at most, whatever end it states
MAX_RESERVATIONS = 1_024  # in the ConfigMap, and in effect at a time, because each question examines all of them
MAX_BYTES = 400_000  # of one value; an API server accepts 1 MiB for a whole ConfigMap


class ReservationReason(StrEnum):
    """Why room is reserved. Log, metric, ConfigMap and test use the same word."""

    PREEMPTION = "Preemption"  # pods of a lower priority leave for the holder
    REPAIR = "Repair"  # the holder was evicted, and starts on these nodes
    STRICT_ORDER = "StrictOrder"  # the holder is the oldest waiting gang of its queue


PUBLISHED_REASONS = (ReservationReason.PREEMPTION, ReservationReason.REPAIR)  # those that are published


class BadReservation(Exception):
    """A value that is no reservation. Ignore it, and log the message."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes on which one gang, the holder, may place its pods, and gangs of no higher priority may not."""

    holder: GangKey  # the gang for which the nodes are reserved
    nodes: tuple[str, ...]  # names, each once
    reason: ReservationReason
    priority: int = 0  # the priority of the holder; a gang of a higher priority may use the nodes
    until_s: float = math.inf  # its end, in seconds since 1970; inf: until the program that computes it removes it
    place_text: str = ""  # where the nodes are, for the sentence about strict order; "" for other reasons

    def excludes(self, key: GangKey, priority: int) -> bool:
        """Return True if the reservation keeps a gang from the nodes: the gang is not the holder, and its priority is
        not higher than the holder's.

        key, priority: of that gang. The end of the reservation is not checked.
        """
        return self.holder != key and self.priority >= priority

    def text_for(self, namespace: str) -> str:
        """Return a sentence for the owner of a gang that may not use the nodes. namespace: of that gang.

        The holder is named if it is in the same namespace, or if it is the oldest gang of the same strict queue.
        Holders in other namespaces are private.
        """
        if self.reason is ReservationReason.STRICT_ORDER:
            return f"room {self.place_text} is kept for {self.holder}, the oldest that waits in this queue"
        count = f"{len(self.nodes)} {'host is' if len(self.nodes) == 1 else 'hosts are'}"
        holder = str(self.holder) if self.holder.namespace == namespace else "a gang of another namespace"
        return f"{count} reserved for {holder} until {rfc3339(self.until_s)} ({self.reason})"


class _Holder(msgspec.Struct, frozen=True):
    """The JSON fields of a GangKey."""

    namespace: str
    name: str
    dialect: Dialect


class _ReservationFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON fields of one value of the ConfigMap."""

    holder: _Holder
    nodes: tuple[str, ...]
    reason: ReservationReason
    until: str  # RFC 3339
    priority: int = 0


_decoder = msgspec.json.Decoder(_ReservationFields)


def data_key(holder: GangKey) -> str:
    """Return the key of a holder's reservation in the ConfigMap.

    It ends in a digest of the holder, because a gang's name may contain characters that a key must not have.
    """
    text = "/".join((holder.dialect, holder.namespace, holder.name))
    return f"gang-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def reservation_text(reservation: Reservation) -> str | None:
    """Return a reservation as a value of the ConfigMap; None if the value would be longer than MAX_BYTES.

    Its `until_s` must be finite.
    """
    holder = reservation.holder
    text = msgspec.json.encode(
        _ReservationFields(
            _Holder(holder.namespace, holder.name, Dialect(holder.dialect)),
            reservation.nodes,
            reservation.reason,
            rfc3339_micro(reservation.until_s),
            reservation.priority,
        )
    )
    return None if len(text) > MAX_BYTES else text.decode()


def read_reservation(key: str, text: str, now_s: float) -> Reservation:
    """Return the reservation that one key and its value in the ConfigMap state.

    key, text: the key and its value. now_s: seconds since 1970. The reservation ends at most MAX_RESERVATION_S later;
    it may have ended already. Raises BadReservation for a value that cannot be read, or that has the key of another
    holder.
    """
    if len(text) > MAX_BYTES:
        raise BadReservation(f"it has {len(text)} characters, at most {MAX_BYTES} are read")
    try:
        terms = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadReservation(f"it cannot be read: {str(error)[:200]}") from None
    holder = GangKey(terms.holder.namespace, terms.holder.name, terms.holder.dialect.value)
    if key != data_key(holder):
        raise BadReservation(f"its key is not that of {str(holder)[:200]}")
    if terms.reason not in PUBLISHED_REASONS:
        raise BadReservation(f"its reason is {terms.reason}: only Preemption and Repair are published")
    if (until_s := unix_s(terms.until)) is None:
        raise BadReservation("it does not state when it ends")
    until_s = min(until_s, now_s + MAX_RESERVATION_S)
    return Reservation(holder, tuple(dict.fromkeys(terms.nodes)), terms.reason, terms.priority, until_s)


def read_reservations(data: Mapping[str, str], now_s: float) -> tuple[dict[str, Reservation], dict[str, str]]:
    """Return (reservations by key, faults by key) of the data of the ConfigMap.

    Reservations that have ended are in the result: compare their `until_s`. now_s: seconds since 1970; an end more than
    MAX_RESERVATION_S later is moved to this limit. A fault is a sentence that says why the value of the key cannot be
    read. Of more than MAX_RESERVATIONS keys only the first are read, by their order as text.
    """
    reservations: dict[str, Reservation] = {}
    faults: dict[str, str] = {}
    for key in heapq.nsmallest(MAX_RESERVATIONS, data):
        try:
            reservations[key] = read_reservation(key, data[key], now_s)
        except BadReservation as error:
            faults[key] = str(error)
    return reservations, faults
