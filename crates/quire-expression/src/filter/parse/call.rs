//! Calls of functions.

use super::Parser;
use crate::filter::aggregate::AggregateKind;
use crate::filter::function::{self, FUNCTIONS};
use crate::filter::lexer::Token;
use crate::filter::node::{Literal, Node};
use crate::filter::{ClientFacts, FilterError, FilterOptions, InstanceFacts};

impl Parser<'_> {
    pub(super) fn call(&mut self, name: &str, start: usize) -> Result<Node, FilterError> {
        if name == "REGEXP_REPLACE" {
            return self.regexp_replace();
        }
        if let Some(node) = self.aggregate(name, start)? {
            return Ok(node);
        }
        let known = function::find(name);
        let fact = fact(name, self.options);
        if known.is_none() && fact.is_none() && name != "IF" {
            return Err(self.unknown(name, start));
        }
        let arguments = if self.is_empty_list()? { Box::default() } else { self.list()? };
        let count = arguments.len();
        let takes = match known {
            Some(function) => function.arguments.clone(),
            None if name == "IF" => 3..=3,
            None => 0..=0,
        };
        if !takes.contains(&count) {
            return Err(FilterError::at(self.lexer.text, start, described(name, &takes), plural(count)));
        }
        match (known, fact) {
            // The size tells about hidden fields.
            (Some(_), _) if name == "MESSAGE_SIZE" && self.options.hidden.is_some() => {
                Ok(Node::Literal(Literal::Null))
            }
            (Some(function), _) => Ok(Node::Call(function, arguments)),
            (None, Some(literal)) => {
                self.canonical.push_str(&format!("{literal:?} "));
                Ok(Node::Literal(literal))
            }
            (None, None) => {
                let nodes: Box<[Node; 3]> = arguments.try_into().expect("the count was checked");
                Ok(Node::If(nodes))
            }
        }
    }

    fn regexp_replace(&mut self) -> Result<Node, FilterError> {
        self.take_symbol("(")?;
        let text = self.expression()?;
        self.take_symbol(",")?;
        let pattern = self.pattern()?;
        self.take_symbol(",")?;
        let replacement = self.expression()?;
        self.take_symbol(")")?;
        Ok(Node::ReplacePattern(Box::new([text, replacement]), Box::new(pattern)))
    }

    fn unknown(&self, name: &str, start: usize) -> FilterError {
        let expected = if AggregateKind::of(name).is_some() {
            "a function that looks at one message; aggregates are for `projection`".into()
        } else {
            let names = FUNCTIONS.iter().map(|function| function.name).chain(OTHER_FUNCTIONS.iter().copied());
            match function::similar(name, names) {
                Some(similar) => format!("a function, perhaps {similar}"),
                None => "a function of filters (docs/filters.md section 7 lists them)".into(),
            }
        };
        FilterError::at(self.lexer.text, start, expected, Token::Word(name).describe())
    }
}

/// Functions of the parser, in addition to the table of functions.
const OTHER_FUNCTIONS: &[&str] = &[
    "IF",
    "REGEXP_REPLACE",
    "CLIENT_NAME",
    "CONNECTION_NAME",
    "USER",
    "REMOTE_ADDRESS",
    "INSTANCE_NAME",
    "INSTANCE_GROUP",
    "AMPS_VERSION",
];

/// The value of a function about the client or the instance; `None` for other names. They are
/// constants of a filter, because it belongs to one subscriber.
fn fact(name: &str, options: &FilterOptions) -> Option<Literal> {
    let ClientFacts { client_name, connection_name, user, remote_address } = &options.client;
    let InstanceFacts { name: instance_name, group, version } = &options.instance;
    let text = match name {
        "CLIENT_NAME" => client_name,
        "CONNECTION_NAME" => connection_name,
        "USER" => user,
        "REMOTE_ADDRESS" => remote_address,
        "INSTANCE_NAME" => instance_name,
        "INSTANCE_GROUP" => group,
        "AMPS_VERSION" => version,
        _ => return None,
    };
    Some(Literal::text(text.as_deref().unwrap_or_default().as_bytes()))
}

/// The number of arguments of a function, as text for an error.
fn described(name: &str, takes: &std::ops::RangeInclusive<usize>) -> String {
    match (*takes.start(), *takes.end()) {
        (start, end) if start == end => format!("{} for {name}", plural(start)),
        (start, usize::MAX) => format!("at least {} for {name}", plural(start)),
        (start, end) => format!("{start} to {} for {name}", plural(end)),
    }
}

fn plural(count: usize) -> String {
    match count {
        0 => "no argument".into(),
        1 => "1 argument".into(),
        count => format!("{count} arguments"),
    }
}
