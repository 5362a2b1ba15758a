//! Answers to questions about the messages of the log, of commands and of destinations. The asker
//! compares the answers of two servers (`quire_link::summary`).

use quire_command::Code;
use quire_link::summary::{Answer, MemoryAnswer, Question, answer_from_log};

use super::Links;
use crate::admin::{AdminReply, Requester};
use crate::context::Context;

/// Publishers that are visited in one turn: about 50 µs.
pub(super) const VISITED_MAX: usize = 4_096;

/// The asker of a question.
#[derive(Debug)]
pub(super) enum Asker {
    Command(Requester),
    /// The destination of a link, by the number of the link, and the number of the question.
    Destination(usize, u64),
}

/// A question whose answer is being made.
#[derive(Debug)]
pub(super) struct Asked {
    by: Asker,
    answer: MemoryAnswer,
}

impl Links {
    /// Answers a question of a command.
    pub(crate) fn answer(&mut self, cx: &mut Context, by: Requester, question: &[u8]) {
        self.ask(cx, Asker::Command(by), question);
    }

    /// Answers a question, in a later turn or when a job has read the log.
    pub(super) fn ask(&mut self, cx: &mut Context, by: Asker, question: &[u8]) {
        let Some(question) = Question::decode(question) else {
            let reason = "question: the bytes are not a question about messages";
            return self.answered(cx, by, Err((Code::BadOption, reason.to_owned())));
        };
        if let Some(answer) = MemoryAnswer::begin(&question) {
            self.asked.push_back(Asked { by, answer });
            cx.clock.wants_turn = true;
            return;
        }
        let reader = cx.log.reader.clone();
        let read = move |_| answer_from_log(&question, &reader).map(|answer| answer.as_ref().map(bytes_of));
        cx.begin_job(read, move |links: &mut Links, cx, _, read| {
            let answer = match read {
                Some(Ok(Some(answer))) => Ok(answer),
                Some(Err(error)) => Err((crate::failure::code_of(&error), error.to_string())),
                // It was a question about the log, and the job did not panic.
                Some(Ok(None)) | None => Err((Code::Internal, "the log was not read".to_owned())),
            };
            links.answered(cx, by, answer);
        });
    }

    /// Continues with the answers from memory.
    pub(super) fn advance_asked(&mut self, cx: &mut Context) {
        let Some(Asked { by, mut answer }) = self.asked.pop_front() else { return };
        if answer.advance(&cx.log.journal, VISITED_MAX) {
            self.answered(cx, by, Ok(bytes_of(&answer.into_answer())));
        } else {
            self.asked.push_back(Asked { by, answer });
        }
        cx.clock.wants_turn |= !self.asked.is_empty();
    }

    fn answered(&mut self, cx: &mut Context, by: Asker, answer: Result<Vec<u8>, (Code, String)>) {
        match by {
            Asker::Command(by) => cx.reply(
                &by,
                match answer {
                    Ok(answer) => AdminReply::Messages(digits_of(&answer)),
                    Err((code, reason)) => AdminReply::refused(code, reason),
                },
            ),
            Asker::Destination(link, number) => {
                let answer = answer.as_deref().map_err(|(_, reason)| reason.as_str());
                self.outgoing[link].answer(cx, number, answer);
            }
        }
    }
}

fn bytes_of(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    bytes
}

/// The bytes of an answer in hexadecimal digits.
fn digits_of(bytes: &[u8]) -> String {
    let digit = |bits: u8| char::from(b"0123456789abcdef"[usize::from(bits)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}
