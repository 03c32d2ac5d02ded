//! The lock of an embedded world: one apply changes it at a time.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::CliError;
use super::{Console, Exit};

/// Poll interval while the lock is held elsewhere.
const POLL: Duration = Duration::from_millis(100);

/// The lock of a world's directory, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct WorldLock {
    _directory: File,
}

impl WorldLock {
    /// Takes the lock, waiting up to `timeout` while another apply holds it.
    ///
    /// # Errors
    /// Fails if it is held for longer (exit code 4), or the directory cannot be created or opened.
    pub(super) fn acquire(
        directory: &Path,
        timeout: Duration,
        console: &mut Console,
    ) -> Result<Self, CliError> {
        let failure = || format!("cannot lock the embedded world in `{}`", directory.display());
        std::fs::create_dir_all(directory).map_err(|e| CliError::new(e).context(failure()))?;
        // The lock is on the directory itself, so no lock file is left behind.
        let file = File::open(directory).map_err(|e| CliError::new(e).context(failure()))?;
        let began = Instant::now();
        let mut is_reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _directory: file }),
                Err(TryLockError::Error(error)) => {
                    return Err(CliError::new(error).context(failure()));
                }
                Err(TryLockError::WouldBlock) if began.elapsed() >= timeout => {
                    return Err(lock_held(directory));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !is_reported {
                console.report(&format!("{}; waiting", lock_held(directory)));
                is_reported = true;
            }
            std::thread::sleep(POLL.min(timeout));
        }
    }
}

fn lock_held(directory: &Path) -> CliError {
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
    fn second_apply_waits_until_the_timeout() {
        let directory = tempfile::tempdir().expect("a directory");
        let world = directory.path().join("not/there/yet");
        let ran = with_console(None, |console| {
            let first = WorldLock::acquire(&world, Duration::ZERO, console).expect("free");
            let refused = WorldLock::acquire(&world, Duration::ZERO, console).expect_err("held");
            assert_eq!(refused.kind, Exit::Locked);
            let gives_back = std::thread::spawn(move || {
                std::thread::sleep(POLL);
                drop(first);
            });
            WorldLock::acquire(&world, Duration::from_mins(1), console).expect("given back");
            gives_back.join().expect("ended");
            Exit::Done
        });
        assert_eq!(ran.err.matches("waiting").count(), 1, "{}", ran.err);
    }
}
