//! Settings of `bootstrap aws`. Names are checked, because they become parts of policies.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::cli::args::{AllowArg, BootstrapAwsArgs, CiArg, IdentityArg, TemplateFormatArg};
use crate::cli::error::CliError;

/// Longest name of an IAM role.
const ROLE_NAME_MAX: usize = 64;

/// Length of the longest suffix of a role name, `-controller`.
const SUFFIX_MAX: usize = 11;

/// Longest name of an EKS cluster.
const CLUSTER_NAME_MAX: usize = 100;

/// Longest name of an SQS queue.
const QUEUE_NAME_MAX: usize = 80;

/// Beginning of the name of the interruption queue, before the name of the cluster.
pub(in crate::cli) const QUEUE_PREFIX: &str = "fleetwright-";

#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct BootstrapSettings {
    pub(in crate::cli) cluster: String,
    /// Prefix of the role names.
    pub(in crate::cli) prefix: String,
    pub(in crate::cli) identity: ControllerIdentity,
    pub(in crate::cli) ci: Option<CiJobs>,
    pub(in crate::cli) allow: BTreeSet<AllowArg>,
    /// Names of further roles that nodes may have.
    pub(in crate::cli) node_roles: Vec<String>,
    /// `None`: the only format of stdout, or both formats of a directory.
    pub(in crate::cli) format: Option<TemplateFormatArg>,
    /// `None`: stdout.
    pub(in crate::cli) out: Option<PathBuf>,
}

/// How the pods of the controller get their role.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum ControllerIdentity {
    PodIdentity,
    /// Host and path of the OIDC provider of the cluster.
    Irsa {
        provider: String,
    },
}

/// The CI jobs that assume roles.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct CiJobs {
    pub(in crate::cli) host: CiHost,
    pub(in crate::cli) repository: String,
    pub(in crate::cli) branch: String,
}

/// The service that runs CI jobs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum CiHost {
    Github,
    Gitlab { host: String },
}

pub(super) fn bootstrap(args: BootstrapAwsArgs) -> Result<BootstrapSettings, CliError> {
    let BootstrapAwsArgs {
        cluster,
        prefix,
        identity,
        oidc_provider,
        ci,
        repository,
        branch,
        gitlab_host,
        allow,
        node_roles,
        format,
        out,
    } = args;
    check("--cluster", &cluster, "-_", CLUSTER_NAME_MAX)?;
    check_queue(&cluster)?;
    let is_own = prefix.is_some();
    let prefix = prefix.unwrap_or_else(|| format!("fleetwright-{cluster}"));
    let checked = check("--prefix", &prefix, "-_.", ROLE_NAME_MAX - SUFFIX_MAX);
    checked.map_err(|error| {
        let shorter = "name a shorter one with --prefix";
        if is_own { error } else { error.hint(shorter) }
    })?;
    let identity = match (identity, oidc_provider) {
        (IdentityArg::Irsa, Some(provider)) => {
            let provider = provider.strip_prefix("https://").unwrap_or(&provider).to_owned();
            check("--oidc-provider", &provider, "-_./:", 255)?;
            ControllerIdentity::Irsa { provider }
        }
        // Clap requires a provider for `irsa`.
        (IdentityArg::Irsa | IdentityArg::PodIdentity, _) => ControllerIdentity::PodIdentity,
    };
    let ci = match (ci, repository) {
        (Some(service), Some(repository)) => {
            Some(ci_jobs(service, repository, branch, gitlab_host)?)
        }
        // Clap requires both or none.
        _ => None,
    };
    for role in &node_roles {
        check("--node-role", role, "-_.+=,@", ROLE_NAME_MAX)?;
    }
    let allow = allow.into_iter().collect();
    Ok(BootstrapSettings { cluster, prefix, identity, ci, allow, node_roles, format, out })
}

/// Checks that the name of the queue of a cluster is not too long.
fn check_queue(cluster: &str) -> Result<(), CliError> {
    let queue = format!("{QUEUE_PREFIX}{cluster}");
    let length = queue.len();
    if length <= QUEUE_NAME_MAX {
        return Ok(());
    }
    Err(CliError::text(format!(
        "the queue `{queue}` of this cluster has {length} characters; SQS allows {QUEUE_NAME_MAX}"
    ))
    .hint("create the roles and the queue from deploy/aws by hand, with a shorter name"))
}

fn ci_jobs(
    service: CiArg,
    repository: String,
    branch: String,
    gitlab_host: String,
) -> Result<CiJobs, CliError> {
    let marks = match service {
        CiArg::Github => "-_./@",
        CiArg::Gitlab => "-_./",
    };
    check("--repository", &repository, marks, 255)?;
    if !repository.trim_matches('/').contains('/') {
        return Err(CliError::text(format!("--repository `{repository}` has no owner"))
            .hint("name it as OWNER/NAME, or GROUP/PROJECT on GitLab"));
    }
    if repository.contains('@') && !has_both_ids(&repository) {
        return Err(CliError::text(format!(
            "--repository `{repository}` has no ID of its owner and of the repository"
        ))
        .hint("write OWNER@OWNER_ID/NAME@REPOSITORY_ID, or OWNER/NAME without IDs"));
    }
    check("--branch", &branch, "-_./", 255)?;
    let host = match service {
        CiArg::Github => CiHost::Github,
        CiArg::Gitlab => {
            check("--gitlab-host", &gitlab_host, "-.:", 255)?;
            CiHost::Gitlab { host: gitlab_host }
        }
    };
    Ok(CiJobs { host, repository, branch })
}

/// Returns whether a repository of GitHub has the form `OWNER@OWNER_ID/NAME@REPOSITORY_ID`.
///
/// It is the form of the subject of tokens since 15 July 2026. IDs never change, while another
/// account may take a name over.
fn has_both_ids(repository: &str) -> bool {
    let has_id = |part: &str| {
        part.split_once('@').is_some_and(|(name, id)| {
            let is_number = !id.is_empty() && id.chars().all(|c| c.is_ascii_digit());
            !name.is_empty() && is_number
        })
    };
    repository.split_once('/').is_some_and(|(owner, name)| has_id(owner) && has_id(name))
}

/// Checks that a name has letters, digits and `marks` only, and at most `length_max` characters.
/// A wildcard or a placeholder would widen a policy.
fn check(option: &str, name: &str, marks: &str, length_max: usize) -> Result<(), CliError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
    if name.is_empty() || !name.chars().all(is_allowed) {
        let list: Vec<String> = marks.chars().map(String::from).collect();
        let hint = format!("use letters, digits and {}", list.join(" "));
        return Err(CliError::text(format!("{option} `{name}` is not a name")).hint(hint));
    }
    if name.len() > length_max {
        let length = name.len();
        return Err(CliError::text(format!(
            "{option} `{name}` has {length} characters; AWS allows {length_max}"
        )));
    }
    Ok(())
}
