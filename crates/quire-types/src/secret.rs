//! Texts that no log and no error may contain.

use std::fmt;

/// A secret text, such as a password. Its `Debug` output does not contain it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret<T>(pub T);

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_in_its_debug_output() {
        assert_eq!(format!("{:?}", Some(Secret("correct horse"))), "Some(Secret(***))");
    }
}
