package quire;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.types.StructType;

/** What is read of a frame (docs/internals/spark-reader.md, "A read"). */
final class Read {
    private final String frame;
    private final StructType columns;
    private StructType schema;
    private List<Object> conditions = new ArrayList<>();
    private Integer limit;
    private Map<String, Object> aggregation;

    Read(String frame, StructType columns) {
        this.frame = frame;
        this.columns = columns;
        this.schema = columns;
    }

    private Read(Read other) {
        this(other.frame, other.columns);
        schema = other.schema;
        conditions = other.conditions;
        limit = other.limit;
        aggregation = other.aggregation;
    }

    Read withSchema(StructType pruned) {
        Read read = new Read(this);
        read.schema = pruned;
        return read;
    }

    Read withConditions(List<Object> pushed) {
        Read read = new Read(this);
        read.conditions = pushed;
        return read;
    }

    Read withLimit(int rows) {
        Read read = new Read(this);
        read.limit = rows;
        return read;
    }

    Read withAggregation(Map<String, Object> wanted) {
        Read read = new Read(this);
        read.aggregation = wanted;
        return read;
    }

    StructType schema() {
        return schema;
    }

    String json() {
        Map<String, Object> parts = new LinkedHashMap<>();
        parts.put("frame", new Json.Raw(frame));
        parts.put("schema", new Json.Raw(schema.json()));
        parts.put("columns", new Json.Raw(columns.json()));
        if (!conditions.isEmpty()) {
            parts.put("conditions", conditions);
        }
        if (limit != null) {
            parts.put("limit", limit);
        }
        if (aggregation != null) {
            parts.put("aggregation", aggregation);
        }
        parts.put("parallelism", Math.max(SparkContext.getOrCreate().defaultParallelism(), 1));
        return Json.write(parts);
    }
}
