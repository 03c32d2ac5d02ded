//! The lock of an embedded world: one apply at a time changes it.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::CliError;
use super::{Console, Exit};

/// Between two looks at a lock that somebody else holds.
const POLL: Duration = Duration::from_millis(100);

/// Holds the lock of a world's directory until it is dropped, and no longer than the process lives.
#[derive(Debug)]
pub(super) struct Lock {
    _directory: File,
}

impl Lock {
    /// Takes the lock, waiting for as long as `patience` while another apply holds it.
    ///
    /// # Errors
    /// When it is held for longer (exit code 4), or the directory cannot be made or opened.
    pub(super) fn take(
        directory: &Path,
        patience: Duration,
        console: &mut Console,
    ) -> Result<Self, CliError> {
        let what = || format!("cannot lock the embedded world in `{}`", directory.display());
        std::fs::create_dir_all(directory).map_err(|e| CliError::new(e).context(what()))?;
        // The directory itself is locked: no file is left behind, and none is missed.
        let file = File::open(directory).map_err(|e| CliError::new(e).context(what()))?;
        let began = Instant::now();
        let mut said = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _directory: file }),
                Err(TryLockError::Error(error)) => {
                    return Err(CliError::new(error).context(what()));
                }
                Err(TryLockError::WouldBlock) if began.elapsed() >= patience => {
                    return Err(held(directory));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !said {
                console.say(&format!("{}; waiting", held(directory)));
                said = true;
            }
            std::thread::sleep(POLL.min(patience));
        }
    }
}

fn held(directory: &Path) -> CliError {
    let directory = directory.display();
    CliError::text(format!("another apply holds the embedded world in `{directory}`"))
        .kind(Exit::Locked)
        .hint("wait for the other apply, or pass a longer --lock-timeout")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::with_console;

    #[test]
    fn whoever_comes_second_waits_for_as_long_as_it_is_patient() {
        let directory = tempfile::tempdir().expect("a directory");
        let world = directory.path().join("not/there/yet");
        let ran = with_console(None, |console| {
            let first = Lock::take(&world, Duration::ZERO, console).expect("free");
            let refused = Lock::take(&world, Duration::ZERO, console).expect_err("held");
            assert_eq!(refused.kind, Exit::Locked);
            let gives_back = std::thread::spawn(move || {
                std::thread::sleep(POLL);
                drop(first);
            });
            Lock::take(&world, Duration::from_mins(1), console).expect("given back");
            gives_back.join().expect("ended");
            Exit::Done
        });
        assert_eq!(ran.err.matches("waiting").count(), 1, "{}", ran.err);
    }
}
