"""Everything Twofold raises on purpose. The class says what the user does next; the message names the cause and the remedy.

    TwofoldError
      UsageError            exit 2   the command line or the configuration is wrong: mend it
      SetupError         exit 3   the machine or a server lacks something: the message says the statement or setting that mends it
      Unreachable           exit 4   a server does not answer now; `run` retries by itself, other commands report it
      Refused               exit 5   going on could lose or repeat data: read the message, run the repair it names
      Fenced                exit 6   another instance took over: nothing to do unless it was not meant to
      RunEnded              -        something failed in mid-run; the run drops its memory and recovers by the one path
      MalformedMessage      exit 7   a server sent bytes that cannot be what they claim: report it with the offset

Beside them: 1, an unforeseen error (a bug: report it with its traceback); 8, a call into librdkafka did not come back (`sink.watch` ends the process; start it again); 130, Ctrl-C.

KafkaError of confluent_kafka is not an Exception: the sink catches it by name and raises one of these.
"""

from __future__ import annotations

from twofold_common.errors import Refused, SetupError, TwofoldError, Unreachable, UsageError

__all__ = [
    "RESET_REPAIR",
    "EndedElsewhere",
    "Fenced",
    "MalformedMessage",
    "Refused",
    "RunEnded",
    "SetupError",
    "TransactionTimedOut",
    "TwofoldError",
    "UncertainEnd",
    "Unreachable",
    "UsageError",
]

RESET_REPAIR = "`twofold reset`, then `twofold init` with another kafka.prefix in the configuration, which has the tables loaded anew"
"""The last repair. The topics of the former prefix stay as they are, for consumers that still read them; `init` takes no prefix in which something is recorded."""


class Fenced(TwofoldError):
    """Another instance holds the transactional ids or the slot."""

    exit_status = 6


class RunEnded(TwofoldError):
    """This run cannot go on, and recovery can: drop everything in memory, back off, start again."""


class TransactionTimedOut(RunEnded):
    """A Kafka transaction was open for longer than its timeout, and the broker has aborted it: the next run may take longer."""


class UncertainEnd(RunEnded):
    """The end of a Kafka transaction succeeded, and its request may have been sent twice. The first one may still arrive, so nothing more is done under this producer's epoch."""


class EndedElsewhere(RunEnded):
    """Kafka says that a transaction, which this run began and did not end, has ended. Before anything is sent again, what is visible is compared with the commit records."""


class MalformedMessage(TwofoldError):
    """Bytes from a server that are not what the protocol says."""

    exit_status = 7

    def __init__(self, what: str, *, offset: int) -> None:
        super().__init__(f"{what} at byte {offset}")
        self.offset = offset
