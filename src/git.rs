//! Reads trees of files from directories and commits.
