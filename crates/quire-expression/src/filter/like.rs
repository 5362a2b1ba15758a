//! Regular expressions over bytes.
//!
//! The time of a pattern is linear in the text. Patterns that only a backtracking engine can run
//! (back-references, look-around) are refused, unless the configuration allows them. Their steps
//! are limited, and a text that needs more steps does not match.

use regex::bytes::{Regex, RegexBuilder};

/// The most bytes of a compiled pattern: about a thousand times the size of usual patterns. A
/// filter may hold hundreds of them.
const PATTERN_SIZE_MAX: usize = 256 * 1024;

/// The cache of one pattern's lazy automaton, in bytes. Beyond it the engine falls back to a slower
/// search, still linear.
const PATTERN_CACHE_SIZE_MAX: usize = 256 * 1024;

/// The steps of a backtracking pattern on one text: some milliseconds.
const BACKTRACK_STEP_COUNT_MAX: usize = 100_000;

/// A compiled pattern.
#[derive(Debug)]
pub(super) enum Pattern {
    Linear(Regex),
    Backtracking(Box<fancy_regex::Regex>),
}

impl Pattern {
    /// Compiles `text`. The error names the expected form.
    pub fn new(text: &str, allow_backtracking: bool) -> Result<Pattern, String> {
        let linear = RegexBuilder::new(text)
            .unicode(false)
            .size_limit(PATTERN_SIZE_MAX)
            .dfa_size_limit(PATTERN_CACHE_SIZE_MAX)
            .build();
        match linear {
            Ok(regex) => Ok(Pattern::Linear(regex)),
            Err(regex::Error::CompiledTooBig(limit)) => {
                Err(format!("a regular expression that compiles to at most {limit} bytes"))
            }
            Err(error) => Pattern::backtracking(text, allow_backtracking, &error),
        }
    }

    fn backtracking(text: &str, is_allowed: bool, error: &regex::Error) -> Result<Pattern, String> {
        let compiled = fancy_regex::RegexBuilder::new(text)
            .bytes_mode(fancy_regex::BytesMode::Ascii)
            .unicode_mode(false)
            .backtrack_limit(BACKTRACK_STEP_COUNT_MAX)
            .delegate_size_limit(PATTERN_SIZE_MAX)
            .delegate_dfa_size_limit(PATTERN_CACHE_SIZE_MAX)
            .build();
        match compiled {
            Ok(regex) if is_allowed => Ok(Pattern::Backtracking(Box::new(regex))),
            Ok(_) => Err("a regular expression without back-references and look-around: backtracking patterns are not allowed here".into()),
            Err(_) => Err(format!("a regular expression ({})", reason(error))),
        }
    }

    /// Whether the pattern is found anywhere in `text`. When the engine gives up, the pattern
    /// counts as not found.
    pub fn is_match(&self, text: &[u8]) -> bool {
        match self {
            Pattern::Linear(regex) => regex.is_match(text),
            Pattern::Backtracking(regex) => regex.is_match(text).unwrap_or(false),
        }
    }

    /// Calls `visit` with the text before each match and with the groups of the match. Returns the
    /// rest after the last match, or `None` when the engine gave up, or `visit` returned false.
    pub fn split_matches<'t>(
        &self,
        text: &'t [u8],
        mut visit: impl FnMut(&'t [u8], &dyn Fn(usize) -> &'t [u8]) -> bool,
    ) -> Option<&'t [u8]> {
        let mut end = 0;
        match self {
            Pattern::Linear(regex) => {
                for captures in regex.captures_iter(text) {
                    let whole = captures.get(0)?;
                    let goes_on = visit(&text[end..whole.start()], &|group| {
                        captures.get(group).map_or(b"", |found| found.as_bytes())
                    });
                    if !goes_on {
                        return None;
                    }
                    end = whole.end();
                }
            }
            Pattern::Backtracking(regex) => {
                for captures in regex.captures_iter(text) {
                    let captures = captures.ok()?;
                    let whole = captures.get(0)?;
                    let goes_on = visit(&text[end..whole.start()], &|group| {
                        captures.get(group).map_or(b"", |found| &text[found.start()..found.end()])
                    });
                    if !goes_on {
                        return None;
                    }
                    end = whole.end();
                }
            }
        }
        Some(&text[end..])
    }
}

/// The last line of the error of the engine, without the drawing above it.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
