//! Code review platforms as [`Forge`](crate::apply::ports::Forge)s: GitHub, GitLab, Bitbucket Cloud,
//! Bitbucket Data Center and Azure DevOps.
//!
//! The adapters know the API of their platform, and share one client with retries and rate limits.
//! They have no knowledge of plans. Invariants: the token is sent in one header only, over HTTPS, and
//! is in no error or debug text. Retries, waits and pages are bounded.

mod azure_devops;
mod bitbucket;
mod bitbucket_data_center;
mod client;
mod github;
mod gitlab;
#[cfg(test)]
mod test_server;

pub use azure_devops::AzureDevOps;
pub use bitbucket::Bitbucket;
pub use bitbucket_data_center::BitbucketDataCenter;
pub use client::{ForgeAddress, Token};
pub use github::GitHub;
pub use gitlab::GitLab;
