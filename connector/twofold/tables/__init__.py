"""From a table's description to its topic: schemas, the plan that encodes its rows, pin and policy.

Decides whether a row fits its topic, and what a changed definition means for it. Asks the registry
and Kafka through `kafka.registrar` alone. Begin with `tables`; `pins` is what Kafka knows of them.
"""
