"""Encodes the payloads of outbox events by the registry's schemas. The schema of a topic is the
newest of its value's subject. The registry is asked at the topic's first event of a run, and again
only for a payload that does not fit: somebody may have registered the next version.
"""

from __future__ import annotations

from twofold.errors import Refused
from twofold.kafka.registrar import Registrar
from twofold.kafka.schema_registry import value_subject
from twofold.outbox.outbox import OutboxEvent
from twofold_avro.errors import Misfit, UnfitSchema
from twofold_avro.json_values import JsonEncoder

_AT_STAKE = "the event could not be read; it was not written, and none is passed over"


class EventSchemas:
    """The schemas of one run, used by the thread that reads."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._encoders: dict[str, JsonEncoder] = {}

    def encoded(self, event: OutboxEvent, table: str) -> OutboxEvent:
        """Return the event with its payload in the registry's wire format; without a payload, as it
        is.

        Refused: its topic has no schema, or the payload does not fit the newest one.
        """
        if event.value is None:
            return event
        encoder = self._encoders.get(event.topic) or self._newest(event.topic)
        try:
            return event._replace(value=encoder.encode(event.value))
        except Misfit as misfit:
            newest = self._newest(event.topic)
            if newest.schema_id == encoder.schema_id:
                raise _refusal(event.topic, encoder, table, misfit) from misfit
        try:
            return event._replace(value=newest.encode(event.value))
        except Misfit as misfit:
            raise _refusal(event.topic, newest, table, misfit) from misfit

    def _newest(self, topic: str) -> JsonEncoder:
        subject, found = value_subject(topic), self._registrar.latest_schema(topic)
        if found is None:
            raise Refused(
                f"an outbox event is to be Avro, and the subject {subject} has no schema",
                at_stake=_AT_STAKE,
                repair=f"register the schema of its payload under {subject}, then start again",
            )
        try:
            if found.kind != "AVRO" or found.refers:
                what = "refers to other subjects" if found.refers else f"is {found.kind}"
                raise UnfitSchema(f"it {what}")
            encoder = self._encoders[topic] = JsonEncoder(found.id, found.text)
        except UnfitSchema as error:
            raise Refused(
                f"the newest schema of the subject {subject} cannot encode outbox events: {error}",
                at_stake=_AT_STAKE,
                repair=f"register an Avro schema of records, numbers and text under {subject}, then start again",
            ) from error
        return encoder


def _refusal(topic: str, encoder: JsonEncoder, table: str, misfit: Misfit) -> Refused:
    return Refused(
        f"an event of the outbox {table} does not fit schema {encoder.schema_id} of the subject {value_subject(topic)}: {misfit}",
        at_stake=_AT_STAKE,
        repair='register a schema there that has it, then start again; or set payload_encoding = "none" in [[outbox]] until the event is published as text, and then "avro" again',
    )
