//! Prints events of Nexmark, the benchmark of stream processors: persons, auctions and bids, one
//! JSON object for each line. The events are the same each time.
//!
//!     nexmark EVENTS [EVENTS_PER_HOUR]
//!
//! `EVENTS_PER_HOUR` is the rate of their times. It is not the rate at which they are printed.

use std::env;
use std::error::Error;
use std::io::{self, BufWriter, Write};

use nexmark::EventGenerator;
use nexmark::config::NexmarkConfig;
use nexmark::event::Event;

/// 2015-07-15 00:00 UTC, in milliseconds since 1970.
const BASE_TIME: u64 = 1_436_918_400_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let events: usize = arguments.next().ok_or("nexmark EVENTS [EVENTS_PER_HOUR]")?.parse()?;
    let rate: usize = arguments.next().map_or(Ok(36_000_000), |text| text.parse())?;
    let config = NexmarkConfig {
        base_time: BASE_TIME,
        first_rate: rate,
        next_rate: rate,
        us_per_unit: 3_600_000_000,
        ..NexmarkConfig::default()
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for event in EventGenerator::new(config).take(events) {
        let (kind, value) = match &event {
            Event::Person(person) => ("person", serde_json::to_value(person)?),
            Event::Auction(auction) => ("auction", serde_json::to_value(auction)?),
            Event::Bid(bid) => ("bid", serde_json::to_value(bid)?),
        };
        writeln!(out, "{}", serde_json::json!({ kind: value }))?;
    }
    Ok(out.flush()?)
}
