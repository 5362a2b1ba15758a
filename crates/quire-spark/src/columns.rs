//! The source of each column: attributes of the record by their names, all others from the fields
//! of the data.

use std::sync::LazyLock;

use quire_arrow::{Attribute, ColumnSpec, FieldType, Source};

use crate::failure::{Failure, Outcome};
use crate::options::ReadOptions;
use crate::schema::{Column, Schema, Type, defined, find};
use crate::text::quoted;

/// The attributes with their types, in the order of a frame without a schema (`docs/spark.md`,
/// "Columns").
const ATTRIBUTES: [(Attribute, &str, Type); 12] = [
    (Attribute::Position, "position", Type::Long),
    (Attribute::Bookmark, "bookmark", Type::String),
    (Attribute::Timestamp, "timestamp", Type::Timestamp),
    (Attribute::TimestampNs, "timestamp_ns", Type::Long),
    (Attribute::Topic, "topic", Type::String),
    (Attribute::Publisher, "publisher", Type::String),
    (Attribute::Sequence, "sequence", Type::Long),
    (Attribute::Kind, "kind", Type::String),
    (Attribute::CorrelationId, "correlation_id", Type::String),
    (Attribute::SowKey, "sow_key", Type::String),
    (Attribute::MessageType, "message_type", Type::String),
    (Attribute::Data, "data", Type::String),
];

/// The additional attributes of queue events.
const EVENT_ATTRIBUTES: [(Attribute, &str, Type); 6] = [
    (Attribute::FirstPosition, "first_position", Type::Long),
    (Attribute::LastPosition, "last_position", Type::Long),
    (Attribute::Deliveries, "deliveries", Type::Int),
    (Attribute::Cancels, "cancels", Type::Int),
    (Attribute::Reasons, "reasons", Type::String),
    (Attribute::Consumer, "consumer", Type::String),
];

/// The name of the column that a read with `includeHeaders` adds.
const HEADERS: &str = "headers";

/// The attributes that only the log has.
const NOT_FROM_A_SERVER: [&str; 2] = ["position", "message_type"];

/// The types of fields of the data.
const FIELD_TYPES: [(Type, FieldType); 10] = [
    (Type::Boolean, FieldType::Boolean),
    (Type::Byte, FieldType::Byte),
    (Type::Short, FieldType::Short),
    (Type::Int, FieldType::Int),
    (Type::Long, FieldType::Long),
    (Type::Float, FieldType::Float),
    (Type::Double, FieldType::Double),
    (Type::String, FieldType::String),
    (Type::Timestamp, FieldType::Timestamp),
    (Type::Date, FieldType::Date),
];

/// The types of fields, as text for people.
static FIELD_TYPE_NAMES: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<String> = FIELD_TYPES.iter().map(|(data_type, _)| data_type.to_string()).collect();
    names.join(", ")
});

/// The columns of a frame without a schema of the user.
pub(crate) fn of_frame(options: &ReadOptions) -> Outcome<Schema> {
    let mut columns: Vec<Column> = ATTRIBUTES
        .iter()
        .filter(|(_, name, _)| options.url.is_none() || !NOT_FROM_A_SERVER.contains(name))
        .map(|(_, name, data_type)| Column::new(name, data_type.clone()))
        .collect();
    if options.includes_headers {
        columns.push(Column::new(HEADERS, headers_type()));
    }
    if options.includes_events {
        columns
            .extend(EVENT_ATTRIBUTES.iter().map(|(_, name, data_type)| Column::new(name, data_type.clone())));
    }
    if let Some(fields) = &options.fields {
        let fields = defined_by("fields", fields)?;
        let taken = fields
            .iter()
            .map(|field| field.name.to_lowercase())
            .filter(|name| attribute(name, options).is_some());
        if let Some(name) = taken.min() {
            return Err(Failure::option(format!(
                "fields: {name} is an attribute of every message; give the column another name, such as {name}_field, and option \
                 field.{name}_field the path /{name}"
            )));
        }
        columns.extend(fields);
    }
    Ok(Schema { columns })
}

/// The columns that an option defines.
pub fn defined_by(option: &str, definitions: &str) -> Outcome<Vec<Column>> {
    let columns = defined(definitions).map_err(|wrong| {
        Failure::option(format!(
            "{option}: {} is not a name with a type, such as 'price double'; the types are {}, array<...> and map<string, ...> of these, and struct<...>",
            quoted(&wrong),
            *FIELD_TYPE_NAMES
        ))
    })?;
    for (number, column) in columns.iter().enumerate() {
        if named(&columns[..number], &column.name.to_lowercase()).next().is_some() {
            return Err(Failure::option(format!("{option}: the column {} is defined twice", column.name)));
        }
        if has_other_type(&column.data_type) {
            return Err(Failure::option(format!(
                "{option}: '{} {}' cannot be read from the data; the types are {}, array<...> and map<string, ...> of these, and struct<...>",
                column.name, column.data_type, *FIELD_TYPE_NAMES
            )));
        }
    }
    Ok(columns)
}

/// Whether a part of the type cannot be read from a field.
fn has_other_type(data_type: &Type) -> bool {
    match data_type {
        Type::Struct(columns) => columns.iter().any(|column| has_other_type(&column.data_type)),
        Type::Array(element, true) => field_type(element).is_none(),
        Type::Map(key, value, true) => **key != Type::String || field_type(value).is_none(),
        simple => field_type(simple).is_none(),
    }
}

/// The columns of the scan. `all` has those of the frame that a query leaves out, too.
pub(crate) fn specs(schema: &Schema, all: &Schema, options: &ReadOptions) -> Outcome<Vec<ColumnSpec>> {
    schema.columns.iter().map(|column| spec(column, all, options)).collect()
}

/// Refuses a path for a column that does not exist, and a path for several columns. `schema` has
/// all columns of the frame.
pub(crate) fn check_paths(schema: &Schema, options: &ReadOptions) -> Outcome<()> {
    for option in options.field_paths.keys() {
        let names: Vec<&str> = named(&schema.columns, option).map(|column| column.name.as_str()).collect();
        match names.as_slice() {
            [_] => (),
            [] => return Err(Failure::option(format!("field.{option}: there is no such column"))),
            names => {
                return Err(Failure::option(format!(
                    "field.{option}: it could be the path of each of the columns {}: Spark does not keep the case of options; \
                     rename all but one of them",
                    names.join(", ")
                )));
            }
        }
    }
    Ok(())
}

/// The columns that have this name in any case. `lower` is the name in lower case.
fn named<'a>(columns: &'a [Column], lower: &str) -> impl Iterator<Item = &'a Column> {
    columns.iter().filter(move |column| column.name.to_lowercase() == lower)
}

/// Where a column of a condition is read from, with its type; `None` without a column of one value.
pub(crate) fn source(
    schema: &Schema,
    path: &[String],
    options: &ReadOptions,
) -> Outcome<Option<(Source, Type)>> {
    let Some((first, members)) = path.split_first() else { return Ok(None) };
    let Some(root) = find(&schema.columns, first) else { return Ok(None) };
    let (mut at, mut steps) = (root, vec![]);
    for name in members {
        let Type::Struct(columns) = &at.data_type else { return Ok(None) };
        let Some(column) = find(columns, name) else { return Ok(None) };
        steps.push(column.name.as_str());
        at = column;
    }
    // Spark evaluates a condition on a whole array or map.
    if matches!(at.data_type, Type::Struct(_) | Type::Map(..) | Type::Array(..)) {
        return Ok(None);
    }
    if steps.is_empty() {
        return Ok(Some((spec(root, schema, options)?.source, at.data_type.clone())));
    }
    let path = [root_path(root, options)?.as_str()].into_iter().chain(steps).collect::<Vec<_>>().join("/");
    let Some(r#type) = field_type(&at.data_type) else { return Ok(None) };
    Ok(Some((Source::Field { path, r#type }, at.data_type.clone())))
}

fn attribute(name: &str, options: &ReadOptions) -> Option<(Attribute, Type)> {
    if name == HEADERS {
        return options.includes_headers.then(|| (Attribute::Headers, headers_type()));
    }
    let events = if options.includes_events { &EVENT_ATTRIBUTES[..] } else { &[] };
    let mut known = ATTRIBUTES.iter().chain(events);
    known
        .find(|(_, known, _)| *known == name)
        .map(|(attribute, _, data_type)| (*attribute, data_type.clone()))
}

fn headers_type() -> Type {
    Type::Map(Box::new(Type::String), Box::new(Type::Binary), true)
}

fn field_type(data_type: &Type) -> Option<FieldType> {
    FIELD_TYPES.iter().find(|(each, _)| each == data_type).map(|(_, found)| *found)
}

fn spec(column: &Column, all: &Schema, options: &ReadOptions) -> Outcome<ColumnSpec> {
    // Spark does not distinguish names by their case, unless a schema has several of them.
    let name = column.name.to_lowercase();
    let is_field = options.field_paths.contains_key(&name)
        || (column.name != name && all.columns.iter().any(|other| other.name == name));
    let source = match attribute(&name, options).filter(|_| !is_field) {
        None => field(column, &root_path(column, options)?, &column.name)?,
        Some(_) if options.url.is_some() && NOT_FROM_A_SERVER.contains(&name.as_str()) => {
            return Err(Failure::option(format!(
                "column {name}: a server does not say it; read its directory"
            )));
        }
        Some((Attribute::Data, _)) if column.data_type == Type::Binary => {
            Source::Attribute(Attribute::DataBinary)
        }
        Some((Attribute::Data, _)) if column.data_type == Type::Variant => {
            Source::Attribute(Attribute::DataVariant)
        }
        Some((_, expected)) if !is_same(&expected, &column.data_type) => {
            return Err(Failure::option(format!(
                "column {name}: it is {expected}, not {}; to read a field of the data with this name give option field.{name} its path",
                column.data_type
            )));
        }
        Some((attribute, _)) => Source::Attribute(attribute),
    };
    Ok(ColumnSpec { name: column.name.clone(), nullable: column.nullable, source })
}

/// Whether two types are equal, apart from whether values of a map may be NULL.
fn is_same(one: &Type, other: &Type) -> bool {
    match (one, other) {
        (Type::Map(key, value, _), Type::Map(other_key, other_value, _)) => {
            key == other_key && value == other_value
        }
        _ => one == other,
    }
}

/// The path of a column. A name that could be a path as well as the name of a member is an error.
fn root_path(column: &Column, options: &ReadOptions) -> Outcome<String> {
    let name = &column.name;
    match options.field_paths.get(&name.to_lowercase()) {
        Some(path) => Ok(path.clone()),
        None if has_path_mark(name) => Err(Failure::option(format!(
            "column {name}: it could be a path or the name of a member; give option field.{name} the path /{name}, or [/{name}] for the \
             member named {name}"
        ))),
        None => Ok(format!("/{name}")),
    }
}

/// Whether the name has a character with a meaning in a path.
fn has_path_mark(name: &str) -> bool {
    name.contains(['/', '['])
}

fn field(column: &Column, path: &str, whole: &str) -> Outcome<Source> {
    if let Type::Struct(members) = &column.data_type {
        let member = |member: &Column| {
            let whole = format!("{whole}.{}", member.name);
            if has_path_mark(&member.name) {
                return Err(Failure::option(format!(
                    "column {whole}: a member with / or [ in its name can only be read from the root of the data, by option \
                     field.<column> with a path such as [/a/b]"
                )));
            }
            let source = field(member, &format!("{path}/{}", member.name), &whole)?;
            Ok(ColumnSpec { name: member.name.clone(), nullable: member.nullable, source })
        };
        return Ok(Source::Struct(members.iter().map(member).collect::<Outcome<_>>()?));
    }
    if let Type::Array(element, contains_null) = &column.data_type
        && let Some(r#type) = field_type(element)
    {
        if !contains_null {
            return Err(Failure::option(format!(
                "column {whole}: its elements can be NULL, and the schema says that they cannot; leave out that they cannot"
            )));
        }
        return Ok(Source::Array { path: path.to_owned(), r#type });
    }
    if let Type::Map(key, value, contains_null) = &column.data_type
        && **key == Type::String
        && let Some(r#type) = field_type(value)
    {
        if !contains_null {
            return Err(Failure::option(format!(
                "column {whole}: its values can be NULL, and the schema says that they cannot; leave out that they cannot"
            )));
        }
        return Ok(Source::Map { path: path.to_owned(), r#type });
    }
    match field_type(&column.data_type) {
        Some(r#type) => Ok(Source::Field { path: path.to_owned(), r#type }),
        None if column.data_type == Type::Variant => Err(Failure::option(format!(
            "column {whole}: only data can be variant; read data variant, and use variant_get(data, '$.{whole}', 'variant')"
        ))),
        None => Err(Failure::option(format!(
            "column {whole}: {} cannot be read from the data; the types are {}, array and map (with keys that are strings) of these, and struct; for any other read data, and use \
             from_json(data, ...)",
            column.data_type, *FIELD_TYPE_NAMES
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn sources(names: &[&str], all: &[&str]) -> Vec<String> {
        let options = BTreeMap::from([("path".to_owned(), "/j".to_owned())]);
        let options = ReadOptions::new(&options).unwrap();
        let schema = |names: &[&str]| Schema {
            columns: names.iter().map(|name| Column::new(name, Type::String)).collect(),
        };
        let specs = specs(&schema(names), &schema(all), &options).unwrap();
        let shown = |spec: &ColumnSpec| match &spec.source {
            Source::Field { path, .. } => path.clone(),
            Source::Attribute(attribute) => format!("{attribute:?}"),
            other => panic!("{other:?}"),
        };
        specs.iter().map(shown).collect()
    }

    #[test]
    fn next_to_the_name_of_an_attribute_a_name_in_another_case_is_a_field() {
        let all = ["kind", "Kind", "KIND", "Topic", "Qty"];
        assert_eq!(sources(&all, &all), ["Kind", "/Kind", "/KIND", "Topic", "/Qty"]);
        assert_eq!(sources(&["Kind"], &all), ["/Kind"], "in a query without the attribute, too");
        assert_eq!(sources(&["Kind"], &["Kind"]), ["Kind"]);
    }
}
