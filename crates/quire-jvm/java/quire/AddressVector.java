package quire;

import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of a batch that Rust holds, read where it lies (docs/internals/spark-reader.md, "Column numbers").
 *
 * <p>The memory is valid until the next batch, as with every source of Spark that uses its batches again. Closing a
 * vector frees nothing: the scan owns the memory.
 */
final class AddressVector extends ColumnVector {
    /** Numbers of a column. */
    private static final int NUMBERS = 5;

    private final AddressVector[] children;
    private long validity;
    private int nulls;
    private long values;
    private long bytes;

    AddressVector(DataType type) {
        super(type);
        this.children = children(type);
    }

    /** A vector for each column. */
    static AddressVector[] of(StructType schema) {
        AddressVector[] vectors = new AddressVector[schema.length()];
        for (int index = 0; index < vectors.length; index++) {
            vectors[index] = new AddressVector(schema.apply(index).dataType());
        }
        return vectors;
    }

    /** How many numbers the columns have together. */
    static int numbers(AddressVector[] vectors) {
        int count = 0;
        for (AddressVector vector : vectors) {
            count += NUMBERS + numbers(vector.children);
        }
        return count;
    }

    /** Takes the numbers of the columns, which are at an address in depth-first order. Returns the address behind them. */
    static long set(AddressVector[] vectors, long at) {
        for (AddressVector vector : vectors) {
            vector.validity = Platform.getLong(null, at);
            vector.nulls = (int) Platform.getLong(null, at + 8);
            vector.values = Platform.getLong(null, at + 24);
            vector.bytes = Platform.getLong(null, at + 32);
            at = set(vector.children, at + 8L * NUMBERS);
        }
        return at;
    }

    private static AddressVector[] children(DataType type) {
        if (type instanceof StructType struct) {
            return of(struct);
        }
        if (type instanceof ArrayType array) {
            return new AddressVector[] {new AddressVector(array.elementType())};
        }
        if (type instanceof MapType map) {
            return new AddressVector[] {new AddressVector(map.keyType()), new AddressVector(map.valueType())};
        }
        if (type instanceof VariantType) {
            // Spark expects the value first, then the metadata.
            DataType binary = DataTypes.BinaryType;
            return new AddressVector[] {new AddressVector(binary), new AddressVector(binary)};
        }
        return new AddressVector[0];
    }

    @Override
    public void close() {}

    @Override
    public boolean hasNull() {
        return nulls != 0;
    }

    @Override
    public int numNulls() {
        return nulls;
    }

    @Override
    public boolean isNullAt(int row) {
        return validity != 0 && !isSet(validity, row);
    }

    @Override
    public boolean getBoolean(int row) {
        return isSet(values, row);
    }

    @Override
    public byte getByte(int row) {
        return Platform.getByte(null, values + row);
    }

    @Override
    public short getShort(int row) {
        return Platform.getShort(null, values + 2L * row);
    }

    @Override
    public int getInt(int row) {
        return Platform.getInt(null, values + 4L * row);
    }

    @Override
    public long getLong(int row) {
        return Platform.getLong(null, values + 8L * row);
    }

    @Override
    public float getFloat(int row) {
        return Platform.getFloat(null, values + 4L * row);
    }

    @Override
    public double getDouble(int row) {
        return Platform.getDouble(null, values + 8L * row);
    }

    @Override
    public UTF8String getUTF8String(int row) {
        return isNullAt(row) ? null : UTF8String.fromAddress(null, bytes + offset(row), length(row));
    }

    @Override
    public byte[] getBinary(int row) {
        if (isNullAt(row)) {
            return null;
        }
        byte[] copy = new byte[length(row)];
        Platform.copyMemory(null, bytes + offset(row), copy, Platform.BYTE_ARRAY_OFFSET, copy.length);
        return copy;
    }

    @Override
    public ColumnarArray getArray(int row) {
        return isNullAt(row) ? null : new ColumnarArray(children[0], offset(row), length(row));
    }

    @Override
    public ColumnarMap getMap(int row) {
        return isNullAt(row) ? null : new ColumnarMap(children[0], children[1], offset(row), length(row));
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        return children[ordinal];
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        throw new UnsupportedOperationException("no column of quire is a decimal");
    }

    private int offset(int row) {
        return getInt(row);
    }

    private int length(int row) {
        return getInt(row + 1) - getInt(row);
    }

    private static boolean isSet(long bits, int row) {
        return (Platform.getByte(null, bits + (row >> 3)) >> (row & 7) & 1) != 0;
    }
}
