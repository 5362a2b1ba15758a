//! The clocks of the process. Only `abi` and the extension module read them: all other code gets
//! the time as an argument.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use quire_types::Timestamp;
use quire_types::time::{Instant, Now};

/// Both clocks.
pub fn now() -> Now {
    static BEGIN: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = BEGIN.get_or_init(std::time::Instant::now).elapsed();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        instant: Instant::from_ns(elapsed.as_nanos() as u64),
        wall: Timestamp::from_ns(wall.as_nanos() as u64),
    }
}
