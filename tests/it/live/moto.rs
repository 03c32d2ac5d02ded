//! moto, which answers for AWS: from `PyPI`, pinned, in a virtual environment below the build folder.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use serde_json::{Value as Json, json};

/// The release that the gaps of `tests/it/live` are written for.
const VERSION: &str = "5.2.5";

/// A running server, gone with this value.
pub(super) struct Moto {
    process: Child,
    url: String,
}

impl Moto {
    /// Starts the server; `None`, with the reason on stderr, where it cannot be installed.
    pub(super) fn start() -> Option<Self> {
        let server = match install() {
            Ok(server) => server,
            Err(why) => {
                super::not_run(&format!("moto {VERSION} cannot be installed: {why}"));
                return None;
            }
        };
        let mut process = Command::new(server)
            // A free port of its own choice, which it tells.
            .args(["-H", "127.0.0.1", "-p", "0"])
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut said = BufReader::new(process.stderr.take().expect("piped")).lines();
        let url = said.find_map(|line| {
            let line = line.ok()?;
            let (_, url) = line.split_once("Running on ")?;
            Some(url.trim().to_owned())
        });
        let moto = Self { process, url: url.expect("moto says where it runs") };
        // Whatever else it says is taken and dropped: a full pipe would stop it.
        std::thread::spawn(move || said.count());
        Some(moto)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Makes of a template what it asks for, as `aws cloudformation deploy` does.
    pub(super) fn deploy(&self, template: &str, name: &str) {
        let form = [
            ("Action", "CreateStack"),
            ("Version", "2010-05-15"),
            ("StackName", name),
            ("TemplateBody", template),
            ("Parameters.member.1.ParameterKey", "Name"),
            ("Parameters.member.1.ParameterValue", name),
        ];
        let call = ureq::post(&self.url).header("authorization", authorized("cloudformation"));
        call.send_form(form).expect("it is deployed");
    }

    /// Tells `EventBridge` what EC2 does: of which kind, and the particulars.
    pub(super) fn happens(&self, kind: &str, detail: &Json) {
        let entry =
            json!({ "Source": "aws.ec2", "DetailType": kind, "Detail": detail.to_string() });
        let call = ureq::post(&self.url)
            .header("authorization", authorized("events"))
            .header("x-amz-target", "AWSEvents.PutEvents")
            .header("content-type", "application/x-amz-json-1.1");
        let sent = call.send(json!({ "Entries": [entry] }).to_string()).expect("it is taken");
        let answer = sent.into_body().read_to_string().expect("text");
        assert!(answer.contains(r#""FailedEntryCount": 0"#), "{answer}");
    }

    /// Returns the configuration of an account of its own: tests do not see each other's instances.
    pub(super) fn account(&self) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "test");
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(&self.url)
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns what moto knows by which service a call is for; it looks at no signature.
fn authorized(service: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, \
         SignedHeaders=host, Signature=none"
    )
}

/// Returns the program. Tests that run at the same time share one installation.
fn install() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    INSTALLED.get_or_init(install_version).clone()
}

/// Installs this version, unless an earlier run did.
fn install_version() -> Result<PathBuf, String> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("moto-{VERSION}"));
    let (server, done) = (home.join("bin/moto_server"), home.join("installed"));
    if done.exists() {
        return Ok(server);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    run(Command::new(home.join("bin/pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        &format!("moto[server,ec2,autoscaling,eks,ssm,iam]=={VERSION}"),
    ]))?;
    std::fs::write(&done, "").map_err(|error| error.to_string())?;
    Ok(server)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("no reason given").to_owned())
}
