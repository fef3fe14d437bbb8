"""All that speaks to Kafka and to the registry. May import `twofold_avro`, `positions`, `errors` and `failpoints`; decides nothing."""
