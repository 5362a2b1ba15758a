//! Queues that a client creates, alters and drops: [`Command::DefineQueue`] (protocol.md section
//! 3).

use super::frame::{Fields, WireError, put_field, put_frame};
use super::from_client::DEFINE_QUEUE;
use quire_command::{Command, DefineQueue};

const CREATE: u8 = 1;
const DROP: u8 = 2;
const ALTER: u8 = 3;

pub(super) fn encode_define_queue(out: &mut Vec<u8>, command: u32, action: &DefineQueue<'_>) {
    put_frame(out, DEFINE_QUEUE, |out| {
        put_field(out, 1, &command.to_le_bytes());
        match action {
            DefineQueue::Create { settings } => {
                put_field(out, 3, &[CREATE]);
                put_field(out, 5, settings.as_bytes());
            }
            DefineQueue::Alter { queue, changes } => {
                put_field(out, 3, &[ALTER]);
                put_field(out, 4, queue.as_bytes());
                put_field(out, 5, changes.as_bytes());
            }
            DefineQueue::Drop { queue } => {
                put_field(out, 3, &[DROP]);
                put_field(out, 4, queue.as_bytes());
            }
        }
    });
}

pub(super) fn decode_define_queue(body: &[u8]) -> Result<Command<'_>, WireError> {
    let mut fields = Fields::new("define_queue", body);
    let (mut command, mut number, mut queue, mut settings) = (0, None, None, None);
    while let Some((tag, value)) = fields.next()? {
        match tag {
            1 => command = fields.u32(value, "command")?,
            3 => number = Some(fields.array::<1>(value, "action")?[0]),
            4 => queue = Some(fields.text(value, "queue")?),
            5 => settings = Some(fields.text(value, "settings")?),
            tag => fields.unknown(tag)?,
        }
    }
    if command == 0 {
        return Err(fields.bad("command"));
    }
    let action = match (number, queue, settings) {
        (Some(CREATE), None, Some(settings)) => DefineQueue::Create { settings },
        (Some(ALTER), Some(queue), Some(changes)) => DefineQueue::Alter { queue, changes },
        (Some(DROP), Some(queue), None) => DefineQueue::Drop { queue },
        _ => return Err(fields.bad("action, queue and settings")),
    };
    Ok(Command::DefineQueue { command, action })
}
