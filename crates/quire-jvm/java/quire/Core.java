package quire;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.unsafe.Platform;

/**
 * The functions of the Rust core (docs/internals/spark-reader.md, "Functions").
 *
 * <p>Only numbers cross the border: values, handles, and addresses of memory outside of the heap. The library is in
 * the jar. Each class loader copies it to a file of its own, because the JVM loads a file for one class loader only,
 * and Spark has one for the driver and one for the tasks.
 */
final class Core {
    /** What a function returns after a failure. */
    private static final long FAILED = -1;

    /** Why the library cannot be used here; null = it can. */
    private static final String UNUSABLE = load();

    private Core() {}

    /** Why this process cannot read with the library, or null. */
    static String unusable() {
        return UNUSABLE;
    }

    /** Describes the range that a batch read covers. Throws for options that are not allowed. */
    static String frame(Map<String, String> options) {
        return ask(Core::frame, Json.write(options));
    }

    static String schema(String frame) {
        return ask(Core::schema, frame);
    }

    static void check(String read) {
        ask(Core::check, read);
    }

    static String push(String read) {
        return ask(Core::push, read);
    }

    static String aggregate(String read) {
        return ask(Core::aggregate, read);
    }

    static String statistics(String read) {
        return ask(Core::statistics, read);
    }

    static String plan(String read) {
        return ask(Core::plan, read);
    }

    /** Opens a task. The handle must be closed by {@link #scanClose}. */
    static long scanOpen(String task) {
        return number(answer -> withText(task, (at, size) -> scanOpen(at, size, answer)));
    }

    /** Builds the next batch. Returns its number of rows, 0 at the end. */
    static long scanNext(long scan, long numbers, long count) {
        return number(answer -> scanNext(scan, numbers, count, answer));
    }

    static String scanWarnings(long scan) {
        return text(answer -> scanWarnings(scan, answer));
    }

    /** The numbers of the table "Metrics". */
    static long[] scanMetrics(long scan) {
        long[] metrics = new long[6];
        long at = Platform.allocateMemory(8L * metrics.length);
        try {
            number(answer -> scanMetrics(scan, at, answer));
            for (int index = 0; index < metrics.length; index++) {
                metrics[index] = Platform.getLong(null, at + 8L * index);
            }
            return metrics;
        } finally {
            Platform.freeMemory(at);
        }
    }

    static native long scanCancel(long scan);

    static native long scanClose(long scan);

    /** Opens a stream. The handle must be closed by {@link #streamClose}. */
    static long streamOpen(String read) {
        return number(answer -> withText(read, (at, size) -> streamOpen(at, size, answer)));
    }

    static String streamInitial(long stream) {
        return text(answer -> streamInitial(stream, answer));
    }

    static String streamLimit(long stream) {
        return text(answer -> streamLimit(stream, answer));
    }

    static void streamAvailableNow(long stream) {
        text(answer -> streamAvailableNow(stream, answer));
    }

    /** The end of the next batch; an empty text when there is nothing for a batch. */
    static String streamLatest(long stream, String request) {
        return text(answer -> withText(request, (at, size) -> streamLatest(stream, at, size, answer)));
    }

    static String streamNewest(long stream) {
        return text(answer -> streamNewest(stream, answer));
    }

    static String streamPlan(long stream, String request) {
        return text(answer -> withText(request, (at, size) -> streamPlan(stream, at, size, answer)));
    }

    static void streamCommit(long stream, String offset) {
        text(answer -> withText(offset, (at, size) -> streamCommit(stream, at, size, answer)));
    }

    static native long streamClose(long stream);

    private static native long version(long answer);

    private static native long frame(long options, long size, long answer);

    private static native long schema(long frame, long size, long answer);

    private static native long check(long read, long size, long answer);

    private static native long push(long read, long size, long answer);

    private static native long aggregate(long read, long size, long answer);

    private static native long statistics(long read, long size, long answer);

    private static native long plan(long read, long size, long answer);

    private static native long scanOpen(long task, long size, long answer);

    private static native long scanNext(long scan, long columns, long room, long answer);

    private static native long scanWarnings(long scan, long answer);

    private static native long scanMetrics(long scan, long metrics, long answer);

    private static native long streamOpen(long read, long size, long answer);

    private static native long streamInitial(long stream, long answer);

    private static native long streamLimit(long stream, long answer);

    private static native long streamAvailableNow(long stream, long answer);

    private static native long streamLatest(long stream, long request, long size, long answer);

    private static native long streamNewest(long stream, long answer);

    private static native long streamPlan(long stream, long request, long size, long answer);

    private static native long streamCommit(long stream, long offset, long size, long answer);

    private static native long answerFree(long address, long size);

    /** Calls a function that takes one text and answers with one. */
    private static String ask(Question question, String request) {
        return text(answer -> withText(request, (at, size) -> question.ask(at, size, answer)));
    }

    private static String text(Answered call) {
        String[] text = new String[1];
        answered(call, text);
        return text[0];
    }

    private static long number(Answered call) {
        return answered(call, new String[1]);
    }

    /** Calls, takes the text of the answer and frees it. Throws the failure that the function reports. */
    private static long answered(Answered call, String[] text) {
        if (UNUSABLE != null) {
            throw new QuireException("bad_option", "reader: " + UNUSABLE);
        }
        long answer = Platform.allocateMemory(16);
        Platform.putLong(null, answer, 0);
        Platform.putLong(null, answer + 8, 0);
        try {
            long status = call.call(answer);
            text[0] = taken(Platform.getLong(null, answer), Platform.getLong(null, answer + 8));
            if (status == FAILED) {
                throw QuireException.of(text[0]);
            }
            return status;
        } finally {
            Platform.freeMemory(answer);
        }
    }

    private static String taken(long address, long size) {
        try {
            byte[] bytes = new byte[Math.toIntExact(size)];
            Platform.copyMemory(null, address, bytes, Platform.BYTE_ARRAY_OFFSET, size);
            return new String(bytes, StandardCharsets.UTF_8);
        } finally {
            answerFree(address, size);
        }
    }

    private static long withText(String text, OfText call) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        long at = Platform.allocateMemory(Math.max(bytes.length, 1));
        try {
            Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, null, at, bytes.length);
            return call.call(at, bytes.length);
        } finally {
            Platform.freeMemory(at);
        }
    }

    private static String load() {
        String library = library();
        try (InputStream bytes = Core.class.getResourceAsStream(library)) {
            if (bytes == null) {
                return "the jar has no library for this machine (" + library + "); the Python source reads here";
            }
            Path file = Files.createTempFile("quire-", library.substring(library.lastIndexOf('.')));
            try {
                Files.copy(bytes, file, StandardCopyOption.REPLACE_EXISTING);
                System.load(file.toString());
            } finally {
                // A loaded library needs its file no longer. Windows deletes no file that is in use.
                if (!file.toFile().delete()) {
                    file.toFile().deleteOnExit();
                }
            }
            return null;
        } catch (IOException | UnsatisfiedLinkError error) {
            return "the library cannot be loaded (" + error.getMessage() + "); java.io.tmpdir must be a directory "
                + "in which programs may run, or the Python source reads";
        }
    }

    /** The place of the library in the jar: the build writes it there (build_jar.py). */
    private static String library() {
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String name = system.startsWith("windows") ? "windows" : system.startsWith("mac") ? "darwin" : "linux";
        String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
        machine = machine.equals("amd64") ? "x86_64" : machine.equals("arm64") ? "aarch64" : machine;
        String file = switch (name) {
            case "windows" -> "quire_jvm.dll";
            case "darwin" -> "libquire_jvm.dylib";
            default -> "libquire_jvm.so";
        };
        return "/quire/native/" + name + "-" + machine + "/" + file;
    }

    private interface Answered {
        long call(long answer);
    }

    private interface OfText {
        long call(long at, long size);
    }

    private interface Question {
        long ask(long at, long size, long answer);
    }
}
