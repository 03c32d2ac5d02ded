//! moto, a simulator of AWS. The pinned release is installed from `PyPI` into a virtual environment
//! in the build directory.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use serde_json::{Value as Json, json};

use crate::missing_tool::not_run;

/// Release of moto. `proxy_additions.rs` adds the features that it lacks.
const VERSION: &str = "5.2.5";

/// Release of `cfn-lint`, which moto needs as well.
const CFN_LINT_VERSION: &str = "1.58.0";

/// A running server. It is stopped when this value is dropped.
pub(super) struct Moto {
    process: Child,
    url: String,
}

impl Moto {
    /// Starts the server. Returns `None`, with the reason on stderr, if it cannot be installed.
    pub(super) fn start() -> Option<Self> {
        let server = match install() {
            Ok(server) => server,
            Err(why) => {
                not_run("moto", &format!("moto {VERSION} cannot be installed: {why}"));
                return None;
            }
        };
        let mut process = Command::new(server)
            // The server chooses a free port and prints it.
            .args(["-H", "127.0.0.1", "-p", "0"])
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut stderr = BufReader::new(process.stderr.take().expect("piped")).lines();
        let url = stderr.find_map(|line| {
            let line = line.ok()?;
            let (_, url) = line.split_once("Running on ")?;
            Some(url.trim().to_owned())
        });
        let moto = Self { process, url: url.expect("moto prints its URL") };
        // The rest of the output is read and dropped: a full pipe would block the server.
        std::thread::spawn(move || stderr.count());
        Some(moto)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Deploys a `CloudFormation` template, as `aws cloudformation deploy` does.
    pub(super) fn deploy(&self, template: &str, name: &str, parameters: &[(&str, &str)]) {
        let form = [
            ("Action", "CreateStack"),
            ("Version", "2010-05-15"),
            ("StackName", name),
            ("TemplateBody", template),
        ];
        let mut form = form.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        for (n, (key, value)) in parameters.iter().enumerate() {
            let part = |part: &str| format!("Parameters.member.{}.Parameter{part}", n + 1);
            form.push((part("Key"), (*key).to_owned()));
            form.push((part("Value"), (*value).to_owned()));
        }
        let call = ureq::post(&self.url).header("authorization", authorization("cloudformation"));
        call.send_form(form).expect("a deployed stack");
    }

    /// Sends an event of EC2 to `EventBridge`.
    pub(super) fn put_event(&self, kind: &str, detail: &Json) {
        let entry =
            json!({ "Source": "aws.ec2", "DetailType": kind, "Detail": detail.to_string() });
        let call = ureq::post(&self.url)
            .header("authorization", authorization("events"))
            .header("x-amz-target", "AWSEvents.PutEvents")
            .header("content-type", "application/x-amz-json-1.1");
        let sent = call.send(json!({ "Entries": [entry] }).to_string()).expect("an accepted event");
        let answer = sent.into_body().read_to_string().expect("text");
        assert!(answer.contains(r#""FailedEntryCount": 0"#), "{answer}");
    }

    /// Returns the configuration of the AWS account. Each server has an account of its own, so that
    /// tests do not see each other's instances.
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
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns an authorization header from which moto derives the service of a call. moto checks no
/// signature.
fn authorization(service: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, \
         SignedHeaders=host, Signature=none"
    )
}

/// Returns the path of `cfn-lint`. Returns `None`, with the reason on stderr, if it cannot be
/// installed.
pub(super) fn cfn_lint() -> Option<PathBuf> {
    match install() {
        Ok(server) => Some(server.with_file_name("cfn-lint")),
        Err(why) => {
            not_run("cfn-lint", &format!("cfn-lint {CFN_LINT_VERSION} cannot be installed: {why}"));
            None
        }
    }
}

/// Returns the path of the program. Concurrent tests share one installation.
fn install() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    INSTALLED.get_or_init(install_version).clone()
}

/// Installs these versions unless an earlier run has installed them.
fn install_version() -> Result<PathBuf, String> {
    let name = format!("moto-{VERSION}-{CFN_LINT_VERSION}");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let (server, marker) = (directory.join("bin/moto_server"), directory.join("installed"));
    if marker.exists() {
        return Ok(server);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    run(Command::new(directory.join("bin/pip")).args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        &format!("moto[server,ec2,autoscaling,eks,ssm,iam]=={VERSION}"),
        &format!("cfn-lint=={CFN_LINT_VERSION}"),
    ]))?;
    std::fs::write(&marker, "").map_err(|error| error.to_string())?;
    Ok(server)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(stderr.lines().last().unwrap_or("no reason given").to_owned())
}
