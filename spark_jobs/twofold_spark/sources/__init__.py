"""What the jobs read: Kafka, the schema registry, and the source database. Changes none of them.

Decides which offsets are read and how their bytes become columns; what rows mean is decided in
`mirror` and `changelog`. Begin with `commit_topic`, then `kafka_reader` and `decoding`;
`member_topics` reads the members of a source group.
"""
