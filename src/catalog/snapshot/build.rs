//! Compresses the catalog snapshot, so that the repository has readable lines and the binary stays
//! small.
//!
//! Regions are stored separately, because a run needs only one. Prices become decimal strings, so
//! that no float is involved in a plan. The files are split by line, not parsed: their layout (one
//! type per line, each region's head on its own line) is part of README.md's contract.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use miniz_oxide::deflate::compress_to_vec_zlib;

const SNAPSHOT: &str = "src/catalog/snapshot";

/// Fields of a type that no code reads: decompressing and parsing them would cost every run.
const UNREAD: [&str; 16] = [
    "boot",
    "burstable",
    "cores",
    "current",
    "disk",
    "ebs_base_mbps",
    "ebs_max_iops",
    "gpu_count",
    "ipv6",
    "max_pods",
    "net",
    "net_base_mbps",
    "net_peak_mbps",
    "src",
    "threads_per_core",
    "virt",
];

/// Highest zlib level; the cost is paid once per build.
const LEVEL: u8 = 9;

fn main() -> io::Result<()> {
    for name in ["build.rs", "instance-types.json", "offerings.json", "on-demand-prices.json"] {
        println!("cargo::rerun-if-changed={SNAPSHOT}/{name}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let mut code = String::new();
    let types = keep_read_fields(&read("instance-types.json")?);
    pack(&out, &mut code, "TYPES", &[("types".to_owned(), types)])?;
    pack(&out, &mut code, "OFFERINGS", &by_region(&read("offerings.json")?)?)?;
    let mut prices = by_region(&read("on-demand-prices.json")?)?;
    for (_, list) in &mut prices {
        *list = quote_numbers(list);
    }
    pack(&out, &mut code, "PRICES", &prices)?;
    fs::write(out.join("snapshot.rs"), code)
}

fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(Path::new(SNAPSHOT).join(name))
}

/// Writes each text compressed, and a table `name` of (key, bytes) that includes them.
fn pack(out: &Path, code: &mut String, name: &str, texts: &[(String, String)]) -> io::Result<()> {
    let mut rows = String::new();
    for (key, text) in texts {
        let file = out.join(format!("{name}-{key}.z"));
        fs::write(&file, compress_to_vec_zlib(text.as_bytes(), LEVEL))?;
        let file = file.display().to_string();
        writeln!(rows, "    ({key:?}, include_bytes!({file:?})),").map_err(io::Error::other)?;
    }
    writeln!(code, "pub(super) static {name}: &[(&str, &[u8])] = &[\n{rows}];")
        .map_err(io::Error::other)
}

/// Splits `{"REGION":{…},…}` into regions and their objects. Only a region's line opens one.
fn by_region(text: &str) -> io::Result<Vec<(String, String)>> {
    let mut regions: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter(|line| !matches!(*line, "{" | "}" | "")) {
        if let Some((name, rest)) = line.split_once("\":{") {
            regions.push((name.trim_start_matches('"').to_owned(), format!("{{{rest}")));
        } else {
            let (_, object) = regions.last_mut().ok_or(io::ErrorKind::InvalidData)?;
            object.push_str(line);
        }
    }
    for (_, object) in &mut regions {
        object.truncate(object.trim_end_matches(',').len());
    }
    Ok(regions)
}

/// Removes the [`UNREAD`] fields of each line's object.
fn keep_read_fields(text: &str) -> String {
    let name = |field: &str| field.split('"').nth(1).unwrap_or_default().to_owned();
    let keep = |line: &str| {
        let Some(object) = line.trim_end_matches(',').strip_prefix('{') else {
            return line.to_owned();
        };
        let comma = if line.ends_with(',') { "," } else { "" };
        let fields = split_fields(object.strip_suffix('}').unwrap_or(object)).into_iter();
        let fields_read: Vec<&str> =
            fields.filter(|field| !UNREAD.contains(&name(field).as_str())).collect();
        format!("{{{}}}{comma}", fields_read.join(","))
    };
    text.lines().map(keep).collect::<Vec<_>>().join("\n")
}

/// Splits at commas outside strings, lists and objects.
fn split_fields(object: &str) -> Vec<&str> {
    let (mut depth, mut quoted) = (0_u32, false);
    let at_comma = |c: char| {
        match c {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0 && !quoted
    };
    object.split(at_comma).collect()
}

/// Converts `{"m5.large":0.096,…}` to `{"m5.large":"0.096",…}`.
fn quote_numbers(object: &str) -> String {
    let quote = |pair: &str| {
        let (name, number) = pair.split_once(':').unwrap_or((pair, ""));
        format!("{name}:\"{number}\"")
    };
    let pairs = object.trim_start_matches('{').trim_end_matches('}').split(',');
    format!("{{{}}}", pairs.map(quote).collect::<Vec<_>>().join(","))
}
