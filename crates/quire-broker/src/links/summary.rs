//! Answers to questions about the messages of the log. The asker compares the answers of two
//! servers (`quire_link::summary`).

use quire_command::Code;
use quire_link::summary::{Answer, Question, answer_from_log, answer_from_memory};

use super::Links;
use crate::admin::{AdminReply, Requester};
use crate::context::Context;
use crate::failure::code_of;

impl Links {
    /// Answers a question, now or when a job has read the log.
    pub(crate) fn answer(&mut self, cx: &mut Context, by: Requester, question: &[u8]) {
        let Some(question) = Question::decode(question) else {
            let reason = "question: the bytes are not a question about messages";
            return cx.reply(&by, AdminReply::refused(Code::BadOption, reason));
        };
        if let Some(answer) = answer_from_memory(&question, &cx.log.journal) {
            return cx.reply(&by, AdminReply::Messages(digits_of(&answer)));
        }
        let reader = cx.log.reader.clone();
        let read = move |_| answer_from_log(&question, &reader).map(|answer| answer.as_ref().map(digits_of));
        cx.begin_job(read, move |_: &mut Links, cx, _, read| {
            let reply = match read {
                Some(Ok(Some(answer))) => AdminReply::Messages(answer),
                Some(Err(error)) => AdminReply::refused(code_of(&error), error.to_string()),
                // It was a question about the log, and the job did not panic.
                Some(Ok(None)) | None => AdminReply::refused(Code::Internal, "the log was not read"),
            };
            cx.reply(&by, reply);
        });
    }
}

/// The bytes of the answer in hexadecimal digits.
fn digits_of(answer: &Answer) -> String {
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    let digit = |bits: u8| char::from(b"0123456789abcdef"[usize::from(bits)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}
