"""Errors that the connector and the Spark jobs share. The class says what the user does next; the
message names the cause and the remedy.

    TwofoldError
      UsageError    exit 2   the command line or the configuration is wrong: correct it
      SetupError    exit 3   the machine or a server lacks something: the message has the remedy
      Unreachable   exit 4   a server does not answer now: retry
      Refused       exit 5   continuing could lose or repeat data: run the repair that it names

The connector and the jobs each add their own in their `errors`.
"""

from __future__ import annotations

from twofold_common.printable import printable


class TwofoldError(Exception):
    """Base of everything that Twofold raises on purpose. The command ends with `exit_status`."""

    exit_status = 1


class UsageError(TwofoldError):
    """The command line or the configuration is wrong."""

    exit_status = 2


class SetupError(TwofoldError):
    """The machine or a server lacks something that must be there; the message has the remedy."""

    exit_status = 3


class Unreachable(TwofoldError):
    """A server does not answer; a retry may help."""

    exit_status = 4


class Refused(TwofoldError):
    """Promise 8: continuing could lose or repeat data."""

    exit_status = 5

    def __init__(self, what: str, *, at_stake: str, repair: str) -> None:
        self.what = what
        self.at_stake = at_stake
        self.repair = repair
        super().__init__("\n".join(map(printable, self.lines)))

    @property
    def lines(self) -> tuple[str, str, str]:
        """The three parts, each on a line."""
        return self.what, f"  at stake: {self.at_stake}", f"  repair:   {self.repair}"
