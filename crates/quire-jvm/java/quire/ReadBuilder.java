package quire;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.StringJoiner;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Takes what Spark can leave to the scan. Spark makes one for each use of a frame. */
final class ReadBuilder
    implements SupportsPushDownRequiredColumns,
        SupportsPushDownV2Filters,
        SupportsPushDownLimit,
        SupportsPushDownAggregates {
    private Read read;
    private Predicate[] pushed = {};
    private Aggregation aggregation;
    private StructType aggregated;
    private OptionalInt limit = OptionalInt.empty();

    ReadBuilder(Read read) {
        this.read = read;
    }

    @Override
    public void pruneColumns(StructType required) {
        read = read.withSchema(required);
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Object> conditions = new ArrayList<>();
        for (Predicate predicate : predicates) {
            conditions.add(Conditions.of(predicate));
        }
        List<String> answers = Json.texts(Core.push(read.withConditions(conditions).json()));
        List<Object> taken = new ArrayList<>();
        List<Predicate> takenPredicates = new ArrayList<>();
        List<Predicate> left = new ArrayList<>();
        for (int index = 0; index < predicates.length; index++) {
            if (!answers.get(index).equals("none")) {
                taken.add(conditions.get(index));
                takenPredicates.add(predicates[index]);
            }
            if (!answers.get(index).equals("exact")) {
                left.add(predicates[index]);
            }
        }
        read = read.withConditions(taken);
        pushed = takenPredicates.toArray(new Predicate[0]);
        return left.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    /** Each task may end after so many rows. Spark takes the first of all of them. */
    @Override
    public boolean pushLimit(int rows) {
        read = read.withLimit(rows);
        limit = OptionalInt.of(rows);
        return true;
    }

    @Override
    public boolean pushAggregation(Aggregation asked) {
        Map<String, Object> wanted = Conditions.of(asked);
        if (wanted == null) {
            return false;
        }
        Read aggregating = read.withAggregation(wanted);
        String schema = Core.aggregate(aggregating.json());
        if (schema.equals("null")) {
            return false;
        }
        read = aggregating;
        aggregation = asked;
        aggregated = (StructType) DataType.fromJson(schema);
        return true;
    }

    @Override
    public Scan build() {
        String json = read.json();
        Core.check(json);
        return new QuireScan(json, aggregated != null ? aggregated : read.schema(), description());
    }

    /** What the plan of a query says of the scan. */
    private String description() {
        StringJoiner parts = new StringJoiner(", ");
        if (aggregation == null) {
            parts.add("columns " + Arrays.toString(read.schema().fieldNames()));
        } else {
            parts.add("aggregates " + Arrays.toString(aggregation.aggregateExpressions()));
            parts.add("groups " + Arrays.toString(aggregation.groupByExpressions()));
        }
        if (pushed.length > 0) {
            parts.add("conditions " + Arrays.toString(pushed));
        }
        limit.ifPresent(rows -> parts.add("limit " + rows));
        return parts.toString();
    }
}
