"""`twofold doctor`: what is or will be wrong with PostgreSQL, Kafka, the registry and this machine;
why it matters; and its remedy. Changes nothing.
"""

from twofold.doctor.examine import examine
from twofold.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
