import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Print the committed changes of a topic: BOOTSTRAP REGISTRY TOPIC GROUP. */
public class Changes {
    public static void main(String[] args) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", args[0],
                "group.id", args[3],
                // A group without offsets begins with the first record.
                "auto.offset.reset", "earliest",
                // Without it you see rows that are in doubt or rolled back.
                "isolation.level", "read_committed",
                "key.deserializer", ByteArrayDeserializer.class,
                // Confluent's: io.confluent.kafka.serializers.KafkaAvroDeserializer, with schema.registry.url alone.
                "value.deserializer", AvroKafkaDeserializer.class,
                "apicurio.registry.url", args[1],
                "apicurio.registry.as-confluent", true,
                "apicurio.registry.use-id", "contentId");
        try (var consumer = new KafkaConsumer<byte[], GenericRecord>(settings)) {
            consumer.subscribe(List.of(args[2]));
            while (true) {
                for (var message : consumer.poll(Duration.ofSeconds(1))) {
                    GenericRecord change = message.value();
                    if (change == null) continue; // the tombstone behind a delete
                    // c insert, u update, d delete, r loaded row, t truncate (no row)
                    Object row = change.get("after") == null ? change.get("before") : change.get("after");
                    System.out.println(change.get("op") + " " + row);
                }
            }
        }
    }
}
