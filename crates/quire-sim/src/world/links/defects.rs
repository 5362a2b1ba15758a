//! Deliberate mistakes of links: their frames are dropped, exchanged, answered or changed
//! (docs/protocol.md, *Links between instances*).

use std::collections::BTreeMap;

use quire_journal::RecordKind;

use crate::network::Site;
use crate::random::Random;
use crate::world::Canary;

const WELCOME: u8 = 2;
const RECORDS: u8 = 4;
const ACKNOWLEDGED: u8 = 5;
const QUESTION: u8 = 15;

/// Bytes of a frame before its body: size and kind.
const HEAD_SIZE: usize = 5;

/// Bytes of a mark.
const MARK_SIZE: usize = 32;

/// More than a record can have in a world.
const HOPS_MAX: u8 = 6;

pub(in crate::world) struct Defects {
    canary: Option<Canary>,
    random: Random,
    /// By connection and sender: a frame of records that waits for the one after it.
    held: BTreeMap<(u64, Site), Vec<u8>>,
}

/// The result of a change to the frames that a link sends.
#[derive(Default)]
pub(in crate::world) struct Passed {
    pub sent: Vec<u8>,
    /// The sender gets these frames as if its peer had sent them.
    pub answered: Vec<u8>,
}

impl Defects {
    pub fn new(canary: Option<Canary>, seed: u64) -> Self {
        Defects { canary, random: Random::new(seed), held: BTreeMap::new() }
    }

    /// Whether frames of links are to be changed.
    pub fn concern_links(&self) -> bool {
        matches!(
            self.canary,
            Some(
                Canary::EarlyLinkAcknowledgement
                    | Canary::DroppedRecords
                    | Canary::DroppedDelete
                    | Canary::SwappedRecords
                    | Canary::BelievedMark
            )
        )
    }

    pub fn is_meant(&mut self, canary: Canary, percent: u64) -> bool {
        self.canary == Some(canary) && self.random.percent(percent)
    }

    /// Frames that an instance sends at once, all of them whole.
    pub fn pass_frames(&mut self, connection: u64, sender: Site, mut bytes: &[u8]) -> Passed {
        let mut passed = Passed::default();
        while let Some((size, _)) = bytes.split_first_chunk::<4>() {
            let (frame, rest) = bytes.split_at(bytes.len().min(4 + u32::from_le_bytes(*size) as usize));
            bytes = rest;
            match frame.get(4).copied() {
                Some(RECORDS) if self.is_meant(Canary::DroppedRecords, 5) => (),
                Some(RECORDS) if begins_with_delete(frame) && self.is_meant(Canary::DroppedDelete, 50) => {}
                Some(RECORDS) if self.is_meant(Canary::EarlyLinkAcknowledgement, 100) => {
                    passed.sent.extend_from_slice(frame);
                    passed.answered.extend_from_slice(&acknowledgement(frame));
                }
                Some(RECORDS) if self.canary == Some(Canary::SwappedRecords) => {
                    let earlier = self.held.remove(&(connection, sender));
                    if earlier.is_none() && self.random.percent(20) {
                        self.held.insert((connection, sender), frame.to_vec());
                    } else {
                        passed.sent.extend_from_slice(frame);
                        passed.sent.extend_from_slice(&earlier.unwrap_or_default());
                    }
                }
                // A comparison of the logs would fetch what the link passes over.
                Some(QUESTION) if self.canary == Some(Canary::BelievedMark) => (),
                Some(WELCOME) if self.canary == Some(Canary::BelievedMark) => {
                    let mut changed = frame.to_vec();
                    changed[place_of_has_mark(frame)] = 1;
                    passed.sent.extend_from_slice(&changed);
                }
                _ => passed.sent.extend_from_slice(frame),
            }
        }
        passed
    }
}

/// The place of `has_mark` in a `welcome`.
fn place_of_has_mark(frame: &[u8]) -> usize {
    let after_text = |at: usize| at + 2 + usize::from(u16::from_le_bytes([frame[at], frame[at + 1]]));
    // After the version, the name and the group, and the start of the process.
    after_text(after_text(HEAD_SIZE + 2)) + 8
}

/// Whether the first record of a frame is a delete.
fn begins_with_delete(frame: &[u8]) -> bool {
    // After the position and the mark of the frame, and the position of the record.
    frame.get(HEAD_SIZE + 8 + MARK_SIZE + 8) == Some(&(RecordKind::Delete as u8))
}

/// The acknowledgements of a frame of records, for all hops and without a mark.
fn acknowledgement(frame: &[u8]) -> Vec<u8> {
    let body = frame.get(HEAD_SIZE..HEAD_SIZE + 8).unwrap_or(&[0; 8]);
    let mut answer = Vec::new();
    for hops in 0..HOPS_MAX {
        // The kind, the position, the hops and the mark.
        answer.extend_from_slice(&(1 + 8 + 1 + MARK_SIZE as u32).to_le_bytes());
        answer.push(ACKNOWLEDGED);
        answer.extend_from_slice(body);
        answer.push(hops);
        answer.extend_from_slice(&[0; MARK_SIZE]);
    }
    answer
}
