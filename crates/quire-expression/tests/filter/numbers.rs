//! Comparing and computing with numbers agrees with the integers and floats of Rust.

use proptest::prelude::*;

use super::{json, parsed};

proptest! {
    /// Against the obvious model: numbers compared as numbers.
    #[test]
    fn comparisons_agree_with_arithmetic(field in -50i64..50, constant in -50i64..50, low in -50i64..50, high in -50i64..50) {
        let data = format!("{{\"n\":{field}}}");
        let results = [
            (format!("/n = {constant}"), field == constant), (format!("/n != {constant}"), field != constant),
            (format!("/n < {constant}"), field < constant), (format!("/n <= {constant}"), field <= constant),
            (format!("/n > {constant}"), field > constant), (format!("/n >= {constant}"), field >= constant),
            (format!("/n BETWEEN {low} AND {high}"), low <= field && field <= high),
            (format!("/n NOT BETWEEN {low} AND {high}"), !(low <= field && field <= high)),
            (format!("/n IN ({constant}, {low}, {high})"), [constant, low, high].contains(&field)),
            (format!("NOT (/n < {constant}) AND /n < {high}"), field >= constant && field < high),
        ];
        for (filter, want) in results {
            prop_assert_eq!(parsed(&filter).matches(&json(&data)), want, "{}", filter);
        }
    }
}
