//! Archives of sources: `.tgz` of charts and artifacts, and `.tar` of Git files.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path};
use std::sync::Arc;

use flate2::read::GzDecoder;

/// Files by their path.
pub(super) type ArchiveFiles = BTreeMap<String, Arc<[u8]>>;

/// Limits of an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArchiveLimits {
    /// Number of entries.
    pub(super) entries: usize,
    /// Bytes of all files after decompression.
    pub(super) bytes: u64,
}

impl ArchiveLimits {
    /// The limits outside tests.
    pub(super) const DEFAULT: Self = Self { entries: 50_000, bytes: 256 << 20 };
}

/// First bytes of compressed content.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Returns the files of an archive. A chart loses its top directory.
pub(super) fn unpack(content: &[u8], limits: ArchiveLimits) -> Result<ArchiveFiles, String> {
    // Headers and padding need room, too.
    let most = limits.bytes.saturating_mul(2);
    let files = if content.starts_with(&GZIP_MAGIC) {
        read_files(GzDecoder::new(content).take(most), limits)?
    } else {
        read_files(content.take(most), limits)?
    };
    if files.is_empty() {
        return Err("its archive contains no file".to_owned());
    }
    Ok(without_chart_directory(files))
}

fn read_files(reader: impl Read, limits: ArchiveLimits) -> Result<ArchiveFiles, String> {
    let broken = |error: std::io::Error| format!("its archive cannot be read: {error}");
    let mut archive = tar::Archive::new(reader);
    let (mut files, mut bytes) = (ArchiveFiles::new(), 0_u64);
    for (at, entry) in archive.entries().map_err(broken)?.enumerate() {
        let mut entry = entry.map_err(broken)?;
        if at >= limits.entries {
            return Err(format!("its archive has more than {} entries", limits.entries));
        }
        // Links could lead outside, and devices are no content.
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = plain_path(&entry.path().map_err(broken)?)
            .ok_or("its archive has a path outside of the archive")?;
        bytes = bytes.saturating_add(entry.size());
        if bytes > limits.bytes {
            return Err(format!("its archive has more than {} bytes", limits.bytes));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        files.insert(path, content.into());
    }
    Ok(files)
}

/// Returns a relative path with `/`; `None` if it leads outside or is not UTF-8.
fn plain_path(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Removes the directory that contains a whole chart.
fn without_chart_directory(files: ArchiveFiles) -> ArchiveFiles {
    let first = files.keys().next().and_then(|path| path.split_once('/'));
    let Some(prefix) = first.map(|(top, _)| format!("{top}/")) else { return files };
    let is_chart = files.contains_key(&format!("{prefix}Chart.yaml"));
    if !is_chart || !files.keys().all(|path| path.starts_with(&prefix)) {
        return files;
    }
    let inner = |(path, content): (String, _)| {
        let path = path.strip_prefix(&prefix).map(str::to_owned).unwrap_or(path);
        (path, content)
    };
    files.into_iter().map(inner).collect()
}

/// Returns the archive of `files`. Equal files make equal bytes.
#[cfg(feature = "live")]
pub(super) fn pack(files: &ArchiveFiles) -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(u64::try_from(content.len()).unwrap_or(u64::MAX));
        builder.append_data(&mut header, path, &**content)?;
    }
    builder.into_inner()
}

#[cfg(all(test, feature = "live"))]
mod tests {
    use std::io::Write;

    use super::*;

    fn files(all: &[(&str, &str)]) -> ArchiveFiles {
        let one = |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().into());
        all.iter().map(one).collect()
    }

    #[test]
    fn packed_files_are_unpacked_unchanged() {
        let long = format!("{}a.yaml", "directory/".repeat(30));
        let all = files(&[("a/b.yaml", "1"), ("c", ""), (&long, "2")]);
        let packed = pack(&all).expect("packed");
        assert_eq!(packed, pack(&all).expect("packed"));
        assert_eq!(unpack(&packed, ArchiveLimits::DEFAULT), Ok(all));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let chart = files(&[("web/Chart.yaml", "name: web"), ("web/templates/a.yaml", "x")]);
        gzip.write_all(&pack(&chart).expect("packed")).expect("compressed");
        let gzip = gzip.finish().expect("compressed");
        let expected = files(&[("Chart.yaml", "name: web"), ("templates/a.yaml", "x")]);
        assert_eq!(unpack(&gzip, ArchiveLimits::DEFAULT), Ok(expected));
    }

    #[test]
    fn hostile_archives_are_refused() {
        let limits = ArchiveLimits { entries: 3, bytes: 10_000 };
        let refused = |content: &[u8], expected: &str| {
            let error = unpack(content, limits).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        };
        let many = files(&[("a", ""), ("b", ""), ("c", ""), ("d", "")]);
        refused(&pack(&many).expect("packed"), "more than 3 entries");
        let large = files(&[("a", &"x".repeat(10_001))]);
        refused(&pack(&large).expect("packed"), "more than 10000 bytes");
        let mut packed = pack(&files(&[("aa/b", "x")])).expect("packed");
        // A path is only checked by the reader: the writer refuses this one.
        packed[..2].copy_from_slice(b"..");
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes().copy_from_slice(&packed[..512]);
        header.set_cksum();
        packed[..512].copy_from_slice(header.as_bytes());
        refused(&packed, "a path outside of the archive");
        refused(b"<html>", "cannot be read");
        refused(&[0; 1_024], "no file");
        refused(&[0x1f, 0x8b, 1, 2, 3], "cannot be read");
        let mut link = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        link.append_link(&mut header, "a", "/etc/passwd").expect("a link");
        refused(&link.into_inner().expect("an archive"), "no file");
    }
}
