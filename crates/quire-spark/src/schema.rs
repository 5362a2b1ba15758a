//! Columns as Spark describes them.

/// Columns with names and types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {}

impl Schema {
    /// The JSON of Spark.
    pub fn to_json(&self) -> String {
        String::new()
    }
}
