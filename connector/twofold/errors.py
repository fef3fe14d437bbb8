"""The classes of errors that Twofold raises on purpose.

The class says what the user does next; the message names the cause and the remedy. A module may
have a subclass for its own cause, such as `SlotBusy` in `source.diagnosis`.

    TwofoldError
      UsageError        exit 2  the command line or the configuration is wrong: correct it
      SetupError        exit 3  the machine or a server lacks something: the message has the remedy
        AccessDenied            a broker denies the credentials; `run` retries if they expire
      Unreachable       exit 4  a server does not answer now; `run` retries, others report it
      Refused           exit 5  continuing could lose or repeat data: run the repair it names
        UnreadableRecord        a record of the bookkeeping that no connector wrote
      Fenced            exit 6  another instance took over: nothing to do, unless that was not meant
      RunEnded          -       a run failed; it drops its memory and recovers
      MalformedMessage  exit 7  a server sent bytes that cannot be right: report it with the offset

Three more statuses have no class. 1 is an unforeseen error: a bug, to be reported with its
traceback. 8 is a call into librdkafka that did not return: `kafka.watch` ended the process. 130 is
Ctrl-C.

confluent_kafka's KafkaError is not an Exception: `kafka` catches it by name and raises one of
these.
"""

from __future__ import annotations

from twofold_common.errors import Refused, SetupError, TwofoldError, Unreachable, UsageError

__all__ = [
    "RESET_REPAIR",
    "AccessDenied",
    "EndedElsewhere",
    "Fenced",
    "MalformedMessage",
    "QuickAgain",
    "Refused",
    "RunEnded",
    "SetupError",
    "TransactionTimedOut",
    "TwofoldError",
    "UncertainEnd",
    "Unreachable",
    "UnreadableRecord",
    "UsageError",
]

RESET_REPAIR = "`twofold reset`, then `twofold init` with another kafka.prefix in the configuration; all tables are then loaded again"
"""The last repair.

The topics of the former prefix stay for consumers that still read them; `init` refuses a prefix in
which something is recorded.
"""


class Fenced(TwofoldError):
    """Another instance holds the transactional ids or the slot."""

    exit_status = 6


class AccessDenied(SetupError):
    """A broker denies the credentials. `run` retries where they expire by themselves."""


class RunEnded(TwofoldError):
    """This run cannot continue, but recovery can: drop everything in memory, back off, recover."""


class TransactionTimedOut(RunEnded):
    """A Kafka transaction outlived its timeout, and the broker aborted it.

    The next run may take longer.
    """


class UncertainEnd(RunEnded):
    """The end of a Kafka transaction succeeded, but its request may have been sent twice.

    The first request may still arrive, so this producer's epoch is not used again.
    """


class QuickAgain(UncertainEnd):
    """The brokers have been quick for a while: the next run need not wait as long for them.

    As for its other cases the transaction is committed.
    """


class EndedElsewhere(RunEnded):
    """A transaction that this run began has ended without this run.

    Before anything is sent again, the visible rows are compared with the commit records.
    """


class UnreadableRecord(Refused):
    """A record of the bookkeeping in Kafka that no connector wrote."""


class MalformedMessage(TwofoldError):
    """Bytes from a server that do not follow the protocol."""

    exit_status = 7

    def __init__(self, what: str, *, offset: int, remedy: str = "") -> None:
        super().__init__(f"{what} at byte {offset}{'; remedy: ' if remedy else ''}{remedy}")
        self.offset = offset
