"""The room that speaks to Kafka and to the schema registry.

It may import `twofold_avro`, `positions`, `errors` and `failpoints`. It decides nothing.
"""
