"""What the jobs read: Kafka, the schema registry, and the source database. Changes none of them."""
