//! Memory that the system can page out to a file in the journal directory, for the parts that are
//! configured to use it.

use std::io;

use quire_journal::{Journal, Memory};

/// The memory of one part of the broker. It has a file from the first use on.
#[derive(Default)]
pub struct PagedMemory {
    memory: Option<Memory>,
    /// Why the memory is the heap, until this is reported.
    unpaged: Option<io::Error>,
}

impl PagedMemory {
    /// Creates the file, if there is none. When the system refuses it, the memory is the heap.
    pub fn open(&mut self, journal: &Journal) -> &Memory {
        self.memory.get_or_insert_with(|| {
            journal.paged_memory().unwrap_or_else(|error| {
                self.unpaged = Some(error);
                Memory::heap()
            })
        })
    }

    /// The memory. Before the first use it is the heap.
    pub fn get(&self) -> Memory {
        self.memory.clone().unwrap_or_else(Memory::heap)
    }

    /// Why some memory is on the heap, if this happened since the last call.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.unpaged.take().or_else(|| self.memory.as_ref().and_then(Memory::take_failure))
    }
}
