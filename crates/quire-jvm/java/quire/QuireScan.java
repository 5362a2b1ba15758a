package quire;

import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One read of a frame. Equal reads are planned once: Spark then runs a part of a query that occurs twice once. */
final class QuireScan implements SupportsReportStatistics, Batch {
    private static final Logger LOG = LoggerFactory.getLogger(QuireScan.class);

    private final String read;
    private final StructType schema;
    private final String description;
    private Map<String, Object> statistics;

    QuireScan(String read, StructType schema, String description) {
        this.read = read;
        this.schema = schema;
        this.description = description;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return description;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        return new JournalStream(read, schema);
    }

    /** Without this, Spark would make all tasks only to ask them. */
    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.ALL;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return tasks(Core.plan(read));
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new TaskReader.Factory(schema);
    }

    @Override
    public Statistics estimateStatistics() {
        if (statistics == null) {
            statistics = Json.object(Core.statistics(read));
        }
        Map<String, Object> known = statistics;
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return OptionalLong.of((Long) known.get("bytes"));
            }

            @Override
            public OptionalLong numRows() {
                return OptionalLong.of((Long) known.get("rows"));
            }
        };
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof QuireScan scan && scan.read.equals(read) && scan.schema.equals(schema);
    }

    @Override
    public int hashCode() {
        return read.hashCode();
    }

    /** The tasks of a plan. Logs its warnings. */
    @SuppressWarnings("unchecked")
    static InputPartition[] tasks(String plan) {
        Map<String, Object> parts = Json.object(plan);
        for (String warning : (List<String>) parts.get("warnings")) {
            LOG.warn("{}", warning);
        }
        List<String> tasks = (List<String>) parts.get("tasks");
        return tasks.stream().map(TaskReader.Task::new).toArray(InputPartition[]::new);
    }
}
