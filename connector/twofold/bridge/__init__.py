"""The bridge decides: a pure state machine between what was read from PostgreSQL and what is done in Kafka.

`step(state, event)` gives the next state and what is to be done. No clock, no rows, no connection and no thread are in here, so that the very code which
runs in production is also run, step by step, by the model checker in `tests/model/`. docs/inside/protocol.md says what it keeps, and why each rule is needed.
"""

from twofold.bridge.actions import Action
from twofold.bridge.events import Event
from twofold.bridge.state import Policy, State, initial
from twofold.bridge.step import step

__all__ = ["Action", "Event", "Policy", "State", "initial", "step"]
