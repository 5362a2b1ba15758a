package quire;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's UI shows of a read (docs/internals/spark-reader.md, "Metrics"). Spark makes the classes by their names. */
public final class Metrics {
    /** Numbers of the core. */
    static final int COUNT = 6;

    static final CustomMetric[] ALL = {
        new RecordsRead(), new RowsReturned(), new BlocksRead(), new BytesRead(), new BlocksSkipped(), new BytesSkipped(),
    };

    private Metrics() {}

    static CustomTaskMetric[] of(long[] values) {
        CustomTaskMetric[] metrics = new CustomTaskMetric[ALL.length];
        for (int index = 0; index < metrics.length; index++) {
            metrics[index] = new Value(ALL[index].name(), values[index]);
        }
        return metrics;
    }

    record Value(String name, long value) implements CustomTaskMetric {}

    /** Records of the journal. */
    public static final class RecordsRead extends CustomSumMetric {
        @Override
        public String name() {
            return "recordsRead";
        }

        @Override
        public String description() {
            return "records read";
        }
    }

    /** Rows before conditions of Spark. */
    public static final class RowsReturned extends CustomSumMetric {
        @Override
        public String name() {
            return "rowsReturned";
        }

        @Override
        public String description() {
            return "rows returned";
        }
    }

    /** Blocks of the journal. */
    public static final class BlocksRead extends CustomSumMetric {
        @Override
        public String name() {
            return "blocksRead";
        }

        @Override
        public String description() {
            return "blocks read";
        }
    }

    /** Their bytes. */
    public static final class BytesRead extends CustomSumMetric {
        @Override
        public String name() {
            return "bytesRead";
        }

        @Override
        public String description() {
            return "bytes of blocks read";
        }
    }

    /** Blocks of the range that were not read, because the index shows that no row is in them. */
    public static final class BlocksSkipped extends CustomSumMetric {
        @Override
        public String name() {
            return "blocksSkipped";
        }

        @Override
        public String description() {
            return "blocks skipped";
        }
    }

    /** Their bytes. */
    public static final class BytesSkipped extends CustomSumMetric {
        @Override
        public String name() {
            return "bytesSkipped";
        }

        @Override
        public String description() {
            return "bytes of blocks skipped";
        }
    }
}
