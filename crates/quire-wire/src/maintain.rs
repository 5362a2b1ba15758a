//! The command for journal maintenance: [`Maintain`] (protocol.md section 3).

use super::frame::{Encode, Fields, FromBody, WireError, put_field, put_frame};
use super::from_client::MAINTAIN;
use quire_command::Maintain;
use quire_types::{Action, Files};

impl Encode for Maintain<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, MAINTAIN, |out| {
            put_field(out, 1, &self.command.to_le_bytes());
            put_field(out, 3, &[action_number(self.action)]);
            match self.files {
                Files::OlderThan(age_ns) => put_field(out, 4, &age_ns.to_le_bytes()),
                Files::Beyond(size_max) => put_field(out, 5, &size_max.to_le_bytes()),
            }
            if self.dry_run {
                put_field(out, 6, &[1]);
            }
            if let Some(directory) = self.archive_directory {
                put_field(out, 7, directory.as_bytes());
            }
        });
    }
}

impl<'a> FromBody<'a> for Maintain<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("maintain", body);
        let (mut command, mut action, mut age, mut size_max) = (0, None, None, None);
        let (mut dry_run, mut archive_directory) = (false, None);
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
                7 => archive_directory = Some(fields.text(value, "archive_directory")?),
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
        Ok(Maintain { command, action, files, dry_run, archive_directory })
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
