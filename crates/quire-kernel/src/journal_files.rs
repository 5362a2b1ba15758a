//! Work on full journal files outside of the loop: files are archived, compressed or removed.

use std::path::PathBuf;

use quire_journal::{Action, JournalError, Position, SegmentInfo, Which};

use super::failure::code_of;
use quire_command::Code;
use quire_types::Files;

/// The actions on full journal files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// What is done.
    pub action: Action,
    /// The selected files. The action is taken on the oldest one.
    pub files: Files,
    /// No file is changed. The reply names every selected file.
    pub dry_run: bool,
    /// The command is refused unless the server archives to this directory; `None`: any.
    pub archive_directory: Option<PathBuf>,
}

/// Work on a journal file. It blocks on the disk. Run it outside of the loop, then hand in the
/// result as [`Input::MaintenanceDone`](crate::Input::MaintenanceDone). The broker requests no
/// other job before that.
pub struct MaintenanceJob {
    pub maintenance: quire_journal::FileMaintenance,
    pub action: Action,
    pub which: Which,
    pub needed: Position,
    pub dry_run: bool,
    pub archive_directory: Option<PathBuf>,
}

/// The result of a [`MaintenanceJob`]: the files that were taken or would be taken, or the reason
/// why there are none.
pub struct MaintenanceDone(pub Result<Vec<SegmentInfo>, Failed>);

pub struct Failed {
    pub code: Code,
    pub reason: String,
}

impl MaintenanceJob {
    /// What is done.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Whether this is a dry run, which changes no file.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// The files that are selected now. The job takes the first one, unless it is a dry run.
    pub fn plan(&self) -> Vec<SegmentInfo> {
        self.maintenance.plan(self.action, self.which, Some(self.needed))
    }

    /// Does the work.
    pub fn run(&self) -> MaintenanceDone {
        MaintenanceDone(self.try_run().map_err(|error| Failed::of(&error)))
    }

    fn try_run(&self) -> Result<Vec<SegmentInfo>, JournalError> {
        if let Some(directory) = &self.archive_directory {
            self.maintenance.check_archives_to(directory)?;
        }
        if self.dry_run {
            return Ok(self.plan());
        }
        let taken = self.maintenance.take_next(self.action, self.which, Some(self.needed))?;
        Ok(taken.into_iter().collect())
    }
}

impl MaintenanceDone {
    /// The work could not be started, or it panicked.
    pub fn failed(reason: &str) -> Self {
        MaintenanceDone(Err(Failed { code: Code::Internal, reason: reason.to_owned() }))
    }

    /// The files that were taken or would be taken; `None` when the job failed.
    pub fn files(&self) -> Option<&[SegmentInfo]> {
        self.0.as_deref().ok()
    }
}

impl Failed {
    fn of(error: &JournalError) -> Self {
        Failed { code: code_of(error), reason: error.to_string() }
    }
}
