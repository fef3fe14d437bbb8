"""`twofold doctor`: what is wrong, or will be, with PostgreSQL, Kafka, the registry and this machine; why it matters; and the statement that mends it. Changes nothing."""

from twofold.ops.doctor.examine import examine
from twofold.ops.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
