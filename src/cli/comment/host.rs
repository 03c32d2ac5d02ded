//! The code review platform of a job, from its environment.

use std::path::Path;

use serde_json::Value;

use super::{FILE_BYTES_MAX, variable};
use crate::adapters::forges::{
    AzureDevOps, Bitbucket, BitbucketDataCenter, ForgeAddress, GitHub, GitLab, Token,
};
use crate::apply::ports::Forge;
use crate::cli::error::CliError;
use crate::cli::settings::CommentSettings;
use crate::cli::{Console, files};

/// A code review platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::cli) enum ForgeHost {
    Github,
    Gitlab,
    Bitbucket,
    BitbucketDataCenter,
    AzureDevops,
}

/// A pull request on its forge.
pub(super) struct PullRequest {
    pub(super) forge: Box<dyn Forge>,
    pub(super) number: u64,
}

/// Names of the variables of a platform. The first that is set counts.
struct Variables {
    /// Set in each job; empty for a platform without jobs of its own.
    job: &'static str,
    tokens: &'static [&'static str],
    addresses: &'static [&'static str],
    repositories: &'static [&'static str],
    pulls: &'static [&'static str],
    default_address: Option<&'static str>,
    /// The form of `--repository`.
    repository_form: &'static str,
}

const GITHUB: Variables = Variables {
    job: "GITHUB_ACTIONS",
    tokens: &["GITHUB_TOKEN"],
    addresses: &["GITHUB_API_URL"],
    repositories: &["GITHUB_REPOSITORY"],
    pulls: &[],
    default_address: Some("https://api.github.com"),
    repository_form: "OWNER/NAME",
};

const GITLAB: Variables = Variables {
    job: "GITLAB_CI",
    tokens: &["GITLAB_TOKEN"],
    addresses: &["GITLAB_API_URL", "CI_API_V4_URL"],
    repositories: &["CI_PROJECT_PATH"],
    pulls: &["CI_MERGE_REQUEST_IID"],
    default_address: Some("https://gitlab.com/api/v4"),
    repository_form: "GROUP/NAME",
};

const BITBUCKET: Variables = Variables {
    job: "BITBUCKET_BUILD_NUMBER",
    tokens: &["BITBUCKET_TOKEN"],
    addresses: &["BITBUCKET_API_URL"],
    repositories: &["BITBUCKET_REPO_FULL_NAME"],
    pulls: &["BITBUCKET_PR_ID"],
    default_address: Some("https://api.bitbucket.org/2.0"),
    repository_form: "WORKSPACE/NAME",
};

const BITBUCKET_DATA_CENTER: Variables = Variables {
    job: "",
    tokens: &["BITBUCKET_TOKEN"],
    addresses: &["BITBUCKET_URL"],
    repositories: &[],
    pulls: &[],
    default_address: None,
    repository_form: "PROJECT/NAME",
};

const AZURE_DEVOPS: Variables = Variables {
    job: "TF_BUILD",
    tokens: &["AZURE_DEVOPS_TOKEN", "SYSTEM_ACCESSTOKEN"],
    addresses: &["AZURE_DEVOPS_URL", "SYSTEM_COLLECTIONURI"],
    repositories: &[],
    pulls: &["SYSTEM_PULLREQUEST_PULLREQUESTID"],
    default_address: None,
    repository_form: "PROJECT/NAME",
};

impl ForgeHost {
    /// Returns the named platform, or the platform whose job this is.
    pub(super) fn choose(named: Option<Self>) -> Self {
        let all = [Self::Gitlab, Self::Bitbucket, Self::AzureDevops];
        let is_job = |host: &Self| variable(host.variables().job).is_some();
        named.or_else(|| all.into_iter().find(is_job)).unwrap_or(Self::Github)
    }

    const fn variables(self) -> &'static Variables {
        match self {
            Self::Github => &GITHUB,
            Self::Gitlab => &GITLAB,
            Self::Bitbucket => &BITBUCKET,
            Self::BitbucketDataCenter => &BITBUCKET_DATA_CENTER,
            Self::AzureDevops => &AZURE_DEVOPS,
        }
    }

    /// Returns the pull request of the job; `None` without a token.
    pub(super) fn connect(
        self,
        settings: &CommentSettings,
        console: &mut Console,
    ) -> Result<Option<PullRequest>, CliError> {
        let names = self.variables();
        let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
        let Some(secret) = first(names.tokens) else {
            console.report(&format!(
                "warning: no comment was written: {} is not set. Set it, or print the comment with \
                 --dry-run.",
                names.tokens[0]
            ));
            return Ok(None);
        };
        let missing = |what: &str, hint: String| CliError::text(what.to_owned()).hint(hint);
        let repository = settings.repository.clone().or_else(|| first(names.repositories));
        let repository = repository.or_else(|| self.azure_repository());
        let repository = repository.filter(|name| self.is_repository(name)).ok_or_else(|| {
            missing(
                "the repository is not known",
                format!("pass --repository {}", names.repository_form),
            )
        })?;
        let number = || first(names.pulls).and_then(|number| number.parse().ok());
        let pull = settings.pull.or_else(number).or_else(|| self.pull_of_event());
        let pull = pull.ok_or_else(|| {
            missing("the pull request is not known", "pass --pull NUMBER".to_owned())
        })?;
        let address = first(names.addresses).or_else(|| names.default_address.map(str::to_owned));
        let address = address.ok_or_else(|| {
            missing("the address of the API is not known", format!("set {}", names.addresses[0]))
        })?;
        let address = ForgeAddress::parse(&address).map_err(|why| {
            CliError::text(format!("the address of the API cannot be used: {why}"))
                .hint(format!("set {} to an https:// URL", names.addresses[0]))
        })?;
        Ok(Some(PullRequest { forge: self.forge(address, &repository, &secret), number: pull }))
    }

    fn forge(self, address: ForgeAddress, repository: &str, secret: &str) -> Box<dyn Forge> {
        match self {
            Self::Github => Box::new(GitHub::new(address, repository, secret)),
            Self::Gitlab => Box::new(GitLab::new(address, repository, secret)),
            Self::Bitbucket => {
                Box::new(Bitbucket::new(address, repository, bitbucket_token(secret)))
            }
            Self::BitbucketDataCenter => {
                let (project, name) = repository.split_once('/').unwrap_or((repository, ""));
                let token = bitbucket_token(secret);
                Box::new(BitbucketDataCenter::new(address, project, name, token))
            }
            Self::AzureDevops => {
                let (project, name) = repository.split_once('/').unwrap_or((repository, ""));
                Box::new(AzureDevOps::new(address, project, name, secret))
            }
        }
    }

    /// Returns the repository of an Azure pipeline, which two variables name.
    fn azure_repository(self) -> Option<String> {
        if self != Self::AzureDevops {
            return None;
        }
        let (project, name) = (variable("SYSTEM_TEAMPROJECT")?, variable("BUILD_REPOSITORY_NAME")?);
        Some(format!("{project}/{name}"))
    }

    /// Returns the pull request number of the event of a GitHub workflow.
    fn pull_of_event(self) -> Option<u64> {
        if self != Self::Github {
            return None;
        }
        let path = variable("GITHUB_EVENT_PATH")?;
        let bytes = files::read(Path::new(&path), FILE_BYTES_MAX).ok()?;
        let event: Value = serde_json::from_slice(&bytes).ok()?;
        event.pointer("/pull_request/number").or_else(|| event.pointer("/number"))?.as_u64()
    }

    /// Accepts an owner and a name alone, because the text becomes part of a URL.
    fn is_repository(self, name: &str) -> bool {
        // The project of a user of Bitbucket Data Center.
        let name = match self {
            Self::BitbucketDataCenter => name.strip_prefix('~').unwrap_or(name),
            Self::Github | Self::Gitlab | Self::Bitbucket | Self::AzureDevops => name,
        };
        let plain = |part: &str| {
            let has_spaces = self == Self::AzureDevops;
            let allowed = |c: char| {
                c.is_ascii_alphanumeric() || "-_.".contains(c) || (has_spaces && c == ' ')
            };
            !part.is_empty() && !["..", "."].contains(&part) && part.chars().all(allowed)
        };
        let parts: Vec<&str> = name.split('/').collect();
        // Groups of GitLab are nested.
        let is_length = parts.len() == 2 || (self == Self::Gitlab && parts.len() > 2);
        is_length && parts.iter().all(|part| plain(part))
    }
}

/// Returns a token of Bitbucket: with a user, it is the password of that user.
fn bitbucket_token(secret: &str) -> Token {
    let user = variable("BITBUCKET_USER");
    user.map_or_else(|| Token::bearer(secret), |user| Token::basic(&user, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_is_a_plain_path() {
        let accepts = |host: ForgeHost, name| host.is_repository(name);
        assert!(accepts(ForgeHost::Github, "acme/fleet"));
        assert!(!accepts(ForgeHost::Github, "acme/infra/fleet"));
        assert!(accepts(ForgeHost::Gitlab, "acme/infra/fleet"));
        assert!(accepts(ForgeHost::AzureDevops, "Our Fleet/fleet"));
        assert!(accepts(ForgeHost::BitbucketDataCenter, "~ann/fleet"));
        assert!(!accepts(ForgeHost::Bitbucket, "~ann/fleet"));
        for host in [ForgeHost::Github, ForgeHost::Gitlab, ForgeHost::Bitbucket] {
            for bad in ["fleet", "a/..", "a/b?c", "a/b c", "a//b", "a/b#c"] {
                assert!(!accepts(host, bad), "{host:?} {bad}");
            }
        }
    }

    #[test]
    fn named_host_counts() {
        for host in [ForgeHost::Gitlab, ForgeHost::Bitbucket, ForgeHost::AzureDevops] {
            assert_eq!(ForgeHost::choose(Some(host)), host);
        }
    }
}
