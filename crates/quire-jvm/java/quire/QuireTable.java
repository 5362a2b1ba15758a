package quire;

import java.util.EnumSet;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a frame or a sink is about. It reads by itself; the Python source writes. */
final class QuireTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    /** The range, or null when it could not be decided yet. */
    private final String frame;
    private final Supplier<Table> python;

    QuireTable(StructType schema, String frame, Supplier<Table> python) {
        this.schema = schema;
        this.frame = frame;
        this.python = python;
    }

    @Override
    public String name() {
        return DefaultSource.NAME;
    }

    @Override
    @SuppressWarnings("deprecation")
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        String range = frame != null ? frame : Core.frame(options.asCaseSensitiveMap());
        return new ReadBuilder(new Read(range, schema));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return ((SupportsWrite) python.get()).newWriteBuilder(info);
    }
}
