//! Rules by which the API server refuses an object that is otherwise well formed: its name, its
//! namespace, and an API version that Kubernetes has removed.
//!
//! They hold for files alone. The API server has accepted the objects of a cluster.

use super::classify::ObjectKind;
use super::decode::{Field, FieldMap, shorten};
use super::object_meta::ObjectScope;
use crate::model::code::Code;
use crate::model::desired::Severity;
use crate::model::ids::WorkloadKind;

/// Maximum length of a DNS label, and of a label of Kubernetes.
const LABEL_MAX: usize = 63;
/// Maximum length of a DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;
/// Maximum length of the name of a `CronJob`: the names of its jobs are 11 characters longer.
const CRON_JOB_MAX: usize = 52;

/// API versions that Kubernetes has removed, with the version that removed them and their successor.
const REMOVED: [(&str, &str, &str); 13] = [
    ("apps/v1beta1", "1.16", "apps/v1"),
    ("apps/v1beta2", "1.16", "apps/v1"),
    ("autoscaling/v2beta1", "1.25", "autoscaling/v2"),
    ("autoscaling/v2beta2", "1.26", "autoscaling/v2"),
    ("batch/v1beta1", "1.25", "batch/v1"),
    ("batch/v2alpha1", "1.21", "batch/v1"),
    ("extensions/v1beta1", "1.16", "apps/v1"),
    ("node.k8s.io/v1alpha1", "1.25", "node.k8s.io/v1"),
    ("node.k8s.io/v1beta1", "1.25", "node.k8s.io/v1"),
    ("policy/v1beta1", "1.25", "policy/v1"),
    ("scheduling.k8s.io/v1alpha1", "1.22", "scheduling.k8s.io/v1"),
    ("scheduling.k8s.io/v1beta1", "1.22", "scheduling.k8s.io/v1"),
    ("storage.k8s.io/v1beta1", "1.22", "storage.k8s.io/v1"),
];

/// The form of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameForm {
    /// Labels of DNS, joined by points.
    Subdomain { max: usize },
    /// One label of DNS.
    Label,
}

impl NameForm {
    fn max(self) -> usize {
        match self {
            Self::Subdomain { max } => max,
            Self::Label => LABEL_MAX,
        }
    }

    fn is_met(self, name: &str) -> bool {
        match self {
            Self::Subdomain { .. } => is_subdomain(name),
            Self::Label => is_label(name),
        }
    }
}

/// Reports what the API server refuses of an object of a file. Its `metadata` was read before, so
/// that its texts have no unknown placeholder.
pub(super) fn check(kind: ObjectKind, root: &FieldMap<'_>) {
    // eksctl reads a ClusterConfig, and EKS permits other names.
    if kind == ObjectKind::ClusterConfig {
        return;
    }
    check_version(root);
    let Some(metadata) = root.get("metadata") else { return };
    let Some(map) = metadata.map() else { return };
    if let Some(form) = name_form(kind, root) {
        match (map.get("name"), map.get("generateName")) {
            (Some(name), _) => check_name(&name, form),
            (None, Some(prefix)) => check_prefix(&prefix, form),
            (None, None) => {}
        }
    }
    let is_own = root.field.scope.namespaces.target.is_none();
    if kind.scope() == ObjectScope::Namespaced
        && is_own
        && let Some(namespace) = map.get("namespace")
    {
        check_name(&namespace, NameForm::Label);
    }
}

/// Warns of a removed version. An old cluster may still serve it.
fn check_version(root: &FieldMap<'_>) {
    let Some(field) = root.get("apiVersion") else { return };
    let stated = field.node.text().unwrap_or_default();
    let Some((_, release, successor)) = REMOVED.iter().find(|(old, ..)| *old == stated) else {
        return;
    };
    // Problems of one cause share a hint, so the successor is in the message.
    field.report_problem(
        Severity::Warning,
        Some(Code::RemovedVersion),
        format_args!(
            "is `{stated}`, which Kubernetes {release} and later do not serve; write apiVersion: \
             {successor}"
        ),
        None,
    );
}

/// Returns the form of names of this kind. `None` if the API server takes any name.
fn name_form(kind: ObjectKind, root: &FieldMap<'_>) -> Option<NameForm> {
    let form = match kind {
        ObjectKind::DisruptionBudget => return None,
        // The name of a StatefulSet is in the host names of its pods.
        ObjectKind::Namespace | ObjectKind::Workload(WorkloadKind::StatefulSet) => NameForm::Label,
        ObjectKind::Workload(WorkloadKind::CronJob) => NameForm::Subdomain { max: CRON_JOB_MAX },
        // The pods of a Job have its name as a label, unless its selector is written by hand.
        ObjectKind::Workload(WorkloadKind::Job) if !has_manual_selector(root) => {
            NameForm::Subdomain { max: LABEL_MAX }
        }
        ObjectKind::Workload(_)
        | ObjectKind::PriorityClass
        | ObjectKind::RuntimeClass
        | ObjectKind::LimitRange
        | ObjectKind::ClaimTemplate
        | ObjectKind::DeviceClass
        | ObjectKind::ResourceQuota
        | ObjectKind::StorageClass
        | ObjectKind::PersistentVolume
        | ObjectKind::PersistentVolumeClaim
        | ObjectKind::NodePool(_)
        | ObjectKind::NodeClass(_)
        | ObjectKind::Provisioner
        | ObjectKind::NodeOverlay
        | ObjectKind::NodeTemplate
        | ObjectKind::ClusterConfig
        | ObjectKind::FargateProfile
        | ObjectKind::HorizontalScaler
        | ObjectKind::VerticalScaler
        | ObjectKind::EventScaler
        | ObjectKind::QueueScaler
        | ObjectKind::HttpScaler
        | ObjectKind::WatermarkScaler
        | ObjectKind::Parameters
        | ObjectKind::ExpanderPriorities
        | ObjectKind::CapacityBuffer
        | ObjectKind::PodTemplate => NameForm::Subdomain { max: SUBDOMAIN_MAX },
    };
    Some(form)
}

fn has_manual_selector(job: &FieldMap<'_>) -> bool {
    let spec = job.get("spec").and_then(|spec| spec.map());
    spec.and_then(|spec| spec.get("manualSelector")?.boolean()) == Some(true)
}

fn check_name(field: &Field<'_>, form: NameForm) {
    let Some(name) = field.text().filter(|text| !text.is_empty()) else { return };
    if !form.is_met(&name) || name.len() > form.max() {
        report(field, form, &name);
    }
}

/// Checks the prefix of a generated name. The API server shortens it, appends letters and digits, and
/// replaces the last two characters of a prefix that ends in `-`.
/// Source: `k8s.io/apimachinery/pkg/api/validation`, `maskTrailingDash`.
fn check_prefix(field: &Field<'_>, form: NameForm) {
    let Some(prefix) = field.text().filter(|text| !text.is_empty()) else { return };
    let mut start = prefix.strip_suffix('-').map(str::chars);
    let masked = start.as_mut().and_then(|start| {
        start.next_back()?;
        Some(format!("{}a", start.as_str()))
    });
    if !form.is_met(masked.as_deref().unwrap_or(&prefix)) {
        report(field, form, &prefix);
    }
}

fn report(field: &Field<'_>, form: NameForm, name: &str) {
    let max = form.max();
    let allowed = match form {
        NameForm::Subdomain { .. } => "digits, `-` and `.`",
        NameForm::Label => "digits and `-`",
    };
    field.coded_error(
        Code::InvalidName,
        format_args!("is `{}`, a name that the API server refuses", shorten(name)),
        format!(
            "use at most {max} lowercase letters, {allowed}, with a letter or digit at both ends"
        ),
    );
}

/// Returns whether each part of a name is a label of DNS. Parts of a subdomain have no own maximum.
pub(super) fn is_subdomain(name: &str) -> bool {
    name.split('.').all(is_label)
}

fn is_label(name: &str) -> bool {
    let is_outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(|byte| is_outer(*byte))
        && bytes.last().is_some_and(|byte| is_outer(*byte))
        && bytes.iter().all(|byte| is_outer(*byte) || *byte == b'-')
}
