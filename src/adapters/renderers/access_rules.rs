//! Restricts the files and connections of a program with Landlock.
//!
//! Landlock needs no privileges, so it works on hosted runners and in pods with the default seccomp
//! profile, where namespaces often do not. A program reads its own directory, itself and the system
//! libraries. It writes to its own directory only, and opens no TCP connection. Kernels without
//! Landlock (before 5.13) restrict nothing, and those before 6.7 do not restrict connections.

use std::path::Path;

/// Restrictions that the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AccessRules {
    /// True if files are restricted.
    pub(super) files: bool,
    /// True if TCP connections are refused.
    pub(super) connections: bool,
}

impl AccessRules {
    /// Detects what the kernel enforces.
    #[cfg(target_os = "linux")]
    pub(super) fn detect() -> Self {
        use landlock::{
            AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
        };
        let strict = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        Self {
            files: strict().handle_access(AccessFs::Execute).is_ok(),
            connections: strict().handle_access(AccessNet::ConnectTcp).is_ok(),
        }
    }

    /// Detects what the kernel enforces.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn detect() -> Self {
        Self::default()
    }

    /// Runs `work` in a thread that is restricted, with the programs that it starts. They read
    /// `readable` and the system libraries, and change `folder`.
    ///
    /// # Errors
    /// Returns an error if a restriction that was detected cannot be applied.
    pub(super) fn confine<T: Send>(
        self,
        readable: &[&Path],
        folder: Option<&Path>,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, String> {
        if !self.files {
            return Ok(work());
        }
        std::thread::scope(|scope| {
            let confined = scope.spawn(|| restrict_thread(readable, folder).map(|()| work()));
            confined.join().unwrap_or_else(|_| Err("its thread ended".to_owned()))
        })
    }
}

/// System directories and files with programs, libraries and devices that hold nothing private.
#[cfg(target_os = "linux")]
const SYSTEM: [&str; 10] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/dev/urandom",
    "/dev/zero",
    "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
];

/// Devices that may be written, and the files in which `unshare` maps users. A restricted process
/// can inspect no other process there.
#[cfg(target_os = "linux")]
const WRITABLE: [&str; 2] = ["/dev/null", "/proc"];

/// Restricts the current thread, and the processes that it starts.
#[cfg(target_os = "linux")]
fn restrict_thread(readable: &[&Path], folder: Option<&Path>) -> Result<(), String> {
    use landlock::{
        ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
        RulesetStatus, Scope, path_beneath_rules,
    };
    // Newer kernels know more restrictions, and older ones apply those that they know.
    let abi = ABI::V6;
    let read = AccessFs::from_read(abi);
    let restricted = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(SYSTEM, read))?
            .add_rules(path_beneath_rules(readable, read))?
            .add_rules(path_beneath_rules(WRITABLE, AccessFs::ReadFile | AccessFs::WriteFile))?
            .add_rules(path_beneath_rules(folder, AccessFs::from_all(abi)))?
            .restrict_self()
    };
    match restricted() {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err("the kernel does not enforce its restrictions".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("its restrictions cannot be applied: {error}")),
    }
}

#[cfg(not(target_os = "linux"))]
fn restrict_thread(_: &[&Path], _: Option<&Path>) -> Result<(), String> {
    Ok(())
}
