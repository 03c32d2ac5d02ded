//! Templates of `bootstrap aws` as golden files. `live/bootstrap.rs` lints and deploys them.

use crate::binary::Workspace;
use crate::golden;

/// The usual set-up, and the one with every alternative.
pub(crate) const SETUPS: [(&str, &[&str]); 2] = [
    ("github", &["--cluster", "prod", "--ci", "github", "--repository", "acme/fleet"]),
    (
        "gitlab",
        &[
            "--cluster",
            "prod",
            "--prefix",
            "fleet.prod",
            "--identity",
            "irsa",
            "--oidc-provider",
            "https://oidc.eks.us-east-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF",
            "--ci",
            "gitlab",
            "--repository",
            "acme/platform/fleet",
            "--branch",
            "production",
            "--gitlab-host",
            "gitlab.example.com",
            "--allow",
            "adoption",
            "--allow",
            "instance-profiles",
        ],
    ),
];

/// Returns a template of a set-up, as the program prints it.
pub(crate) fn template(options: &[&str], format: &str) -> String {
    let arguments = [&["bootstrap", "aws", "--format", format], options].concat();
    let ran = Workspace::empty().run(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.out
}

#[test]
fn bootstrap_templates_equal_their_golden_files() {
    for (name, options) in SETUPS {
        for (format, end) in [("cloudformation", "template"), ("terraform", "tf")] {
            let path = format!("tests/it/golden/bootstrap-{name}.{end}.json");
            golden::hold(&path, &template(options, format)).expect("the same template");
        }
    }
}
