"""`twofold doctor`: what is or will be wrong with PostgreSQL, Kafka, the registry and this machine;
why it matters; and its remedy. Changes nothing.
"""

from twofold.ops.doctor.examine import examine
from twofold.ops.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
