package quire;

import java.util.Locale;
import java.util.Map;
import org.apache.spark.SparkThrowable;

/**
 * An error of quire: the code in brackets (docs/reference/errors.md), then what is wrong and what to do.
 *
 * <p>PySpark shows an {@link IllegalArgumentException} without the stack of Java, and Spark gives users a
 * {@link SparkThrowable} of a task as it is, without words about tasks and stages around it.
 */
public final class QuireException extends IllegalArgumentException implements SparkThrowable {
    private static final long serialVersionUID = 1;

    /** After {@code scan_cancel}. */
    static final String CANCELLED = "cancelled";

    /** A bug of quire. */
    private static final String INTERNAL = "internal";

    private final String code;

    QuireException(String code, String text) {
        super("[" + code + "] " + text);
        this.code = code;
        if (!code.equals(INTERNAL)) {
            // The text says what is wrong. Only a bug needs the place where it was found.
            setStackTrace(new StackTraceElement[0]);
        }
    }

    /** From a failure of the core, a JSON object. */
    static QuireException of(String failure) {
        Map<String, Object> parts = Json.object(failure);
        String text = (String) parts.get("text");
        Object key = parts.get("key");
        Object column = parts.get("column");
        return new QuireException(
            (String) parts.get("code"),
            (key == null ? "" : key + ": ") + text + (column == null ? "" : ", at column " + column));
    }

    /** The stable name of the case. */
    public String code() {
        return code;
    }

    /** Null for a bug: Spark then shows where it was found. */
    @Override
    public String getCondition() {
        return code.equals(INTERNAL) ? null : "QUIRE_" + code.toUpperCase(Locale.ROOT);
    }

    @Override
    public String getSqlState() {
        return null;
    }
}
