"""Recovery's step 4: check that progress, commit records, slot and server agree.

If they do not, continuing could lose or repeat data. Pure: takes the values that were read, and
returns or raises. docs/reference/refusals.md has an entry for each refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

from twofold.errors import RESET_REPAIR, Refused, SetupError
from twofold.kafka.progress import RecoveredState
from twofold.source.diagnosis import other_two_phase
from twofold.source.identity import ServerIdentity, SlotState, SourceFacts, TimelineSwitch
from twofold_avro.records import Progress
from twofold_common.positions import Lsn, format_lsn


def check(
    recovered: RecoveredState,
    slot: SlotState,
    server: ServerIdentity,
    history: Sequence[TimelineSwitch],
    *,
    prefix: str,
    two_phase: bool,
) -> Progress:
    """Return the progress to continue from. `history` is that of the server's present timeline."""
    progress = recovered.progress
    if progress is None:
        raise Refused(
            f"slot {slot.name} exists and stands at {format_lsn(slot.confirmed_flush)}, but the topic {prefix}.progress has no progress of this connector",
            at_stake="nobody knows which rows were published: rows would be lost or repeated",
            repair=f"restore the topic, or correct name and kafka.prefix in the configuration, or start over: {RESET_REPAIR}",
        )
    if not progress.applied_lsn:
        raise SetupError("twofold init was interrupted before its end: run twofold init again")
    if slot.two_phase != two_phase:
        raise other_two_phase(slot.name, wanted=two_phase)
    check_positions(progress, SourceFacts(slot, server, tuple(history)), prefix)
    if slot.confirmed_flush > progress.applied_lsn:
        raise Refused(
            f"slot {slot.name} has been confirmed up to {format_lsn(slot.confirmed_flush)}, but Kafka has the changes only up to {format_lsn(Lsn(progress.applied_lsn))}",
            at_stake="the changes in between: PostgreSQL will not send them again (the slot was recreated, another program used it, or the progress topic was set back)",
            repair=RESET_REPAIR,
        )
    check_commits(recovered, progress, prefix)
    return progress


def check_positions(progress: Progress, source: SourceFacts, prefix: str) -> None:
    """Refuse a source whose positions are not those of the topics."""
    check_source(progress, source.slot, source.server, prefix)
    _check_timeline(progress, source.server, source.history)
    _check_wal_end(progress, source.server)


def slot_gone(slot: str, prefix: str, applied_lsn: Lsn) -> Refused:
    """Refuse to go on without the slot that the topics' changes came from."""
    return Refused(
        f"slot {slot} no longer exists, and the topics {prefix}.* hold its changes up to {format_lsn(applied_lsn)}",
        at_stake="the changes since then: a new slot starts now",
        repair=RESET_REPAIR,
    )


def check_source(progress: Progress, slot: SlotState, server: ServerIdentity, prefix: str) -> None:
    """Refuse topics that belong to another source.

    A slot stays in its database, which may be renamed.
    """
    was = (progress.system_identifier, progress.database, progress.slot)
    now = (server.system_identifier, server.database, slot.name)
    is_same_slot = (progress.system_identifier, progress.slot) == (server.system_identifier, slot.name)
    if not is_same_slot or slot.database != server.database:
        raise Refused(
            f"the topics {prefix}.* belong to another source: system {was[0]}, database {was[1]}, slot {was[2]}; this one is system {now[0]}, database {now[1]}, slot {now[2]}",
            at_stake="two sources would share one set of topics: positions, keys and order would mean nothing",
            repair=f"give this source a kafka.prefix of its own, or point source.dsn and source.slot to the former one; after restoring the server from a dump, start over: {RESET_REPAIR}",
        )


def _check_timeline(progress: Progress, server: ServerIdentity, history: Sequence[TimelineSwitch]) -> None:
    if progress.timeline == server.timeline:
        return
    ended = next((switch for switch in history if switch.timeline == progress.timeline), None)
    if ended is None or ended.ends_at < progress.applied_lsn:
        where = "is not among its ancestors" if ended is None else f"left it at {format_lsn(ended.ends_at)}"
        raise Refused(
            f"the server is on timeline {server.timeline}; timeline {progress.timeline}, on which changes up to {format_lsn(Lsn(progress.applied_lsn))} were published, {where}",
            at_stake="consumers have transactions that this server never had: it was promoted, or restored, without them",
            repair=f"go back to a server that has them, or start over: {RESET_REPAIR}",
        )


def _check_wal_end(progress: Progress, server: ServerIdentity) -> None:
    """Refuse progress that the server has not reached.

    A standby that restarts may have replayed less than before, and reaches it later.
    """
    if not server.is_standby and progress.applied_lsn > server.xlogpos:
        raise Refused(
            f"Kafka has the changes up to {format_lsn(Lsn(progress.applied_lsn))}, but the server's WAL ends at {format_lsn(server.xlogpos)}",
            at_stake="the next changes: they would be taken for published ones, and skipped (the server lost WAL, was restored, or somebody changed what it sent)",
            repair=f"go back to a server that has this WAL, or start over: {RESET_REPAIR}",
        )


def check_commits(recovered: RecoveredState, progress: Progress, prefix: str) -> None:
    """Refuse if the last commit record and the progress disagree."""
    last = recovered.last_commit
    if last is not None and last.stream_id != progress.stream_id:
        raise Refused(
            f"{prefix}.commits ends with number {last.sequence} of another stream than the progress record's",
            at_stake="one of the topics was recreated or restored alone: numbers and positions of two streams would be mixed",
            repair=f"restore both topics from the same moment, or start over: {RESET_REPAIR}",
        )
    if last is not None and (last.sequence != progress.sequence or last.applied_lsn > progress.applied_lsn):
        raise Refused(
            f"{prefix}.commits ends with number {last.sequence} at {format_lsn(Lsn(last.applied_lsn))}, but the progress record says number {progress.sequence} at"
            f" {format_lsn(Lsn(progress.applied_lsn))}",
            at_stake="both are written in one Kafka transaction, so one of the topics was changed or restored alone: rows would be lost or repeated",
            repair=f"restore both topics from the same moment, or start over: {RESET_REPAIR}",
        )
