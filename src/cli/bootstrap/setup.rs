//! What an account needs for one cluster, independent of the syntax of a template.

use serde_json::{Map, Value as Json};

use super::policies::{self, policy};
use super::queue;
use crate::cli::args::AllowArg;
use crate::cli::error::CliError;
use crate::cli::settings::{BootstrapSettings, CiHost, CiJobs, ControllerIdentity, QUEUE_PREFIX};

/// Policies of AWS that nodes need: to join, for pod addresses, to pull images, and for sessions of
/// Systems Manager.
const NODE_POLICIES: [&str; 4] = [
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
];

/// Namespace and name of the service account of the controller, which its trust policies name.
pub(super) const SERVICE_ACCOUNT: (&str, &str) = ("fleetwright", "fleetwright");

/// Tag by which node classes of Karpenter's tutorials select subnets and security groups.
pub(super) const DISCOVERY_TAG: &str = "karpenter.sh/discovery";

/// Placeholder of the node role in policies.
const NODE_ROLE: &str = "${NODE_ROLE}";

/// Host of the OIDC provider of GitHub Actions.
const GITHUB_PROVIDER: &str = "token.actions.githubusercontent.com";

/// Roles, providers and queue of one cluster.
pub(super) struct Setup {
    pub(super) cluster: String,
    pub(super) roles: Vec<Role>,
    /// True if EKS Pod Identity gives the controller its role.
    pub(super) pod_identity: bool,
    pub(super) providers: Vec<OidcProvider>,
    /// Name of the interruption queue.
    pub(super) queue_name: String,
    /// Resources of the interruption queue, as `CloudFormation` declares them.
    pub(super) queue: Map<String, Json>,
    /// Roles of nodes that exist already, which node classes may name.
    pub(super) more_node_roles: Vec<String>,
    /// True if the subjects of CI tokens may have a form that the trust policies do not expect.
    pub(super) names_github_repository: bool,
}

/// An IAM role.
pub(super) struct Role {
    pub(super) id: RoleId,
    pub(super) name: String,
    /// Trust policy.
    pub(super) trust: Json,
    /// Policies of its own, by name.
    pub(super) policies: Vec<(&'static str, Json)>,
    /// Policies of AWS, by name.
    pub(super) managed: &'static [&'static str],
    pub(super) access: ClusterAccess,
}

/// The use of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoleId {
    Node,
    Controller,
    Plan,
    Apply,
}

impl RoleId {
    /// Returns the identifier in Terraform, which is also the suffix of the role name.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Controller => "controller",
            Self::Plan => "plan",
            Self::Apply => "apply",
        }
    }

    /// Returns the beginning of identifiers in `CloudFormation`.
    pub(super) fn logical_id(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Controller => "Controller",
            Self::Plan => "Plan",
            Self::Apply => "Apply",
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Node => "Nodes that Fleetwright launches",
            Self::Controller => "Controller of Fleetwright",
            Self::Plan => "CI jobs that plan",
            Self::Apply => "CI jobs that apply",
        }
    }
}

/// How the cluster admits a role.
pub(super) enum ClusterAccess {
    /// As a node.
    Node,
    /// As a member of a Kubernetes group.
    Group(&'static str),
    /// By the service account of its pods.
    ServiceAccount,
}

/// An OIDC provider that exists once in an account.
pub(super) struct OidcProvider {
    pub(super) id: ProviderId,
    /// Host and path.
    pub(super) host: String,
}

/// The issuer of OIDC tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderId {
    Cluster,
    Ci,
}

impl ProviderId {
    /// Returns the identifier in Terraform.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Ci => "ci",
        }
    }

    /// Returns the beginning of identifiers in `CloudFormation`.
    pub(super) fn logical_id(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Ci => "Ci",
        }
    }
}

impl Setup {
    /// # Errors
    /// Fails if an embedded policy cannot be read, which a test excludes.
    pub(super) fn from_settings(settings: &BootstrapSettings) -> Result<Self, CliError> {
        let names = Names { settings };
        let mut roles = vec![names.node_role()?, names.controller_role()?];
        let mut providers = Vec::new();
        let pod_identity = match &settings.identity {
            ControllerIdentity::PodIdentity => true,
            ControllerIdentity::Irsa { provider } => {
                let (id, host) = (ProviderId::Cluster, provider.clone());
                providers.push(OidcProvider { id, host });
                false
            }
        };
        if let Some(jobs) = &settings.ci {
            roles.extend(names.ci_roles(jobs)?);
            let host = match &jobs.host {
                CiHost::Github => GITHUB_PROVIDER.to_owned(),
                CiHost::Gitlab { host } => host.clone(),
            };
            providers.push(OidcProvider { id: ProviderId::Ci, host });
        }
        // Karpenter's queue has the name of the cluster.
        let queue_name = format!("{QUEUE_PREFIX}{}", settings.cluster);
        let queue = queue::resources(&queue_name)?;
        let of_github = settings.ci.as_ref().filter(|jobs| jobs.host == CiHost::Github);
        Ok(Self {
            cluster: settings.cluster.clone(),
            roles,
            pod_identity,
            providers,
            queue_name,
            queue,
            more_node_roles: settings.node_roles.clone(),
            names_github_repository: of_github.is_some_and(|jobs| !jobs.repository.contains('@')),
        })
    }

    /// Returns the name of a role, if the set-up has it.
    pub(super) fn role_name(&self, id: RoleId) -> Option<&str> {
        self.roles.iter().find(|role| role.id == id).map(|role| role.name.as_str())
    }

    /// Returns whether CI jobs have roles.
    pub(super) fn has_ci(&self) -> bool {
        self.role_name(RoleId::Apply).is_some()
    }
}

/// The names of one set-up, for its policies.
struct Names<'s> {
    settings: &'s BootstrapSettings,
}

impl Names<'_> {
    fn role_name(&self, id: RoleId) -> String {
        format!("{}-{}", self.settings.prefix, id.as_str())
    }

    /// Returns a policy of `deploy/aws` with the names of this set-up.
    fn policy(&self, text: &str, more: &[(&str, &str)]) -> Result<Json, CliError> {
        let node_role = self.role_name(RoleId::Node);
        let mut values = vec![("CLUSTER", &*self.settings.cluster), ("NODE_ROLE", &*node_role)];
        values.extend_from_slice(more);
        // Before the values are filled in, because each further role repeats the resource.
        let text = self.with_more_node_roles(text)?;
        policy(&text, &values)
    }

    /// Returns a policy in which each statement about the node role is about the further node roles
    /// as well.
    fn with_more_node_roles(&self, text: &str) -> Result<String, CliError> {
        if self.settings.node_roles.is_empty() {
            return Ok(text.to_owned());
        }
        let mut policy: Json = serde_json::from_str(text).map_err(CliError::new)?;
        for statement in policy["Statement"].as_array_mut().into_iter().flatten() {
            let Some(resource) = statement["Resource"].as_str() else { continue };
            let Some(before) = resource.strip_suffix(NODE_ROLE) else { continue };
            let more = self.settings.node_roles.iter().map(|name| format!("{before}{name}"));
            let all: Json = std::iter::once(resource.to_owned()).chain(more).collect();
            statement["Resource"] = all;
        }
        Ok(policy.to_string())
    }

    fn node_role(&self) -> Result<Role, CliError> {
        Ok(Role {
            id: RoleId::Node,
            name: self.role_name(RoleId::Node),
            trust: self.policy(policies::TRUST_NODE, &[])?,
            policies: Vec::new(),
            managed: &NODE_POLICIES,
            access: ClusterAccess::Node,
        })
    }

    fn controller_role(&self) -> Result<Role, CliError> {
        let trust = match &self.settings.identity {
            ControllerIdentity::PodIdentity => self.policy(policies::TRUST_POD_IDENTITY, &[])?,
            ControllerIdentity::Irsa { provider } => {
                self.policy(policies::TRUST_IRSA, &[("OIDC_PROVIDER", provider)])?
            }
        };
        Ok(Role {
            id: RoleId::Controller,
            name: self.role_name(RoleId::Controller),
            trust,
            policies: self.writing_policies("controller", policies::CONTROLLER)?,
            managed: &[],
            access: ClusterAccess::ServiceAccount,
        })
    }

    fn ci_roles(&self, jobs: &CiJobs) -> Result<[Role; 2], CliError> {
        let (plan, apply, host) = match &jobs.host {
            CiHost::Github => (policies::TRUST_GITHUB_PLAN, policies::TRUST_GITHUB_APPLY, ""),
            CiHost::Gitlab { host } => {
                (policies::TRUST_GITLAB_PLAN, policies::TRUST_GITLAB_APPLY, host.as_str())
            }
        };
        let (repository, branch) = (jobs.repository.as_str(), jobs.branch.as_str());
        let values = [("REPOSITORY", repository), ("BRANCH", branch), ("GITLAB_HOST", host)];
        let plan = Role {
            id: RoleId::Plan,
            name: self.role_name(RoleId::Plan),
            trust: self.policy(plan, &values)?,
            policies: vec![("plan", self.policy(policies::PLAN, &[])?)],
            managed: &[],
            access: ClusterAccess::Group("fleetwright-plan"),
        };
        let apply = Role {
            id: RoleId::Apply,
            name: self.role_name(RoleId::Apply),
            trust: self.policy(apply, &values)?,
            policies: self.writing_policies("apply", policies::APPLY)?,
            managed: &[],
            access: ClusterAccess::Group("fleetwright-apply"),
        };
        Ok([plan, apply])
    }

    /// Returns the policy of adoption for programs. It removes no tags: only the way back does that,
    /// by hand.
    fn adoption(&self) -> Result<Json, CliError> {
        let mut policy = self.policy(policies::ADOPT, &[])?;
        if let Some(statements) = policy["Statement"].as_array_mut() {
            statements.retain(|statement| statement["Action"] != "ec2:DeleteTags");
        }
        Ok(policy)
    }

    /// Returns the policies of a role that changes the account: its main policy, and those that
    /// `--allow` adds.
    fn writing_policies(
        &self,
        name: &'static str,
        text: &str,
    ) -> Result<Vec<(&'static str, Json)>, CliError> {
        let mut all = vec![(name, self.policy(text, &[])?)];
        for allowed in &self.settings.allow {
            all.push(match allowed {
                AllowArg::Adoption => ("adoption", self.adoption()?),
                AllowArg::InstanceProfiles => {
                    ("instance-profiles", self.policy(policies::INSTANCE_PROFILES, &[])?)
                }
            });
        }
        Ok(all)
    }
}
