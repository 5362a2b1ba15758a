//! A list of fields that are read from messages together.
//!
//! Keys and orders use the first element of an array, and indexes use none. The other elements are
//! not kept.

use crate::error::TableConfigError;
use quire_expression::filter::{Expression, FilterOptions};
use quire_expression::message_type::{Arena, FieldId, FieldPlan, Malformed, MessageType, Step, Value};

/// Fields in an order, and how to read them in one pass.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    names: Box<[Box<str>]>,
    paths: Box<[Vec<Step>]>,
    plan: FieldPlan,
    ids: Box<[FieldId]>,
}

impl Fields {
    /// The fields with these names. `list` is the name of the list in a configuration.
    pub fn new(list: &'static str, names: &[String]) -> Result<Self, TableConfigError> {
        let path = |name: &String| {
            path_of(name).ok_or_else(|| TableConfigError::NotAField { list, field: name.clone() })
        };
        let paths = names.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        Ok(Fields::of_paths(names.iter().map(|name| name.as_str().into()).collect(), paths))
    }

    /// The fields with these names, whose paths are known.
    pub fn of_paths(names: Box<[Box<str>]>, paths: Vec<Vec<Step>>) -> Self {
        let mut plan = FieldPlan::of_first_elements();
        let ids = paths.iter().map(|path| plan.add(path)).collect();
        Fields { names, paths: paths.into(), plan, ids }
    }

    /// These fields, and those of another list after them.
    pub fn and(&self, others: &Fields) -> Self {
        let names = self.names().chain(others.names()).map(Box::from).collect();
        Fields::of_paths(names, [self.paths(), others.paths()].concat())
    }

    /// The names as written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(AsRef::as_ref)
    }

    /// The paths, in the order of the names.
    pub fn paths(&self) -> &[Vec<Step>] {
        &self.paths
    }

    /// The values of the fields in a message, in their order.
    pub fn read<'a>(
        &self,
        message_type: MessageType,
        data: &'a [u8],
        arena: &'a Arena,
    ) -> Result<impl Iterator<Item = Value<'a>>, Malformed> {
        let values = message_type.read(data, &self.plan, arena)?;
        Ok(self.ids.iter().map(|id| values[id.index()]))
    }

    /// As [`Fields::read`], and the message is read to its end.
    pub fn read_whole<'a>(
        &self,
        message_type: MessageType,
        data: &'a [u8],
        arena: &'a Arena,
    ) -> Result<impl Iterator<Item = Value<'a>>, Malformed> {
        let values = message_type.read_whole(data, &self.plan, arena)?;
        Ok(self.ids.iter().map(|id| values[id.index()]))
    }
}

/// The path of a field, when the text is only the name of a field.
pub(crate) fn path_of(name: &str) -> Option<Vec<Step>> {
    Expression::parse(name, &FilterOptions::default()).ok()?.path()
}
