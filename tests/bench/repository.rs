//! A large repository of 20,000 manifests, without and with 500 overlays.
//!
//! Prints the wall time and the peak memory of the `validate` and `plan` processes. Overlays need
//! `kustomize` or `kubectl` on the PATH. A cold run has an empty render cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MANIFESTS: usize = 20_000;
const OVERLAYS: usize = 500;

/// Number of files in each directory.
const PER_DIRECTORY: usize = 100;

const POOL: &str = include_str!("../../examples/overlays/cluster/pool.yaml");

pub(crate) fn rows() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let plain = folder.path().join("plain");
    manifests(&plain)?;
    println!("{:<34} {:>9} {:>12} {:>9}", "repository", "wall ms", "manifests/s", "peak MiB");
    let cache = folder.path().join("cache");
    row("validate, 20000 manifests", &["validate"], &plain, &cache)?;
    row("plan, 20000 manifests", &["plan"], &plain, &cache)?;
    let both = folder.path().join("both");
    manifests(&both)?;
    overlays(&both)?;
    row("validate, and 500 overlays, cold", &["validate"], &both, &cache)?;
    row("validate, and 500 overlays, warm", &["validate"], &both, &cache)?;
    row("plan, and 500 overlays, warm", &["plan"], &both, &cache)
}

fn manifests(root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root)?;
    fs::write(root.join("pool.yaml"), POOL)?;
    for n in 0..MANIFESTS {
        let directory = root.join(format!("apps/{:03}", n / PER_DIRECTORY));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("w{n}.yaml")), deployment(n))?;
    }
    Ok(())
}

fn deployment(n: usize) -> String {
    let (replicas, cpu, memory) = (1 + n % 3, 50 + n % 40 * 10, 64 + n % 50 * 16);
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: w{n}\n  namespace: ns{}\n  labels: \
         {{ app: w{n} }}\nspec:\n  replicas: {replicas}\n  selector:\n    matchLabels: {{ app: w{n} }}\n  \
         template:\n    metadata:\n      labels: {{ app: w{n} }}\n    spec:\n      containers:\n        - \
         name: main\n          image: registry.example.com/w{n}:1.0\n          resources:\n            \
         requests: {{ cpu: {cpu}m, memory: {memory}Mi }}\n",
        n / PER_DIRECTORY
    )
}

fn overlays(root: &Path) -> anyhow::Result<()> {
    let mut fleet = vec![
        "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec:\n  cluster: { name: big, \
                     region: us-east-1 }\n  sources:\n    - path: apps\n    - path: pool.yaml\n"
            .to_owned(),
    ];
    fs::create_dir_all(root.join("base"))?;
    fs::write(root.join("base/web.yaml"), deployment(MANIFESTS))?;
    fs::write(root.join("base/kustomization.yaml"), "resources: [web.yaml]\n")?;
    for n in 0..OVERLAYS {
        let path = format!("overlays/{n:03}");
        fs::create_dir_all(root.join(&path))?;
        let text = format!(
            "resources: [../../base]\nnamespace: o{n}\nreplicas: [{{ name: w{MANIFESTS}, count: {} }}]\n",
            1 + n % 4
        );
        fs::write(root.join(&path).join("kustomization.yaml"), text)?;
        fleet.push(format!("    - {{ path: {path}, render: kustomize }}\n"));
    }
    fs::write(root.join("fleetwright.yaml"), fleet.concat())?;
    Ok(())
}

fn row(name: &str, arguments: &[&str], tree: &Path, cache: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(arguments)
        .arg(tree)
        .env("XDG_CACHE_HOME", cache)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // The kernel records the peak of a process, so the last sample contains it.
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        peak = peak.max(peak_kib(child.id()));
        std::thread::sleep(Duration::from_millis(1));
    }
    let wall = begun.elapsed();
    let rate = u128::try_from(MANIFESTS)? * 1_000 / wall.as_millis().max(1);
    println!("{name:<34} {:>9} {rate:>12} {:>9}", wall.as_millis(), peak / 1_024);
    Ok(())
}

/// Returns the peak memory of a process in KiB, or 0 if the system does not report it.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
