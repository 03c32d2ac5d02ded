//! Arguments of `bootstrap`: the cluster, and what its templates declare.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum BootstrapArgs {
    #[command(about = "Write roles, queue and access as CloudFormation or Terraform")]
    Aws(BootstrapAwsArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is applied, and no service is called. The next steps are printed to stderr.

Examples:
  fleetwright bootstrap aws --cluster prod-eu1 --ci github --repository acme/fleet --out aws
  fleetwright bootstrap aws --cluster prod-eu1 > fleetwright.template.json
  fleetwright bootstrap aws --cluster prod-eu1 --identity irsa \\
    --oidc-provider oidc.eks.eu-west-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF")]
pub(in crate::cli) struct BootstrapAwsArgs {
    /// Name of the EKS cluster
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) cluster: String,
    /// Prefix of the role names [default: fleetwright-CLUSTER]
    #[arg(long, value_name = "PREFIX")]
    pub(in crate::cli) prefix: Option<String>,
    /// How the pods of the controller get their role
    #[arg(long, value_enum, value_name = "WAY", default_value_t = IdentityArg::PodIdentity)]
    pub(in crate::cli) identity: IdentityArg,
    /// OIDC provider of the cluster, for --identity irsa
    ///
    /// It is cluster.identity.oidc.issuer of `aws eks describe-cluster`.
    #[arg(long, value_name = "HOST/PATH", required_if_eq("identity", "irsa"))]
    pub(in crate::cli) oidc_provider: Option<String>,
    /// Add the roles of CI jobs, one to plan and one to apply
    #[arg(long, value_enum, value_name = "CI", requires = "repository")]
    pub(in crate::cli) ci: Option<CiArg>,
    /// Repository of the CI jobs, as OWNER/NAME or GROUP/PROJECT
    ///
    /// On GitHub, a repository created, renamed or transferred since 15 July 2026, or opted in, has
    /// IDs in its tokens: `OWNER@OWNER_ID/NAME@REPOSITORY_ID`. `gh api repos/OWNER/NAME` shows them
    /// as `owner.id` and `id`.
    #[arg(long, value_name = "REPOSITORY", requires = "ci")]
    pub(in crate::cli) repository: Option<String>,
    /// Branch whose commits are applied
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub(in crate::cli) branch: String,
    /// Host of GitLab
    #[arg(long, value_name = "HOST", default_value = "gitlab.com")]
    pub(in crate::cli) gitlab_host: String,
    /// Also allow this to the controller and to CI jobs that apply (repeatable)
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(in crate::cli) allow: Vec<AllowArg>,
    /// Also let nodes have this existing role, such as that of Karpenter (repeatable)
    #[arg(long = "node-role", value_name = "NAME")]
    pub(in crate::cli) node_roles: Vec<String>,
    /// Format [default: cloudformation; with --out both]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(in crate::cli) format: Option<TemplateFormatArg>,
    /// Write the files to this directory instead of stdout, and fleetwright.rbac.yaml for CI jobs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum IdentityArg {
    /// EKS Pod Identity
    PodIdentity,
    /// IAM roles for service accounts, such as on Fargate
    Irsa,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum CiArg {
    /// Jobs of GitHub Actions
    Github,
    /// Jobs of GitLab CI/CD
    Gitlab,
}

/// A permission that is not needed after this set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(in crate::cli) enum AllowArg {
    /// Tag instances of Karpenter for `adopt`
    Adoption,
    /// Create instance profiles for the roles of node classes
    InstanceProfiles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(in crate::cli) enum TemplateFormatArg {
    #[value(help = "A template of CloudFormation")]
    Cloudformation,
    /// A configuration of Terraform, in its JSON syntax
    Terraform,
}
