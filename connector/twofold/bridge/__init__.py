"""The bridge decides: a pure state machine between the reading of PostgreSQL and the writing of
Kafka.

`step(state, event)` returns the next state and the actions. There is no clock, row, connection or
thread in this package. The model checker in `tests/model/` therefore runs the same code as
production, step by step. docs/inside/protocol.md says what it promises, and why each rule is
needed.
"""

from twofold.bridge.actions import Action
from twofold.bridge.events import Event
from twofold.bridge.state import Policy, State, initial
from twofold.bridge.step import step

__all__ = ["Action", "Event", "Policy", "State", "initial", "step"]
