//! Every function, as a library for another language calls it, with good and wrong arguments.
#![allow(unsafe_code)]

mod support;

use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use quire_spark::abi;
use serde_json::{Value, json};
use support::{Scanned, answered, call, frame, longs, numbers, schema, tasks, texts, trades};

const COUNT: u64 = 3000;

#[test]
fn a_read_gives_every_row_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[("partitionBytes", "32KB"), ("batchRows", "100")]).unwrap();
    let all: Value = serde_json::from_str(&call(abi::schema, &frame.to_string()).unwrap()).unwrap();
    let names: Vec<&str> =
        all["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ["position", "bookmark", "timestamp", "timestamp_ns", "topic"]);
    let columns =
        schema(&[("position", "long"), ("topic", "string"), ("symbol", "string"), ("absent", "long")]);
    let read = json!({"frame": frame, "schema": columns});
    let parts = tasks(&read).unwrap();
    assert!(parts.len() > 3);
    let mut next = 0;
    for task in parts {
        let scan = Scanned::open(&task).unwrap();
        loop {
            let (rows, numbers) = scan.next(20).unwrap();
            if rows == 0 {
                break;
            }
            let (positions, topics) = (longs(&numbers[..5]), texts(&numbers[5..10]));
            let (symbols, absent) = (texts(&numbers[10..15]), longs(&numbers[15..]));
            for row in 0..rows {
                let number = next;
                assert_eq!(positions[row], Some(number + 1));
                let topic = if number % 100 == 0 { "rare" } else { ["t/0", "t/1"][(number % 2) as usize] };
                assert_eq!(topics[row].as_deref(), Some(topic));
                assert_eq!(symbols[row].as_deref(), Some(["IBM", "HPQ", "ORCL"][(number % 3) as usize]));
                assert_eq!(absent[row], None);
                next += 1;
            }
        }
        let metrics = scan.metrics();
        assert_eq!(metrics[0], metrics[1], "every record is a row");
        assert!(metrics[2] > 0 && metrics[3] > 0);
    }
    assert_eq!(next, COUNT as i64);
}

#[test]
fn no_columns_are_rows_without_values() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[]).unwrap();
    let (mut count, columns) = (0, schema(&[("topic", "string")]));
    let condition = json!({"name": "=", "children": [{"column": ["topic"]}, {"literal": "rare"}]});
    let read = json!({"frame": frame, "schema": schema(&[]), "columns": columns, "conditions": [condition]});
    for task in tasks(&read).unwrap() {
        let scan = Scanned::open(&task).unwrap();
        loop {
            let (rows, _) = scan.next(0).unwrap();
            if rows == 0 {
                break;
            }
            count += rows;
        }
    }
    assert_eq!(count, COUNT as usize / 100);
}

#[test]
fn an_array_is_a_column_of_offsets_with_its_elements() {
    let directory = tempfile::tempdir().unwrap();
    let data = [
        r#"{"tags": ["a", "", null, 7, "b"], "sizes": [1, 2.5, "3", -4]}"#,
        r#"{"tags": [], "sizes": [[5], 6]}"#,
        r#"{"tags": "a", "sizes": null}"#,
        "{}",
        "no JSON",
        r#"{"tags": [{"x": 1}], "sizes": [9223372036854775807, 9223372036854775808]}"#,
    ];
    let messages: Vec<_> = data.iter().map(|data| ("t", (*data).to_owned(), 0)).collect();
    support::append(directory.path(), 7, &messages);
    let frame = frame(directory.path(), &[("fields", "tags array<string>, sizes array<bigint>")]).unwrap();
    let all: Value = serde_json::from_str(&call(abi::schema, &frame.to_string()).unwrap()).unwrap();
    let fields = all["fields"].as_array().unwrap();
    let columns = json!({"type": "struct", "fields": fields[fields.len() - 2..]});
    let read = json!({"frame": frame, "schema": columns});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    let (rows, numbers) = scan.next(20).unwrap();
    assert_eq!(rows, data.len());
    let text = |text: &str| Some(text.to_owned());
    let tags = arrays(&numbers[..5], &texts(&numbers[5..10]));
    let seven = vec![text("a"), None, None, text("7"), text("b")];
    assert_eq!(tags, [Some(seven), Some(vec![]), None, None, None, Some(vec![None])]);
    let sizes = arrays(&numbers[10..15], &longs(&numbers[15..]));
    let first = vec![Some(1), None, None, Some(-4)];
    let last = vec![Some(i64::MAX), None];
    assert_eq!(sizes, [Some(first), Some(vec![None, Some(6)]), None, None, None, Some(last)]);
}

#[test]
fn a_map_is_a_column_of_offsets_with_its_names_and_values() {
    let directory = tempfile::tempdir().unwrap();
    let data = [
        r#"{"m": {"a": 1, "": 2.5, "b": null, "c\u0041": "7", "d": [1], "e": {"x": 1}, "a": -4}}"#,
        r#"{"m": {}}"#,
        r#"{"m": [{"a": 1}]}"#,
        r#"{"m": null}"#,
        "{}",
        "no JSON",
        r#"{"m": {"ä": 9223372036854775807, "b": 9223372036854775808, "c": true}}"#,
    ];
    let messages: Vec<_> = data.iter().map(|data| ("t", (*data).to_owned(), 0)).collect();
    support::append(directory.path(), 7, &messages);
    let fields = "n map<string, bigint>, s map<string,string>, o struct<inner: map<string,bigint>>";
    let options = [("fields", fields), ("field.n", "/m"), ("field.s", "/m")];
    let frame = frame(directory.path(), &options).unwrap();
    let all: Value = serde_json::from_str(&call(abi::schema, &frame.to_string()).unwrap()).unwrap();
    let fields = all["fields"].as_array().unwrap();
    let columns = json!({"type": "struct", "fields": fields[fields.len() - 3..fields.len() - 1]});
    let scan = Scanned::open(&tasks(&json!({"frame": frame, "schema": columns})).unwrap()[0]).unwrap();
    let (rows, numbers) = scan.next(30).unwrap();
    assert_eq!(rows, data.len());
    let text = |text: &str| Some(text.to_owned());
    let names = arrays(&numbers[..5], &texts(&numbers[5..10]));
    let first = ["a", "", "b", "cA", "d", "e"].map(text).to_vec();
    let last = ["ä", "b", "c"].map(text).to_vec();
    assert_eq!(names, [Some(first), Some(vec![]), None, None, None, None, Some(last)]);
    let counts = arrays(&numbers[..5], &longs(&numbers[10..15]));
    let first = vec![Some(-4), None, None, None, None, None];
    let last = vec![Some(i64::MAX), None, None];
    assert_eq!(counts, [Some(first), Some(vec![]), None, None, None, None, Some(last)]);
    assert_eq!(names, arrays(&numbers[15..20], &texts(&numbers[20..25])));
    let values = arrays(&numbers[15..20], &texts(&numbers[25..30]));
    let first = vec![text("-4"), text("2.5"), None, text("7"), None, None];
    let last = vec![text("9223372036854775807"), text("9223372036854775808"), text("true")];
    assert_eq!(values, [Some(first), Some(vec![]), None, None, None, None, Some(last)]);
}

#[test]
fn a_variant_is_a_struct_of_its_value_and_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let data = [r#"{"a": "x"}"#, r#"{"a": 1, "a": 2}"#, "no JSON", r#"{"b": "y", "a": ""}"#];
    let messages: Vec<_> = data.iter().map(|data| ("t", (*data).to_owned(), 0)).collect();
    support::append(directory.path(), 7, &messages);
    let frame = frame(directory.path(), &[]).unwrap();
    let read = json!({"frame": frame, "schema": schema(&[("data", "variant")])});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    let (rows, numbers) = scan.next(15).unwrap();
    assert_eq!((rows, numbers.len()), (data.len(), 15));
    let is_there: Vec<_> = (0..rows).map(|row| support::is_there(&numbers[..5], row)).collect();
    assert_eq!(is_there, [true, false, false, true]);
    let text = |text: &str| Some(text.to_owned());
    let values = ["\x02\x01\0\0\x02\x05x", "", "", "\x02\x02\x01\0\x02\0\x03\x05y\x01"];
    assert_eq!(texts(&numbers[5..10]), values.map(text));
    let names = ["\x01\x01\0\x01a", "", "", "\x01\x02\0\x01\x02ba"];
    assert_eq!(texts(&numbers[10..15]), names.map(text));
    // Spark applies conditions on it: the scan does not know which messages are malformed.
    let condition = json!({"name": "IS_NULL", "children": [{"column": ["data"]}]});
    let read = json!({"frame": frame, "schema": schema(&[("data", "variant")]), "conditions": [condition]});
    assert_eq!(call(abi::push, &read.to_string()).unwrap(), r#"["none"]"#);
    let columns = schema(&[("data", "variant"), ("position", "long")]);
    let read = json!({"frame": frame, "schema": schema(&[("position", "long")]), "columns": columns, "conditions": [condition]});
    assert_eq!(support::numbers(&read), [1, 2, 3, 4]);
}

/// The values of a column of arrays, from those of its elements.
fn arrays<T: Clone>(numbers: &[i64], elements: &[Option<T>]) -> Vec<Option<Vec<Option<T>>>> {
    // SAFETY: the offsets of a batch that is open.
    let offset = |row: usize| unsafe { *((numbers[3] + 4 * row as i64) as *const i32) } as usize;
    let array = |row: usize| elements[offset(row)..offset(row + 1)].to_vec();
    (0..numbers[2] as usize).map(|row| support::is_there(numbers, row).then(|| array(row))).collect()
}

#[test]
fn a_limit_ends_a_task_when_all_conditions_are_exact() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[("batchRows", "40")]).unwrap();
    let columns = schema(&[("position", "long"), ("topic", "string")]);
    let exact = json!({"name": "<>", "children": [{"column": ["topic"]}, {"literal": "rare"}]});
    let left = json!({"name": "RLIKE", "children": [{"column": ["topic"]}, {"literal": "r"}]});
    let read =
        |conditions: Value| json!({"frame": frame, "schema": columns, "conditions": conditions, "limit": 50});
    assert_eq!(numbers(&read(json!([exact]))), (2..=51).collect::<Vec<_>>());
    assert_eq!(numbers(&read(json!([exact, left]))).len(), COUNT as usize * 99 / 100);
}

#[test]
fn too_little_room_for_the_numbers_loses_no_batch() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let read =
        json!({"frame": frame(directory.path(), &[]).unwrap(), "schema": schema(&[("position", "long")])});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    assert_eq!(scan.next(4).unwrap_err()["code"], "bad_option");
    assert_eq!(scan.next(5).unwrap().0, 10);
    assert_eq!(scan.next(5).unwrap().0, 0);
}

#[test]
fn a_scan_that_is_cancelled_ends_with_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[("batchRows", "10")]).unwrap();
    let read = json!({"frame": frame, "schema": schema(&[("position", "long")])});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    assert!(scan.next(5).unwrap().0 > 0);
    abi::scan_cancel(scan.handle);
    assert_eq!(scan.next(5).unwrap_err()["code"], "cancelled");
}

#[test]
fn closed_and_unknown_handles_are_failures() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let read =
        json!({"frame": frame(directory.path(), &[]).unwrap(), "schema": schema(&[("position", "long")])});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    assert_eq!(
        [abi::scan_close(scan.handle), abi::scan_close(scan.handle), abi::scan_cancel(scan.handle)],
        [0; 3]
    );
    assert_eq!(scan.next(5).unwrap_err()["code"], "bad_option");
    // SAFETY: the answer is there for the call.
    let failure = answered(|answer| unsafe { abi::stream_limit(-7, answer) }).unwrap_err();
    assert_eq!(failure["text"], "handle -7 is not open");
    assert_eq!(abi::stream_close(-7), 0);
}

#[test]
fn a_scan_is_a_stream_of_arrow_as_well() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[("batchRows", "1000")]).unwrap();
    let read = json!({"frame": frame, "schema": schema(&[("position", "long")])});
    let scan = Scanned::open(&tasks(&read).unwrap()[0]).unwrap();
    let mut stream = FFI_ArrowArrayStream::empty();
    let at = &raw mut stream as i64;
    // SAFETY: the stream and the answer are there for the call.
    answered(|answer| unsafe { abi::scan_stream(scan.handle, at, answer) }).unwrap();
    let batches: Vec<_> =
        RecordBatchStreamReader::try_new(stream).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), COUNT as usize);
    assert_eq!(scan.metrics()[1], COUNT as i64);
    assert_eq!(scan.next(5).unwrap_err()["code"], "bad_option");
}

#[test]
fn wrong_texts_are_failures_that_name_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let refused = |options: &[(&str, &str)]| frame(directory.path(), options).unwrap_err();
    assert_eq!(refused(&[("topicz", "t")])["text"], "topicz: no such option; did you mean topics?");
    let failure = refused(&[("startingOffsets", "yesterday")]);
    assert_eq!(
        (failure["code"].as_str(), failure["key"].as_str()),
        (Some("bad_bookmark"), Some("startingOffsets"))
    );
    let good = frame(directory.path(), &[("filter", "/n >>> 3")]).unwrap();
    let failure = call(abi::check, &json!({"frame": good, "schema": schema(&[])}).to_string()).unwrap_err();
    assert_eq!((failure["code"].as_str(), failure["column"].as_u64()), (Some("bad_filter"), Some(5)));
    assert!(failure["text"].as_str().unwrap().starts_with("filter: '/n >>> 3': expected "), "{failure}");
    let mut old = frame(directory.path(), &[]).unwrap();
    old["version"] = json!("0.0.9");
    let failure = call(abi::schema, &old.to_string()).unwrap_err();
    assert!(failure["text"].as_str().unwrap().contains("was planned by quire 0.0.9"), "{failure}");
    for function in
        [abi::frame, abi::schema, abi::check, abi::push, abi::plan, abi::statistics, abi::aggregate]
    {
        for wrong in ["", "{", "[]", "{}", "null", r#"{"frame": {}}"#, "\u{0}"] {
            assert!(call(function, wrong).is_err(), "{wrong}");
        }
    }
}

#[test]
fn statistics_come_from_the_indexes() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT);
    let frame = frame(directory.path(), &[]).unwrap();
    let statistics = |conditions: Value| -> Value {
        let read =
            json!({"frame": frame, "schema": schema(&[("position", "long")]), "conditions": conditions});
        serde_json::from_str(&call(abi::statistics, &read.to_string()).unwrap()).unwrap()
    };
    let everything = statistics(json!([]));
    assert_eq!(everything["rows"], COUNT);
    let few = json!({"name": "<=", "children": [{"column": ["position"]}, {"literal": 10}]});
    let few = statistics(json!([few]));
    assert_eq!(few["rows"], 10);
    assert!(few["bytes"].as_u64() < everything["bytes"].as_u64());
}

#[test]
fn a_mistake_in_a_column_is_found_also_when_the_query_does_not_use_it() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let check = |options: &[(&str, &str)], columns: &[(&str, &str)]| {
        let frame = frame(directory.path(), options).unwrap();
        let used = schema(&[("position", "long")]);
        let read = json!({"frame": frame, "schema": used, "columns": schema(columns)});
        call(abi::check, &read.to_string()).map(drop)
    };
    let columns = [("position", "long"), ("px", "double")];
    assert_eq!(check(&[("field.px", "/price")], &columns), Ok(()));
    for (options, columns, reason) in [
        (vec![("field.py", "/price")], columns.to_vec(), "field.py: there is no such column"),
        (vec![("field.px", "price")], columns.to_vec(), "is no path"),
        (
            vec![],
            vec![("position", "long"), ("px", "decimal(10,2)")],
            "column px: decimal(10,2) cannot be read",
        ),
        (
            vec![("field.px", "/price")],
            vec![("position", "long"), ("px", "double"), ("PX", "double")],
            "it could be the path of each of the columns px, PX",
        ),
    ] {
        let failure = check(&options, &columns).unwrap_err();
        assert!(failure["text"].as_str().unwrap().contains(reason), "{failure}");
    }
}
