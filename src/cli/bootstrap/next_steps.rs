//! The steps after the templates are written: how to apply them, and what they cannot declare.

use std::fmt::Write as _;
use std::path::Path;

use super::RBAC_FILE;
use super::setup::{DISCOVERY_TAG, RoleId, Setup};
use super::{cloudformation, terraform};
use crate::cli::args::TemplateFormatArg;
use crate::render::escape;

/// Returns the parameters or variables of resources that exist once in an account.
fn existing_resource_switches(setup: &Setup, format: TemplateFormatArg) -> Vec<&'static str> {
    let ids = setup.providers.iter().map(|provider| provider.id);
    match format {
        TemplateFormatArg::Cloudformation => std::iter::once(cloudformation::SPOT_ROLE)
            .chain(ids.map(cloudformation::provider_parameter))
            .collect(),
        TemplateFormatArg::Terraform => std::iter::once(terraform::SPOT_ROLE)
            .chain(ids.map(terraform::provider_variable))
            .collect(),
    }
}

/// Returns the commands and settings that follow, for templates in `directory` or on stdout.
pub(super) fn text(
    setup: &Setup,
    formats: &[TemplateFormatArg],
    directory: Option<&Path>,
) -> String {
    let mut out = "\nNext, with credentials that may create roles:\n".to_owned();
    for (n, format) in formats.iter().enumerate() {
        if n > 0 {
            out.push_str("or\n");
        }
        out.push_str(&apply_commands(setup, *format, directory));
    }
    for format in formats {
        let kind = match format {
            TemplateFormatArg::Cloudformation => "parameter",
            TemplateFormatArg::Terraform => "variable",
        };
        let names = existing_resource_switches(setup, *format).join(", ");
        let _ = writeln!(
            out,
            "If the account has the Spot role or an OIDC provider already, set its {kind} to \
             false:\n  {names}"
        );
    }
    out.push_str("\nThen:\n");
    if formats.contains(&TemplateFormatArg::Cloudformation) {
        let cluster = &setup.cluster;
        let _ = writeln!(
            out,
            "  aws ec2 create-tags --resources SUBNET… SECURITY_GROUP… \\\n    \
             --tags Key={DISCOVERY_TAG},Value={cluster}"
        );
    }
    if setup.pod_identity {
        let _ = writeln!(
            out,
            "  aws eks create-addon --cluster-name {} --addon-name eks-pod-identity-agent",
            setup.cluster
        );
    }
    if setup.has_ci() {
        let file = directory.unwrap_or(Path::new("")).join(RBAC_FILE);
        let file = file.display().to_string();
        let _ = writeln!(out, "  kubectl apply --filename {}", escape(&file));
        if directory.is_none() {
            let _ = writeln!(out, "With --out DIR, this command writes {RBAC_FILE} as well.");
        }
    }
    out.push_str("\nSettings:\n");
    for (place, value) in settings(setup) {
        let _ = writeln!(out, "  {place:<36}  {}", escape(&value));
    }
    if setup.names_github_repository {
        out.push_str(
            "\nIf GitHub created, renamed or transferred the repository since 15 July 2026, or it \
             has opted in,\nrun this command with `--repository OWNER@OWNER_ID/NAME@REPOSITORY_ID`: \
             its tokens have these\nIDs. `gh api repos/OWNER/NAME` shows them as `owner.id` and \
             `id`.\n",
        );
    }
    out.push_str("\n`fleetwright preflight` then checks the cluster and the account.\n");
    out
}

fn apply_commands(setup: &Setup, format: TemplateFormatArg, directory: Option<&Path>) -> String {
    let shown = directory.unwrap_or(Path::new("."));
    match format {
        TemplateFormatArg::Cloudformation => {
            let file = shown.join(format.file_name());
            let file = file.strip_prefix(".").unwrap_or(&file);
            format!(
                "  aws cloudformation deploy --stack-name fleetwright-{} \\\n    \
                 --template-file {} --capabilities CAPABILITY_NAMED_IAM\n",
                setup.cluster,
                escape(&file.display().to_string())
            )
        }
        TemplateFormatArg::Terraform => {
            let at = directory.map(|at| format!(" -chdir={}", escape(&at.display().to_string())));
            let at = at.unwrap_or_default();
            format!("  terraform{at} init && terraform{at} apply\n")
        }
    }
}

/// Returns the settings that name what the templates create, each with its place.
fn settings(setup: &Setup) -> Vec<(&'static str, String)> {
    let role = |id| setup.role_name(id).unwrap_or_default().to_owned();
    let own = role(RoleId::Node);
    let node_roles = setup.more_node_roles.iter().fold(own, |all, name| format!("{all} or {name}"));
    let mut all = vec![
        ("spec.role of each EC2NodeClass", node_roles),
        ("selector terms of each EC2NodeClass", format!("tag {DISCOVERY_TAG}: {}", setup.cluster)),
        ("spec.controller.queue", setup.queue_name.clone()),
    ];
    if !setup.pod_identity {
        let name = role(RoleId::Controller);
        all.push(("aws.roleArn of the chart", format!("the ARN of the role {name}")));
    }
    if setup.has_ci() {
        for (variable, id) in
            [("FLEETWRIGHT_READ_ROLE", RoleId::Plan), ("FLEETWRIGHT_WRITE_ROLE", RoleId::Apply)]
        {
            all.push((variable, format!("the ARN of the role {}", role(id))));
        }
    }
    all
}
