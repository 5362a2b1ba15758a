package quire;

import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.TaskInterruptListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The batches of one task.
 *
 * <p>Spark closes a reader when its task ends, in whatever way. That frees the batch and the scan in Rust. A task that
 * is killed is usually inside of the core: its scan is cancelled from the thread that kills it.
 */
final class TaskReader implements PartitionReader<ColumnarBatch> {
    private static final Logger LOG = LoggerFactory.getLogger(TaskReader.class);

    private final AddressVector[] vectors;
    private final int numberCount;
    private final ColumnarBatch batch;
    private final long scan;
    private long numbers;
    private long[] metrics = new long[Metrics.COUNT];

    private TaskReader(StructType schema, Task task) {
        vectors = AddressVector.of(schema);
        numberCount = AddressVector.numbers(vectors);
        batch = new ColumnarBatch(vectors);
        scan = Core.scanOpen(task.text());
        numbers = Platform.allocateMemory(8L * Math.max(numberCount, 1));
        TaskContext context = TaskContext.get();
        if (context != null) {
            // Handles are used once: a listener that outlives the reader cancels nothing.
            long handle = scan;
            TaskInterruptListener cancel = (killed, reason) -> Core.scanCancel(handle);
            context.addTaskInterruptListener(cancel);
        }
    }

    @Override
    public boolean next() {
        try {
            long rows = Core.scanNext(scan, numbers, numberCount);
            AddressVector.set(vectors, numbers);
            batch.setNumRows(Math.toIntExact(rows));
            return rows > 0;
        } catch (QuireException error) {
            if (error.code().equals(QuireException.CANCELLED)) {
                throw new TaskKilledException(error.getMessage());
            }
            throw error;
        }
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        if (numbers != 0) {
            metrics = Core.scanMetrics(scan);
        }
        return Metrics.of(metrics);
    }

    @Override
    public void close() {
        if (numbers == 0) {
            return;
        }
        try {
            metrics = Core.scanMetrics(scan);
            for (String warning : Json.texts(Core.scanWarnings(scan))) {
                LOG.warn("{}", warning);
            }
        } finally {
            Platform.freeMemory(numbers);
            numbers = 0;
            Core.scanClose(scan);
        }
    }

    /** A task, as the core wrote it. */
    record Task(String text) implements InputPartition {}

    /** Opens tasks on the executors. */
    record Factory(StructType schema) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new TaskReader(schema, (Task) partition);
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("a journal is read in columns");
        }
    }
}
