package quire;

import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** The micro-batches of a run of a query (docs/internals/spark-reader.md, "Offsets of micro-batches"). */
final class JournalStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final StructType schema;
    private final long stream;
    private final String defaultLimit;

    JournalStream(String read, StructType schema) {
        this.schema = schema;
        this.stream = Core.streamOpen(read);
        this.defaultLimit = Core.streamLimit(stream);
    }

    @Override
    public Offset initialOffset() {
        return new JournalOffset(Core.streamInitial(stream));
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new JournalOffset(json);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        Object rows = Json.object(defaultLimit).get("rows");
        return rows == null ? ReadLimit.allAvailable() : ReadLimit.maxRows((Long) rows);
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        Core.streamAvailableNow(stream);
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        String end = Core.streamLatest(
            stream, Json.write(Map.of("start", new Json.Raw(start.json()), "limit", new Json.Raw(of(limit)))));
        // The very same: Spark begins an empty batch for anything else.
        return end.isEmpty() ? start : new JournalOffset(end);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit");
    }

    @Override
    public Offset reportLatestOffset() {
        return new JournalOffset(Core.streamNewest(stream));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        String request =
            Json.write(Map.of("start", new Json.Raw(start.json()), "end", new Json.Raw(end.json())));
        return QuireScan.tasks(Core.streamPlan(stream, request));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new TaskReader.Factory(schema);
    }

    @Override
    public void commit(Offset end) {
        Core.streamCommit(stream, end.json());
    }

    @Override
    public void stop() {
        Core.streamClose(stream);
    }

    private String of(ReadLimit limit) {
        if (limit instanceof ReadMaxRows rows) {
            return Json.write(Map.of("rows", rows.maxRows()));
        }
        if (limit instanceof ReadMaxBytes bytes) {
            return Json.write(Map.of("bytes", bytes.maxBytes()));
        }
        return limit instanceof ReadAllAvailable ? "{\"all\":true}" : defaultLimit;
    }

    /** An offset, as the core wrote it. The Python source writes the same, so a query can change its source. */
    private static final class JournalOffset extends Offset {
        private final String json;

        JournalOffset(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }
}
