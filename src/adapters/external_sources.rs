//! External sources: the cache of their content, their files as a part of the tree, and downloads.
//!
//! A plan reads only content that the lock file names, from the cache, without a network. Downloads
//! happen in `sources update` and `catalog prices` alone. Invariants: the content of a source has the digest of the lock
//! file, or none of its files are used. An archive is bounded in bytes and files, and none of its
//! paths leads outside of its directory.

mod archive;
mod cache;
#[cfg(feature = "live")]
mod credentials;
#[cfg(feature = "live")]
mod download;
#[cfg(feature = "live")]
mod git_source;
#[cfg(feature = "live")]
mod helm_repository;
mod mounted_files;
#[cfg(feature = "live")]
mod oci_registry;
#[cfg(feature = "live")]
mod price_list;
#[cfg(feature = "live")]
mod resolver;

#[cfg(feature = "live")]
pub use download::SourceDownloader;

pub use cache::SourceCache;
pub use mounted_files::MountedFiles;
