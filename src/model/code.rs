//! Stable codes of causes: why pods are unschedulable, why pods are not counted, and classes of
//! problems.
//!
//! Codes are part of plans and of the reference page `errors.md`. Their words may change, the codes
//! do not.

use std::fmt;

/// Declares the codes with their cause and remedy.
macro_rules! codes {
    ($($variant:ident $code:literal $cause:literal $remedy:literal;)+) => {
        /// A stable code of a cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = concat!("The code `", $code, "`.")] $variant,)+
        }

        impl Code {
            /// All codes, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the code as plans and messages write it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// Returns the cause as one sentence.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$variant => $cause,)+ }
            }

            /// Returns the remedy as one sentence.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)+ }
            }
        }
    };
}

codes! {
    ChartNotRendered "chart-not-rendered"
        "A Helm chart was not rendered, so its pods are not counted."
        "Correct the cause that the plan names: `fleetwright sources update` pins charts from elsewhere. Or leave the file out of spec.sources.";
    KustomizationNotRendered "kustomization-not-rendered"
        "A kustomization was not rendered: pods of its files count as written there, without its patches, images and namespace."
        "Correct the cause that the plan names, or leave the kustomization out of spec.sources.";
    ApplicationNotRendered "application-not-rendered"
        "An Argo CD application was not rendered, so its pods are not counted."
        "Correct the cause that the plan names, or add the paths of its manifests to spec.sources.";
    SourceNotRendered "source-not-rendered"
        "A source of fleetwright.yaml was not rendered, so its pods are not counted."
        "Correct the cause that the plan names, or remove the source from spec.sources.";
    SizeUnknown "size-unknown"
        "An object declares pods whose number or size cannot be read."
        "Correct the cause that the plan names, or state the pods of a custom resource with `assume` in spec.sources.";
    KindNotRead "kind-not-read"
        "Objects have a custom kind that is not known, and pods that their controllers make are not counted."
        "If they make pods, state the number with `assume` in spec.sources.";
    TooSmall "too-small"
        "No permitted node has enough of a resource for one pod."
        "Permit larger instance types in the NodePool, or lower the request.";
    Taint "taint"
        "The nodes have a taint that the pod does not tolerate."
        "Add a toleration to the pod, or use another NodePool.";
    WrongZone "wrong-zone"
        "The pod requires a zone in which the NodePool launches no nodes."
        "Permit the zone in the NodePool, or remove the requirement from the pod.";
    WrongLabel "wrong-label"
        "The pod requires a label that nodes of the NodePool do not have."
        "Add the label to the NodePool, or remove the requirement from the pod.";
    TopologySpread "topology-spread"
        "One more pod would exceed maxSkew of a topology spread constraint."
        "Permit more topology domains, raise maxSkew, or use ScheduleAnyway.";
    PodAffinity "pod-affinity"
        "No pod that the required pod affinity selects runs in the topology domain."
        "Deploy the selected pods there, or use preferred affinity.";
    PodAntiAffinity "pod-anti-affinity"
        "A required pod anti-affinity excludes the topology domain."
        "Permit more topology domains, or use preferred anti-affinity.";
    HostPort "host-port"
        "Another pod binds the same host port on each such node."
        "Use another host port.";
    VolumeElsewhere "volume-elsewhere"
        "A volume is reachable only from nodes that the NodePool does not launch."
        "Permit the zone of the volume in the NodePool.";
    VolumeNotReady "volume-not-ready"
        "The location of a volume is unknown, because its claim is not bound."
        "Create the PersistentVolume, or give the claim a storage class that provisions one.";
    LimitReached "limit-reached"
        "The NodePool or group has reached its limits."
        "Raise the limits.";
    LimitUntilApplied "limit-until-applied"
        "The limits are reached until nodes that this plan removes are terminated."
        "Apply this plan, then make a new one.";
    ReservationFull "reservation-full"
        "The capacity reservation has no unused instance."
        "Enlarge the reservation, or permit other capacity types.";
    FixedSize "fixed-size"
        "The NodePool has a fixed number of nodes."
        "Raise `replicas` of the NodePool.";
    Excluded "excluded"
        "EC2 recently had insufficient capacity for the offering."
        "Wait for the next try, or permit more instance types and zones.";
    MinValues "min-values"
        "The NodePool requires more distinct values (minValues) than are available."
        "Lower minValues, or permit more values.";
    MaxPrice "max-price"
        "The spot price exceeds the maximum price of the group."
        "Raise the maximum price.";
    LeftOver "left-over"
        "In some arrival order, kube-scheduler finds no node for a pod."
        "Relax the constraints of the workload, or apply the plan and make a new one.";
    TooManyLabels "too-many-labels"
        "Pods request more combinations of open labels than are tried."
        "State the label values in the NodePool.";
    TooManyPodRules "too-many-pod-rules"
        "The rules of a workload about other pods select more workloads than one plan considers."
        "Select fewer workloads in podAffinity and podAntiAffinity.";
    NodeClassMissing "node-class-missing"
        "A NodePool uses a node class that is not in the repository."
        "Add the node class, or correct the reference of the NodePool.";
    NoOffering "no-offering"
        "No instance type, zone and capacity type satisfies all requirements of a NodePool."
        "Correct the requirements that the message names.";
    PoolUnusable "pool-unusable"
        "A NodePool or group launches no nodes, for the reason that the message names."
        "Correct that reason.";
    OtherScheduler "other-scheduler"
        "Another scheduler than default-scheduler schedules the pod."
        "Remove schedulerName, or declare its nodes in a separate NodePool.";
    EksAutoMode "eks-auto-mode"
        "A NodePool of EKS Auto Mode may run the pod, and no other NodePool admits it."
        "Leave the pod to EKS Auto Mode; its nodes are not planned.";
    Gated "gated"
        "The pod has scheduling gates."
        "Remove the gates; until then, the pod needs no node.";
    ResourceClaims "resource-claims"
        "The pod claims devices (DRA) that are not known, or in a way that is not planned."
        "Claim a number of whole devices by a ResourceClaimTemplate, or request an extended resource.";
    NamesItsNode "names-its-node"
        "The pod names a node that does not exist or has no room."
        "Remove nodeName, and select nodes by labels.";
    Fargate "fargate"
        "A Fargate profile selects the pod, and Fargate cannot run it."
        "Change the pod, or the selectors of the profile.";
    LeftOut "left-out"
        "The planned node is excluded by --target or --exclude."
        "Plan without --target and --exclude.";
    Unfit "unfit"
        "A filter of kube-scheduler rejects the node for another reason."
        "Read the detail of the message.";
    InvalidYaml "invalid-yaml"
        "A file or a part of it is not valid YAML or JSON."
        "Correct the line that the message names.";
    DuplicateKey "duplicate-key"
        "A mapping has the same key twice."
        "Remove one of the two.";
    DuplicateObject "duplicate-object"
        "An object is declared twice, with different content."
        "Remove one of the two, or list the directories of this cluster in spec.sources.";
    UnsupportedVersion "unsupported-version"
        "An object has a kind or an API version that no API server serves."
        "Write the kind or the API version that the hint names.";
    RemovedVersion "removed-version"
        "An object has an API version that Kubernetes has removed."
        "Write the API version that the message names, unless the cluster is that old.";
    InvalidName "invalid-name"
        "An object or its namespace has a name that the API server refuses."
        "Write a name of the form that the hint states.";
    UnknownField "unknown-field"
        "An object has a field that its kind does not have."
        "Correct the spelling of the field, or remove it.";
    FieldMissing "field-missing"
        "An object lacks a field that its kind requires."
        "Add the field.";
    FieldRenamed "field-renamed"
        "A field of fleetwright.yaml has its former name."
        "Rename the field, because a later version does not read the former name.";
    WrongType "wrong-type"
        "A value has the wrong type, such as a number in place of a string."
        "Write a value of the type that the message names.";
    InvalidQuantity "invalid-quantity"
        "A value is not a quantity of Kubernetes."
        "Write a quantity, such as 500m or 2Gi.";
    InvalidDuration "invalid-duration"
        "A value is not a duration."
        "Write a duration, such as 30s, 5m or 720h.";
    InvalidChoice "invalid-choice"
        "A value is not one of the permitted values."
        "Write one of the values that the message lists.";
    PlaceholderUnresolved "placeholder-unresolved"
        "A manifest has a placeholder without a value."
        "Add the value under `vars` of the source in fleetwright.yaml.";
    TemplateNotRendered "template-not-rendered"
        "A manifest has a template expression that is not rendered."
        "Render the template, and plan its output.";
    ReferenceMissing "reference-missing"
        "An object refers to another object that is not in the repository."
        "Add the object, or correct the reference.";
    InstanceTypeUnknown "instance-type-unknown"
        "A NodePool requires an instance type that is not known."
        "Correct the name of the instance type.";
    OverlayConflict "overlay-conflict"
        "Two NodeOverlays of the same weight set different values."
        "Raise `spec.weight` of one of them.";
    SeveralClusters "several-clusters"
        "The repository seems to hold several clusters, which are read as one."
        "List the directory of this cluster under spec.sources.";
    SeveralOverlays "several-overlays"
        "Overlays that exclude each other are read as one cluster."
        "Choose one with `fleetwright init --name`, or list it under spec.sources.";
    SeveralDestinations "several-destinations"
        "Argo CD delivers to several clusters, and the settings do not say which is this one."
        "Choose one with `fleetwright init --destination`, or set spec.delivery.clusters.";
    NoPool "no-pool"
        "Pods need nodes, and no file declares a NodePool or a node group."
        "Declare one, or export those of the cluster into the repository.";
    CommitNotTrusted "commit-not-trusted"
        "A commit has no valid signature of a declared signer."
        "Sign the commit, or declare the signer in spec.signers.";
    AdmissionRejected "admission-rejected"
        "The API server rejects the pods, because of a LimitRange or of the pod itself."
        "Change the resources of the pods, or the LimitRange.";
    AutoscalerConflict "autoscaler-conflict"
        "Two autoscalers change the same workload."
        "Remove one of them, or let them use different resources.";
    ReplicasOverridden "replicas-overridden"
        "A workload states its replicas, and an autoscaler changes them."
        "Remove `replicas` from the workload.";
    RequestMissing "request-missing"
        "A container has no request for CPU or memory."
        "Set requests, because the pod is scheduled as if it needed none.";
    BudgetBlocksDrain "budget-blocks-drain"
        "A PodDisruptionBudget permits no eviction, so the node of the pods cannot be drained."
        "Permit one unavailable pod, or select each pod by one budget only.";
    PriceMissing "price-missing"
        "A price is not known."
        "Plan with --world live, or treat the cost as a lower bound.";
    PriceEstimated "price-estimated"
        "List prices of another region are used."
        "Run `fleetwright catalog prices` in the directory of fleetwright.yaml, or plan with --world live.";
    ZonesAssumed "zones-assumed"
        "Zone IDs are assumed, and may differ in the account."
        "State the zones with their IDs in spec.cluster.zones.";
    QuotaExceeded "quota-exceeded"
        "The launches of the plan would exceed a quota of the account."
        "Request an increase of the quota.";
    StaleCordon "stale-cordon"
        "A node is still cordoned after the apply or interruption that cordoned it."
        "Uncordon the node with the command that the hint names.";
    ObjectUnreadable "object-unreadable"
        "An object of the cluster cannot be understood, so the nodes that it may need stay."
        "Correct the object, or report it if the API server accepts it for good reason.";
    DuplicateNode "duplicate-node"
        "An instance has registered as two nodes."
        "Delete the node that the message names.";
    AddressUnknown "address-unknown"
        "An address of --target, --exclude or --replace matches no row."
        "Correct the address.";
    PlanRuleBroken "plan-rule-broken"
        "The plan breaks a rule of its own check, which is a defect of Fleetwright."
        "Report the defect with the plan.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Code;

    #[test]
    fn codes_are_unique_kebab_words() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        let is_kebab = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(names.iter().all(|name| is_kebab(name)), "{names:?}");
    }
}
