package quire;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** Expressions of Spark as the core reads them. The core decides what it takes. */
final class Conditions {
    private Conditions() {}

    static Object of(Expression expression) {
        if (expression instanceof Predicate predicate) {
            List<Object> children = new ArrayList<>();
            for (Expression child : predicate.children()) {
                children.add(of(child));
            }
            return Map.of("name", predicate.name(), "children", children);
        }
        if (expression instanceof NamedReference column) {
            return column(column);
        }
        if (expression instanceof Literal<?> literal) {
            return literal(literal);
        }
        return other(expression);
    }

    /** The aggregation, or null when it has something that is no column. */
    static Map<String, Object> of(Aggregation aggregation) {
        List<Object> group = new ArrayList<>();
        for (Expression expression : aggregation.groupByExpressions()) {
            if (!(expression instanceof NamedReference column)) {
                return null;
            }
            group.add(List.of(column.fieldNames()));
        }
        List<Object> functions = new ArrayList<>();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            Map<String, Object> known = of(function);
            if (known == null) {
                return null;
            }
            functions.add(known);
        }
        return Map.of("group", group, "functions", functions);
    }

    private static Map<String, Object> of(AggregateFunc function) {
        if (function instanceof CountStar) {
            return Map.of("name", "count");
        }
        if (function instanceof Count count && !count.isDistinct()) {
            return of("count", count.column());
        }
        if (function instanceof Min min) {
            return of("min", min.column());
        }
        return function instanceof Max max ? of("max", max.column()) : null;
    }

    private static Map<String, Object> of(String name, Expression argument) {
        boolean isColumn = argument instanceof NamedReference;
        return isColumn ? Map.of("name", name, "column", List.of(((NamedReference) argument).fieldNames())) : null;
    }

    private static Map<String, Object> column(NamedReference column) {
        return Map.of("column", List.of(column.fieldNames()));
    }

    private static Object literal(Literal<?> literal) {
        Object value = literal.value();
        if (value == null) {
            return Collections.singletonMap("literal", null);
        }
        // In another collation, texts are not compared by their bytes, and bytes that are no UTF-8 are not text for the core.
        boolean isText = DataTypes.StringType.equals(literal.dataType()) && ((UTF8String) value).isValid();
        // Their values are microseconds and days.
        boolean isTime = literal.dataType() instanceof TimestampType || literal.dataType() instanceof DateType;
        boolean isWhole = literal.dataType() instanceof IntegralType;
        if (value instanceof Boolean || isText || isWhole || isTime) {
            return Map.of("literal", isText ? value.toString() : value);
        }
        if (value instanceof Float || value instanceof Double) {
            double number = ((Number) value).doubleValue();
            return Double.isFinite(number) ? Map.of("literal", number) : other(literal);
        }
        return other(literal);
    }

    private static Map<String, Object> other(Expression expression) {
        return Map.of("other", expression.toString());
    }
}
