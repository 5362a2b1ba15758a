package quire;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON as the core and this source exchange it: objects are maps, lists are lists, whole numbers are {@link Long},
 * other numbers {@link Double}. A {@link Raw} text is written as it is.
 */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** A text that is JSON already. */
    record Raw(String json) {}

    static String write(Object value) {
        StringBuilder into = new StringBuilder();
        write(value, into);
        return into.toString();
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String text) {
        return (Map<String, Object>) new Json(text).whole();
    }

    @SuppressWarnings("unchecked")
    static List<String> texts(String text) {
        return (List<String>) new Json(text).whole();
    }

    private static void write(Object value, StringBuilder into) {
        if (value instanceof Raw raw) {
            into.append(raw.json());
        } else if (value instanceof Map<?, ?> map) {
            String mark = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                into.append(mark);
                write(entry.getKey(), into);
                into.append(':');
                write(entry.getValue(), into);
                mark = ",";
            }
            into.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> items) {
            into.append('[');
            String mark = "";
            for (Object item : items) {
                into.append(mark);
                write(item, into);
                mark = ",";
            }
            into.append(']');
        } else if (value == null || value instanceof Boolean || value instanceof Number) {
            into.append(value);
        } else {
            quote(value.toString(), into);
        }
    }

    private static void quote(String text, StringBuilder into) {
        into.append('"');
        for (int index = 0; index < text.length(); index++) {
            char each = text.charAt(index);
            if (each == '"' || each == '\\') {
                into.append('\\').append(each);
            } else if (each < ' ') {
                into.append(String.format("\\u%04x", (int) each));
            } else {
                into.append(each);
            }
        }
        into.append('"');
    }

    private Object whole() {
        Object value = value();
        skipSpace();
        if (at < text.length()) {
            throw malformed();
        }
        return value;
    }

    private Object value() {
        skipSpace();
        char first = peek();
        return switch (first) {
            case '{' -> map();
            case '[' -> list();
            case '"' -> string();
            default -> word();
        };
    }

    private Map<String, Object> map() {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        skipSpace();
        while (peek() != '}') {
            skipSpace();
            String key = string();
            skipSpace();
            expect(':');
            found.put(key, value());
            skipSpace();
            if (peek() != '}') {
                expect(',');
            }
        }
        at++;
        return found;
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        at++;
        skipSpace();
        while (peek() != ']') {
            found.add(value());
            skipSpace();
            if (peek() != ']') {
                expect(',');
            }
        }
        at++;
        return found;
    }

    private String string() {
        expect('"');
        StringBuilder found = new StringBuilder();
        while (peek() != '"') {
            char each = text.charAt(at++);
            if (each != '\\') {
                found.append(each);
                continue;
            }
            char escaped = peek();
            at++;
            switch (escaped) {
                case 'n' -> found.append('\n');
                case 't' -> found.append('\t');
                case 'r' -> found.append('\r');
                case 'b' -> found.append('\b');
                case 'f' -> found.append('\f');
                case 'u' -> {
                    if (at + 4 > text.length()) {
                        throw malformed();
                    }
                    found.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                }
                default -> found.append(escaped);
            }
        }
        at++;
        return found.toString();
    }

    private Object word() {
        int begin = at;
        while (at < text.length() && ",]} \n\r\t".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(begin, at);
        return switch (word) {
            case "null" -> null;
            case "true" -> true;
            case "false" -> false;
            default -> number(word);
        };
    }

    private Object number(String word) {
        try {
            boolean isWhole = word.indexOf('.') < 0 && word.indexOf('e') < 0 && word.indexOf('E') < 0;
            return isWhole ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        } catch (NumberFormatException error) {
            throw malformed();
        }
    }

    private char peek() {
        if (at >= text.length()) {
            throw malformed();
        }
        return text.charAt(at);
    }

    private void expect(char wanted) {
        if (peek() != wanted) {
            throw malformed();
        }
        at++;
    }

    private void skipSpace() {
        while (at < text.length() && " \n\r\t".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private QuireException malformed() {
        return new QuireException("internal", "the core answered with malformed JSON, at character " + at + ": " + text);
    }
}
