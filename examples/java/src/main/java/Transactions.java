import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;

/**
 * Put the recorded topics of docs/reference/transactions.json together, and compare them with the transactions that it
 * lists: FILE. The algorithm is that of docs/use/reader.md; in place of the file a program reads the topics,
 * read_committed, and the schemas from the registry.
 */
public class Transactions {
    /** A change with its place in the source: where its transaction's commit begins, and its ordinal there. */
    record Change(long at, long number, String transaction, String text) {}

    private static final Pattern ESCAPE = Pattern.compile("_x([0-9a-f]+)_");
    private final JsonNode vector;
    private final Map<String, Schema> schemas = new HashMap<>();

    Transactions(JsonNode vector) {
        this.vector = vector;
        vector.get("schemas").fields().forEachRemaining(
                each -> schemas.put(each.getKey(), new Schema.Parser().parse(each.getValue().toString())));
    }

    public static void main(String[] args) throws Exception {
        var vector = new ObjectMapper().readTree(new File(args[0]));
        List<String> found = new Transactions(vector).read(), expected = new ArrayList<>();
        for (JsonNode each : vector.get("transactions")) {
            var text = new StringBuilder(each.get("kind").asText() + " " + each.get("id").asText());
            for (JsonNode change : each.get("changes")) text.append("\n  ").append(describe(change));
            expected.add(text.toString());
        }
        if (!found.equals(expected)) throw new AssertionError("found " + found + "\nin place of " + expected);
        System.out.println(found.size() + " transactions, as expected");
    }

    private List<String> read() throws Exception {
        List<String> found = new ArrayList<>();
        String stream = null;
        long last = 0;
        for (JsonNode record : vector.get("topics").get("bank.commits").get("0")) {
            GenericRecord commit = decode(record.get(2));
            long sequence = (long) commit.get("sequence");
            String streamId = commit.get("stream_id").toString();
            if (last > 0 && (sequence != last + 1 || !streamId.equals(stream)))
                throw new IllegalStateException("commit record " + sequence + " does not follow " + last);
            last = sequence;
            stream = streamId;
            String kind = commit.get("kind").toString();
            boolean isLoad = kind.equals("backfill") || kind.equals("reload");
            List<Change> changes = changesOf(commit);
            if (!isLoad) changes.sort(Comparator.comparingLong(Change::at).thenComparingLong(Change::number));
            String name = kind.equals("backfill") ? "load" : kind.equals("reload") ? "reload" : "transaction";
            for (int at = 0; at < changes.size(); at++) {
                Change change = changes.get(at);
                boolean begins = at == 0 || (!isLoad && change.at() != changes.get(at - 1).at());
                if (begins) found.add(name + " " + change.transaction());
                found.set(found.size() - 1, found.get(found.size() - 1) + "\n  " + change.text());
            }
        }
        return found;
    }

    /** The changes of a commit record's ranges, without tombstones, and with one truncate of each topic's. */
    private List<Change> changesOf(GenericRecord commit) throws Exception {
        Map<String, Long> outcomes = new HashMap<>();
        for (Object each : (List<?>) commit.get("prepared")) {
            var outcome = (GenericRecord) each;
            outcomes.put(outcome.get("id").toString(), (long) outcome.get("commit_lsn"));
        }
        List<Change> changes = new ArrayList<>();
        var topics = new HashSet<String>();
        for (Object each : (List<?>) commit.get("ranges")) {
            var range = (GenericRecord) each;
            String topic = range.get("topic").toString();
            boolean isFirst = topics.add(topic);
            long count = 0;
            for (JsonNode record : vector.get("topics").get(topic).get(range.get("partition").toString())) {
                long offset = record.get(0).asLong();
                if (offset < (long) range.get("first") || offset > (long) range.get("last")) continue;
                count++;
                if (record.get(2).isNull()) continue;
                GenericRecord envelope = decode(record.get(2));
                if (envelope.get("op").toString().equals("t") && !isFirst) continue;
                var transaction = (GenericRecord) envelope.get("transaction");
                if (transaction == null) {
                    changes.add(new Change(0, 0, "null", describe(envelope, 0)));
                    continue;
                }
                String id = transaction.get("id").toString();
                Long outcome = outcomes.get(id);
                long at = outcome != null ? outcome : (long) ((GenericRecord) envelope.get("source")).get("commit_lsn");
                long number = (long) transaction.get("total_order");
                changes.add(new Change(at, number, id, describe(envelope, number)));
            }
            if (count != (long) range.get("count")) throw new IllegalStateException("records are missing in " + range);
        }
        return changes;
    }

    private GenericRecord decode(JsonNode base64) throws Exception {
        var data = ByteBuffer.wrap(Base64.getDecoder().decode(base64.asText()));
        data.get();
        Schema schema = schemas.get(Integer.toString(data.getInt()));
        var decoder = DecoderFactory.get().binaryDecoder(data.array(), data.position(), data.remaining(), null);
        return new GenericDatumReader<GenericRecord>(schema).read(null, decoder);
    }

    private static String describe(GenericRecord envelope, long number) {
        var source = (GenericRecord) envelope.get("source");
        return number + " " + envelope.get("op") + " " + source.get("schema") + "." + source.get("table") + " "
                + row((GenericRecord) envelope.get("before")) + " " + row((GenericRecord) envelope.get("after"));
    }

    private static String row(GenericRecord row) {
        if (row == null) return "null";
        List<String> columns = new ArrayList<>();
        for (Schema.Field field : row.getSchema().getFields()) {
            String name = ESCAPE.matcher(field.name())
                    .replaceAll(found -> Character.toString(Integer.parseInt(found.group(1), 16)));
            columns.add(name + "=" + row.get(field.pos()));
        }
        return columns.toString();
    }

    private static String describe(JsonNode change) {
        return change.get("number") + " " + change.get("op").asText() + " " + change.get("table").asText() + " "
                + row(change.get("before")) + " " + row(change.get("after"));
    }

    private static String row(JsonNode row) {
        if (row.isNull()) return "null";
        List<String> columns = new ArrayList<>();
        row.fields().forEachRemaining(each -> columns.add(each.getKey() + "=" + each.getValue().asText()));
        return columns.toString();
    }
}
