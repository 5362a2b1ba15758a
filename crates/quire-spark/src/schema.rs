//! Columns in the forms of Spark: its JSON, and the definitions that users write.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::failure::{Failure, Outcome};

/// Columns with names and types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The columns in their order.
    pub columns: Vec<Column>,
}

/// A column, or a member of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: Type,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// A type of Spark. Prints as Spark shows it, such as `bigint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`.
    Boolean,
    /// 8 bits.
    Byte,
    /// 16 bits.
    Short,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// 32 bits.
    Float,
    /// 64 bits.
    Double,
    /// UTF-8.
    String,
    /// Bytes.
    Binary,
    /// Microseconds since 1970.
    Timestamp,
    /// Days since 1970.
    Date,
    /// A value of any type.
    Variant,
    /// Several columns as one.
    Struct(Vec<Column>),
    /// Any number of elements.
    Array(Box<Type>, bool),
    /// Any number of keys with values.
    Map(Box<Type>, Box<Type>, bool),
    /// A type that quire does not support, by its name in Spark.
    Other(String),
}

/// The simple types: their names in JSON, their names in Spark, and other names in definitions.
const SIMPLE: [(Type, &str, &str, &[&str]); 12] = [
    (Type::Boolean, "boolean", "boolean", &[]),
    (Type::Byte, "byte", "tinyint", &["byte"]),
    (Type::Short, "short", "smallint", &["short"]),
    (Type::Int, "integer", "int", &["integer"]),
    (Type::Long, "long", "bigint", &["long"]),
    (Type::Float, "float", "float", &["real"]),
    (Type::Double, "double", "double", &[]),
    (Type::String, "string", "string", &[]),
    (Type::Binary, "binary", "binary", &[]),
    (Type::Timestamp, "timestamp", "timestamp", &["timestamp_ltz"]),
    (Type::Date, "date", "date", &[]),
    (Type::Variant, "variant", "variant", &[]),
];

impl Schema {
    /// Reads the JSON of Spark.
    pub fn from_json(value: &Value) -> Outcome<Self> {
        match type_of(value) {
            Some(Type::Struct(columns)) => Ok(Schema { columns }),
            _ => Err(Failure::option(format!("the schema cannot be read: {value}"))),
        }
    }

    /// The JSON of Spark.
    pub fn to_json(&self) -> String {
        struct_json(&self.columns).to_string()
    }
}

/// The column of exactly this name, if there is only one.
///
/// In conditions and aggregates, Spark spells the names of columns as in the schema, also if the
/// query has another case. With `spark.sql.caseSensitive`, several columns can have names that
/// differ in their case only.
pub(crate) fn find<'a>(columns: &'a [Column], name: &str) -> Option<&'a Column> {
    let mut found = columns.iter().filter(|column| column.name == name);
    found.next().filter(|_| found.next().is_none())
}

impl Column {
    /// A column that may be NULL.
    pub fn new(name: &str, data_type: Type) -> Self {
        Column { name: name.to_owned(), data_type, nullable: true }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Struct(columns) => {
                f.write_str("struct<")?;
                for (number, column) in columns.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "," };
                    write!(f, "{comma}{}:{}", column.name, column.data_type)?;
                }
                f.write_str(">")
            }
            Type::Array(element, _) => write!(f, "array<{element}>"),
            Type::Map(key, value, _) => write!(f, "map<{key},{value}>"),
            Type::Other(name) => f.write_str(name),
            simple => {
                f.write_str(SIMPLE.iter().find(|(each, ..)| each == simple).map_or("", |found| found.2))
            }
        }
    }
}

fn type_of(value: &Value) -> Option<Type> {
    if let Value::String(name) = value {
        let simple = SIMPLE.iter().find(|(_, json, ..)| json == name).map(|found| found.0.clone());
        return Some(simple.unwrap_or_else(|| Type::Other(name.clone())));
    }
    let inner = |key: &str| value.get(key).and_then(type_of).map(Box::new);
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    Some(match value.get("type")?.as_str()? {
        "struct" => {
            Type::Struct(value.get("fields")?.as_array()?.iter().map(column_of).collect::<Option<_>>()?)
        }
        "array" => Type::Array(inner("elementType")?, flag("containsNull")?),
        "map" => Type::Map(inner("keyType")?, inner("valueType")?, flag("valueContainsNull")?),
        name => Type::Other(name.to_owned()),
    })
}

fn column_of(value: &Value) -> Option<Column> {
    Some(Column {
        name: value.get("name")?.as_str()?.to_owned(),
        data_type: type_of(value.get("type")?)?,
        nullable: value.get("nullable").is_none_or(|nullable| nullable != &Value::Bool(false)),
    })
}

fn type_json(data_type: &Type) -> Value {
    match data_type {
        Type::Struct(columns) => struct_json(columns),
        Type::Array(element, contains_null) => {
            json!({"type": "array", "elementType": type_json(element), "containsNull": contains_null})
        }
        Type::Map(key, value, contains_null) => json!({
            "type": "map", "keyType": type_json(key), "valueType": type_json(value), "valueContainsNull": contains_null
        }),
        Type::Other(name) => json!(name),
        simple => json!(SIMPLE.iter().find(|(each, ..)| each == simple).map(|found| found.1)),
    }
}

fn struct_json(columns: &[Column]) -> Value {
    let field = |column: &Column| {
        let Column { name, data_type, nullable } = column;
        json!({"name": name, "type": type_json(data_type), "nullable": nullable, "metadata": Map::new()})
    };
    json!({"type": "struct", "fields": columns.iter().map(field).collect::<Vec<_>>()})
}

/// The columns that a user defines, as `qty int, order struct<price: double NOT NULL>`. The failure
/// is the definition that is not valid.
pub(crate) fn defined(definitions: &str) -> Result<Vec<Column>, String> {
    parts(definitions)
        .into_iter()
        .map(|part| definition(part).ok_or_else(|| part.trim().to_owned()))
        .collect()
}

/// Splits at the commas outside of types and quotes.
fn parts(definitions: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth, mut quote) = (Vec::new(), 0, 0, None);
    for (at, character) in definitions.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => (),
            (None, '`' | '\'' | '"') => quote = Some(character),
            (None, '<') => depth += 1,
            (None, '>') => depth -= 1,
            (None, ',') if depth == 0 => {
                parts.push(&definitions[from..at]);
                from = at + 1;
            }
            _ => (),
        }
    }
    parts.push(&definitions[from..]);
    parts
}

fn definition(text: &str) -> Option<Column> {
    let mut words = Words(text);
    let column = words.column(0)?;
    words.0.trim().is_empty().then_some(column)
}

/// The deepest nesting of types in a definition.
const DEPTH_MAX: usize = 100;

/// The rest of a definition.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn take(&mut self, character: char) -> bool {
        let rest = self.0.trim_start().strip_prefix(character);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn word(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let end = text.find(|each: char| !each.is_alphanumeric() && each != '_').unwrap_or(text.len());
        self.0 = &text[end..];
        Some(&text[..end]).filter(|word| !word.is_empty())
    }

    /// Whether the next word is this one. Removes it then.
    fn keyword(&mut self, keyword: &str) -> bool {
        let before = self.0;
        let is_there = self.word().is_some_and(|word| word.eq_ignore_ascii_case(keyword));
        if !is_there {
            self.0 = before;
        }
        is_there
    }

    fn name(&mut self) -> Option<String> {
        if !self.take('`') {
            return self.word().map(Into::into);
        }
        let mut name = String::new();
        loop {
            let (part, rest) = self.0.split_once('`')?;
            name.push_str(part);
            self.0 = rest;
            match rest.strip_prefix('`') {
                Some(rest) => {
                    name.push('`');
                    self.0 = rest;
                }
                None => return (!name.is_empty()).then_some(name),
            }
        }
    }

    /// A name with a type, with a colon between them or without.
    fn column(&mut self, depth: usize) -> Option<Column> {
        let name = self.name()?;
        self.take(':');
        let data_type = self.data_type(depth)?;
        let nullable = !self.keyword("not");
        if !nullable && !self.keyword("null") {
            return None;
        }
        if self.keyword("comment") {
            self.quoted()?;
        }
        Some(Column { name, data_type, nullable })
    }

    fn quoted(&mut self) -> Option<()> {
        let quote = self.0.trim_start().chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (_, rest) = self.0.trim_start()[1..].split_once(quote)?;
        self.0 = rest;
        Some(())
    }

    fn data_type(&mut self, depth: usize) -> Option<Type> {
        if depth > DEPTH_MAX {
            return None;
        }
        let word = self.word()?.to_lowercase();
        if word == "struct" {
            if !self.take('<') {
                return None;
            }
            let mut columns = Vec::new();
            loop {
                columns.push(self.column(depth + 1)?);
                if self.take('>') {
                    return Some(Type::Struct(columns));
                }
                if !self.take(',') {
                    return None;
                }
            }
        }
        if word == "array" {
            let element = if self.take('<') { self.data_type(depth + 1)? } else { return None };
            return self.take('>').then(|| Type::Array(Box::new(element), true));
        }
        if word == "map" {
            let key = if self.take('<') { self.data_type(depth + 1)? } else { return None };
            let value = if self.take(',') { self.data_type(depth + 1)? } else { return None };
            return self.take('>').then(|| Type::Map(Box::new(key), Box::new(value), true));
        }
        let is_it = |(_, _, shown, others): &&(Type, &str, &str, &[&str])| {
            *shown == word || others.contains(&word.as_str())
        };
        SIMPLE.iter().find(is_it).map(|found| found.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(definitions: &str) -> Result<String, String> {
        let columns = defined(definitions)?;
        let shown = |column: &Column| {
            let not_null = if column.nullable { "" } else { "!" };
            format!("{}{not_null} {}", column.name, column.data_type)
        };
        Ok(columns.iter().map(shown).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn definitions_are_read_as_spark_writes_them() {
        for (text, expected) in [
            ("qty int, px double", "qty int; px double"),
            ("a: LONG, b: timestamp_ltz", "a bigint; b timestamp"),
            ("`a b` string NOT NULL COMMENT 'x, y', c date", "a b! string; c date"),
            ("`a``b` real", "a`b float"),
            (
                "order struct<qty: byte not null, who struct<id: string>>",
                "order struct<qty:tinyint,who:struct<id:string>>",
            ),
            ("ä_1 smallint", "ä_1 smallint"),
            ("tags array<string>, o struct<a: ARRAY < int > >", "tags array<string>; o struct<a:array<int>>"),
            (
                "m map<string, int>, o struct<m: MAP < string , date > >",
                "m map<string,int>; o struct<m:map<string,date>>",
            ),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, wrong) in [
            ("n wat", "n wat"),
            ("n int, x map<string>", "x map<string>"),
            ("x map<string,int", "x map<string,int"),
            ("x map", "x map"),
            ("x array<int", "x array<int"),
            ("x array", "x array"),
            ("n int,", ""),
            ("", ""),
            ("n", "n"),
            ("n int not", "n int not"),
            ("o struct<>", "o struct<>"),
            ("o struct<a: int", "o struct<a: int"),
            ("n int extra", "n int extra"),
            ("`n int", "`n int"),
            ("n int comment x", "n int comment x"),
        ] {
            assert_eq!(shown(text), Err(wrong.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_schema_reads_its_own_json() {
        let columns = defined("a int, b struct<c: string not null, d binary>, e date").unwrap();
        let mut schema = Schema { columns };
        let text = schema.to_json();
        assert_eq!(Schema::from_json(&serde_json::from_str(&text).unwrap()), Ok(schema.clone()));
        let map = Type::Map(Box::new(Type::String), Box::new(Type::Array(Box::new(Type::Int), true)), false);
        schema.columns.push(Column::new("m", map));
        schema.columns.push(Column::new("x", Type::Other("decimal(10,2)".into())));
        assert_eq!(Schema::from_json(&serde_json::from_str(&schema.to_json()).unwrap()), Ok(schema));
        for wrong in
            ["{}", "1", "\"string\"", r#"{"type": "struct"}"#, r#"{"type": "struct", "fields": [{}]}"#]
        {
            assert!(Schema::from_json(&serde_json::from_str(wrong).unwrap()).is_err(), "{wrong}");
        }
    }
}
