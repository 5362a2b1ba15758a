//! What a client asks to be done with full journal files: [`Upkeep`] (protocol.md section 3).

use quire_journal::Action;

use super::frame::{Fields, WireError, put_field, put_frame};
use super::from_client::UPKEEP;

/// Takes care of one full journal file, or says which are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upkeep {
    /// Number that the answer echoes, not 0.
    pub command: u32,
    /// What is to be done.
    pub action: Action,
    /// With which files.
    pub files: Files,
    /// Nothing is done, every file that is meant is told.
    pub dry_run: bool,
}

/// Which full files an [`Upkeep`] means: always the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Those not written to for longer, in nanoseconds; 0 = every one.
    OlderThan(u64),
    /// As many as it takes for the rest to have so many bytes at most.
    Beyond(u64),
}

impl Upkeep {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, UPKEEP, |out| {
            put_field(out, 1, &self.command.to_le_bytes());
            put_field(out, 3, &[action_number(self.action)]);
            match self.files {
                Files::OlderThan(age_ns) => put_field(out, 4, &age_ns.to_le_bytes()),
                Files::Beyond(size_max) => put_field(out, 5, &size_max.to_le_bytes()),
            }
            if self.dry_run {
                put_field(out, 6, &[1]);
            }
        });
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("upkeep", body);
        let (mut command, mut action, mut age, mut size_max, mut dry_run) = (0, None, None, None, false);
        while let Some((tag, value)) = fields.next()? {
            match tag {
                1 => command = fields.u32(value, "command")?,
                3 => action = Some(decode_action(&fields, value)?),
                4 => age = Some(Files::OlderThan(fields.u64(value, "age")?)),
                5 => size_max = Some(Files::Beyond(fields.u64(value, "size_max")?)),
                6 => {
                    dry_run = match fields.array(value, "dry_run")? {
                        [0] => false,
                        [1] => true,
                        _ => return Err(fields.bad("dry_run")),
                    }
                }
                tag => fields.unknown(tag)?,
            }
        }
        if command == 0 {
            return Err(fields.bad("command"));
        }
        let files = match (age, size_max) {
            (Some(files), None) | (None, Some(files)) => files,
            _ => return Err(fields.bad("age and size_max, one of them is needed")),
        };
        let action = action.ok_or_else(|| fields.bad("action"))?;
        Ok(Upkeep { command, action, files, dry_run })
    }
}

fn action_number(action: Action) -> u8 {
    match action {
        Action::Archive => 0,
        Action::Compress => 1,
        Action::Remove => 2,
    }
}

fn decode_action(fields: &Fields<'_>, value: &[u8]) -> Result<Action, WireError> {
    match fields.array(value, "action")? {
        [0] => Ok(Action::Archive),
        [1] => Ok(Action::Compress),
        [2] => Ok(Action::Remove),
        _ => Err(fields.bad("action")),
    }
}
