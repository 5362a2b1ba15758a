package quire;

import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.spark.sql.connector.catalog.SessionConfigSupport;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The format {@code quire} in a session that has the jar.
 *
 * <p>For a format that no service has registered, Spark loads the class {@code <format>.DefaultSource} before it looks
 * for a source in Python. So this class gets the name exactly when the jar is there. It reads journal directories, and
 * gives everything else to the Python source: reads from a server, all writes, and reads with the option
 * {@code reader=python}. A service of the name {@code quire} would be an error in each session in which the Python
 * source is installed too.
 */
public final class DefaultSource implements TableProvider, SessionConfigSupport {
    static final String NAME = "quire";
    private static final String READER = "reader";

    /** Options that only a sink has: no range is looked up for it. */
    private static final Set<String> OF_A_SINK =
        Set.of("topic", "txnid", "sinkepoch", "stagingdirectory", "flushtimeout", "checkpointlocation");

    private static final Logger LOG = LoggerFactory.getLogger(DefaultSource.class);
    private static final AtomicBoolean FALLBACK_WAS_LOGGED = new AtomicBoolean();

    private final PythonDataSourceV2 python = new PythonDataSourceV2();
    private String frame;

    /** Spark makes one for each frame. */
    public DefaultSource() {
        python.setShortName(NAME);
    }

    /** Settings {@code spark.datasource.quire.<option>} of the session are options of its frames. */
    @Override
    public String keyPrefix() {
        return NAME;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        if (isForPython(options)) {
            return python.inferSchema(options);
        }
        frame = Core.frame(options.asCaseSensitiveMap());
        return (StructType) DataType.fromJson(Core.schema(frame));
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
        if (isForPython(options)) {
            return python.getTable(schema, partitioning, properties);
        }
        if (frame == null && OF_A_SINK.stream().noneMatch(options::containsKey)) {
            try {
                // Here, because Spark keeps the table for the life of the frame: all actions on it read the same range.
                frame = Core.frame(options.asCaseSensitiveMap());
            } catch (QuireException error) {
                // It may as well be a sink, whose directory does not exist yet. A read reports the error.
                LOG.debug("no range is known yet", error);
            }
        }
        return new QuireTable(schema, frame, () -> python.getTable(schema, partitioning, properties));
    }

    private static boolean isForPython(CaseInsensitiveStringMap options) {
        String reader = options.getOrDefault(READER, "").toLowerCase(Locale.ROOT);
        boolean isServer = options.containsKey("url");
        switch (reader) {
            case "":
                if (Core.unusable() != null && !FALLBACK_WAS_LOGGED.getAndSet(true)) {
                    LOG.warn("the slower Python source reads: {}", Core.unusable());
                }
                return isServer || Core.unusable() != null;
            case "python":
                return true;
            case "jvm":
                if (isServer) {
                    throw new QuireException(
                        "bad_option", "reader: jvm reads a directory, and url names a server; leave the option out");
                }
                if (Core.unusable() != null) {
                    throw new QuireException("bad_option", "reader: jvm: " + Core.unusable());
                }
                return false;
            default:
                throw new QuireException("bad_option", "reader: '" + reader + "' is not one of jvm, python");
        }
    }
}
