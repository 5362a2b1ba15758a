//! The vectors of `tests/golden/filters.txt` and the examples of `docs/filters.md`.

use quire_expression::filter::*;
use quire_expression::message_type::MessageType;

use super::{json, message, parsed};

#[test]
fn the_golden_vectors_hold() {
    let vectors = include_str!("../../../../tests/golden/filters.txt");
    let mut count = 0;
    for line in vectors.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<&str> = line.split(" | ").collect();
        let (want, filter) = (parts[0], parts[1]);
        let (data, message_type) = match parts[2..] {
            [data] => (data.as_bytes().to_vec(), MessageType::Json),
            [data, name] => (unescaped(data), MessageType::from_name(name).expect(line)),
            _ => panic!("{line}"),
        };
        let allow_backtracking = want == "yes with backtracking";
        let options = FilterOptions { allow_backtracking, ..FilterOptions::default() };
        let parsed =
            Filter::parse(filter, &options).unwrap_or_else(|error| panic!("{}", error.with_caret(filter)));
        let matches = parsed.matches(&message(message_type, &data));
        assert_eq!(matches, want.starts_with("yes"), "{line}");
        if allow_backtracking {
            let error = Filter::parse(filter, &FilterOptions::default()).unwrap_err();
            assert!(error.reason.contains("without back-references"), "{line}: {error}");
        }
        count += 1;
    }
    assert!(count > 250, "{count} vectors");
}

/// Rows of a table whose first cell is an expression and whose second is what it gives.
#[test]
fn the_examples_of_the_page_give_what_it_says() {
    let page = include_str!("../../../../docs/filters.md");
    let functions = page.split("\n## ").find(|section| section.starts_with("7. Functions")).unwrap();
    let mut names = Vec::new();
    for line in functions.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (example, gives) =
            (cells[0].trim_start_matches("| ").trim_matches('`'), cells[1].trim_matches('`'));
        let filter = match gives {
            "NULL" => format!("({example}) IS NULL"),
            _ => format!("({example}) = {gives}"),
        };
        let is_so = parsed(&filter).matches(&json(r#"{"list":[3,null,10,"7"]}"#));
        assert!(
            is_so,
            "docs/filters.md section 7 says that {example} gives {gives}, and it gives another value"
        );
        names.extend(example.split('(').next());
    }
    assert!(names.len() > 50, "{names:?}");
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).expect(text));
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
