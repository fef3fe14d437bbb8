"""Reads Twofold's topics as whole PostgreSQL transactions, in commit order: `Reader`; those of
several sources with their global transactions: `GroupReader`.
Waits until a position of the source is visible: `wait`.

The names of `__all__` are the public interface (docs/reference/interface.md).
"""

from twofold_common.errors import Refused, SetupError, TwofoldError, Unreachable, UsageError
from twofold_reader.changes import Change
from twofold_reader.group_reader import GlobalTransaction, GroupReader
from twofold_reader.reader import Reader
from twofold_reader.waiting import PositionWaiter, wait
from twofold_reader.whole_transactions import Transaction

__version__ = "0.1.0"
__all__ = [
    "Change",
    "GlobalTransaction",
    "GroupReader",
    "PositionWaiter",
    "Reader",
    "Refused",
    "SetupError",
    "Transaction",
    "TwofoldError",
    "Unreachable",
    "UsageError",
    "__version__",
    "wait",
]
