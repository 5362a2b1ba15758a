//! The rules about options of subscriptions, for callers that name options as arguments or flags.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quire_client::SubscriptionSpec;
use quire_command::subscribe::{OptionError, OptionName, OptionSet, Spelling, check};

use crate::arguments::SpecArgument;
use crate::errors;

/// Raises `ConfigError` for arguments of a subscription that do not go together.
#[pyfunction]
pub fn check_subscription(py: Python<'_>, spec: SpecArgument) -> PyResult<()> {
    SubscriptionSpec::from(spec).check().map_err(|error| raised(py, &error, Spelling::Argument))
}

/// Raises `ConfigError` for options of a subscription that do not go together. With `as_flags` they
/// are options of the command line. A `bookmark` is an option, too, and so is the end of its range.
#[pyfunction]
#[pyo3(signature = (names, as_flags, bookmark=None))]
pub fn check_options(
    py: Python<'_>,
    names: Vec<String>,
    as_flags: bool,
    bookmark: Option<&str>,
) -> PyResult<()> {
    let option = |name: &String| {
        OptionName::from_name(name).ok_or_else(|| PyValueError::new_err(format!("no option is {name:?}")))
    };
    let options: OptionSet = names.iter().map(option).collect::<PyResult<Vec<_>>>()?.into_iter().collect();
    let options = bookmark.map_or(options, |bookmark| options.with_bookmark(bookmark));
    let spelling = if as_flags { Spelling::Flag } else { Spelling::Argument };
    check(options).map_err(|error| raised(py, &error, spelling))
}

fn raised(py: Python<'_>, error: &OptionError, spelling: Spelling) -> PyErr {
    errors::bad_option(py, &spelling.name(error.option), &error.reason(spelling))
}
