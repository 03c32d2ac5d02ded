//! Renders the user data with which an instance joins its cluster as the planned node. Labels,
//! taints and kubelet settings apply from its first heartbeat, without a controller that sets them
//! later.
//!
//! Each image family has its own format. User data of the node class is kept. Our settings override
//! it, because the plan depends on them.
//!
//! Source: nodeadm's `NodeConfig` (AL2023), the AMI's `bootstrap.sh` (AL2) and
//! `Start-EKSBootstrap.ps1` (Windows), Bottlerocket's settings reference.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value as Json, json};
use toml::{Table, Value as Toml};

use crate::model::desired::{AmiFamily, KubeletSettings, ReservedAmount};
use crate::model::ids::{LabelKey, Labels};
use crate::model::pod::{ResourceList, Taint};
use crate::model::shell::quoted;
use crate::model::units::{Bytes, MilliCpu};

/// The address of the cluster, as its nodes need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Name of the cluster.
    pub cluster: String,
    /// URL of the API server.
    pub url: String,
    /// Certificate authority in base64.
    pub authority: String,
    /// Service address range, such as `10.100.0.0/16`.
    pub service_cidr: String,
    /// Address of the cluster DNS.
    pub dns: String,
}

/// All settings of a node.
#[derive(Debug, Clone, Copy)]
pub struct BootstrapConfig<'a> {
    /// The cluster to join.
    pub endpoint: &'a ClusterEndpoint,
    /// Image family.
    pub family: AmiFamily,
    /// Kubelet settings.
    pub kubelet: &'a KubeletSettings,
    /// Labels of the node.
    pub labels: &'a Labels,
    /// Taints of the node, including startup taints.
    pub taints: &'a [Taint],
    /// True if instance-store disks hold the kubelet's data.
    pub raid0: bool,
    /// User data of the node class.
    pub custom: Option<&'a str>,
}

/// The user data of the node class is not TOML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("user data of the node class is not TOML, which Bottlerocket needs (line {line})")]
pub struct InvalidToml {
    line: usize,
}

impl BootstrapConfig<'_> {
    /// Returns the user data.
    ///
    /// # Errors
    /// Returns an error if the user data of a Bottlerocket node class is not TOML. The error does
    /// not quote it.
    pub fn user_data(&self) -> Result<String, InvalidToml> {
        match self.family {
            AmiFamily::Al2023 => Ok(self.nodeadm_config()),
            AmiFamily::Al2 | AmiFamily::Ubuntu => Ok(self.al2_bootstrap_script()),
            AmiFamily::Bottlerocket => self.bottlerocket_settings(),
            AmiFamily::Windows => Ok(self.windows_script()),
            AmiFamily::Custom => Ok(self.custom.unwrap_or_default().to_owned()),
        }
    }

    fn nodeadm_config(&self) -> String {
        let ClusterEndpoint { cluster, url, authority, service_cidr, dns } = self.endpoint;
        let mut config = kubelet_config(self.kubelet);
        config["clusterDNS"] = match &self.kubelet.cluster_dns[..] {
            [] => json!([dns]),
            own => json!(own),
        };
        let mut spec = json!({
            "cluster": {
                "name": cluster, "apiServerEndpoint": url, "certificateAuthority": authority,
                "cidr": service_cidr,
            },
            "kubelet": { "config": config, "flags": self.kubelet_flags() },
        });
        if self.raid0 {
            spec["instance"] = json!({ "localStorage": { "strategy": "RAID0" } });
        }
        // JSON is valid YAML and quotes its strings.
        let ours = json!({
            "apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec,
        });
        let mut parts = Vec::new();
        if let Some(custom) = self.custom {
            let kind = if custom.contains("kind: NodeConfig") && !custom.starts_with("#!") {
                NODE_CONFIG
            } else {
                SHELL
            };
            parts.push((kind, custom.to_owned()));
        }
        // The last part overrides earlier parts.
        parts.push((NODE_CONFIG, ours.to_string()));
        multipart(parts)
    }

    fn al2_bootstrap_script(&self) -> String {
        let ClusterEndpoint { cluster, url, authority, .. } = self.endpoint;
        let mut script = String::from("#!/bin/bash -xe\n");
        if self.raid0 {
            script.push_str("export LOCAL_DISKS=raid0\n");
        }
        let max_pods = self.kubelet.max_pods.map_or("", |_| " --use-max-pods false");
        let mut flags = self.kubelet_flags();
        flags.extend(kubelet_setting_flags(self.kubelet));
        let _ = writeln!(
            script,
            "/etc/eks/bootstrap.sh {} --apiserver-endpoint {} --b64-cluster-ca {} \
             --dns-cluster-ip {}{max_pods} --kubelet-extra-args {}",
            quoted(cluster),
            quoted(url),
            quoted(authority),
            quoted(&self.first_dns()),
            quoted(&flags.join(" ")),
        );
        match self.custom {
            None => script,
            Some(custom) => multipart(vec![(SHELL, custom.to_owned()), (SHELL, script)]),
        }
    }

    fn windows_script(&self) -> String {
        let ClusterEndpoint { cluster, url, authority, .. } = self.endpoint;
        let custom = self.custom.map(|text| format!("{text}\n")).unwrap_or_default();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut flags = self.kubelet_flags();
        flags.extend(kubelet_setting_flags(self.kubelet));
        format!(
            "<powershell>\n{custom}[string]$EKSBootstrapScriptFile = \
             \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n\
             & $EKSBootstrapScriptFile -EKSClusterName {} -APIServerEndpoint {} \
             -Base64ClusterCA {} -DNSClusterIP {} -KubeletExtraArgs {}\n</powershell>",
            quoted(cluster),
            quoted(url),
            quoted(authority),
            quoted(&self.first_dns()),
            quoted(&flags.join(" ")),
        )
    }

    /// Returns the first address of the cluster DNS: bootstrap scripts take one.
    fn first_dns(&self) -> String {
        let own = self.kubelet.cluster_dns.first();
        own.map_or_else(|| self.endpoint.dns.clone(), ToString::to_string)
    }

    fn bottlerocket_settings(&self) -> Result<String, InvalidToml> {
        let text = self.custom.unwrap_or_default();
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            InvalidToml { line: before.matches('\n').count() + 1 }
        })?;
        let ClusterEndpoint { cluster, url, authority, dns, .. } = self.endpoint;
        let mut ours = Table::new();
        for (key, value) in
            [("api-server", url), ("cluster-certificate", authority), ("cluster-name", cluster)]
        {
            ours.insert(key.to_owned(), value.as_str().into());
        }
        let dns = match &self.kubelet.cluster_dns[..] {
            [] => Toml::from(dns.as_str()),
            own => own.iter().map(ToString::to_string).collect::<Vec<_>>().into(),
        };
        ours.insert("cluster-dns-ip".to_owned(), dns);
        ours.extend(bottlerocket_scalars(self.kubelet));
        for (key, amounts) in [
            ("kube-reserved", &self.kubelet.kube_reserved),
            ("system-reserved", &self.kubelet.system_reserved),
        ] {
            insert_if_any(&mut ours, key, amount_texts(amounts));
        }
        for (key, entries) in [
            ("eviction-hard", threshold_texts(&self.kubelet.eviction_hard)),
            ("eviction-soft", threshold_texts(&self.kubelet.eviction_soft)),
            ("eviction-soft-grace-period", grace_period_texts(self.kubelet)),
        ] {
            insert_if_any(&mut ours, key, entries.into_iter());
        }
        let labels = node_labels(self.labels);
        insert_if_any(&mut ours, "node-labels", labels.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let mut taints = Table::new();
        for taint in self.taints {
            let value = Toml::from(format!("{}:{}", taint.value, effect_name(taint)));
            let of_key = taints.entry(taint.key.to_string()).or_insert(Toml::Array(Vec::new()));
            if let Toml::Array(values) = of_key {
                values.push(value);
            }
        }
        if !taints.is_empty() {
            ours.insert("node-taints".to_owned(), taints.into());
        }
        let settings: Table = [("kubernetes".to_owned(), ours.into())].into_iter().collect();
        merge_tables(
            &mut table,
            [("settings".to_owned(), Toml::Table(settings))].into_iter().collect(),
        );
        Ok(table.to_string())
    }

    /// Returns the kubelet flags that have no configuration file setting.
    fn kubelet_flags(&self) -> Vec<String> {
        let joined = |items: Vec<String>| (!items.is_empty()).then(|| items.join(","));
        let labels = node_labels(self.labels).map(|(key, value)| format!("{key}={value}"));
        let taints = self.taints.iter();
        let taints = taints.map(|t| format!("{}={}:{}", t.key, t.value, effect_name(t)));
        let labels = joined(labels.collect()).map(|all| format!("--node-labels={all}"));
        let taints = joined(taints.collect()).map(|all| format!("--register-with-taints={all}"));
        labels.into_iter().chain(taints).collect()
    }
}

const NODE_CONFIG: &str = "application/node.eks.aws";
const SHELL: &str = "text/x-shellscript; charset=\"us-ascii\"";

/// Returns the labels that a kubelet may set on its own node. Kubernetes reserves its own domains,
/// apart from a few, and sets their labels itself.
fn node_labels(labels: &Labels) -> impl Iterator<Item = (&str, &str)> {
    let own = |key: &LabelKey| {
        let domain = key.as_str().split_once('/').map_or("", |(domain, _)| domain);
        let is = |name: &str| {
            domain.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let allowed = is("node.kubernetes.io") || is("kubelet.kubernetes.io");
        let known = key.as_str() == "node.kubernetes.io/instance-type";
        (allowed && !known) || !(is("kubernetes.io") || is("k8s.io"))
    };
    labels
        .iter()
        .filter(move |(key, _)| own(key))
        .map(|(key, value)| (key.as_str(), value.as_str()))
}

fn kubelet_config(kubelet: &KubeletSettings) -> Json {
    let mut config = json!({});
    if let Some(max_pods) = kubelet.max_pods {
        config["maxPods"] = json!(max_pods);
    }
    if let Some(max_pods) = kubelet.pods_per_core {
        config["podsPerCore"] = json!(max_pods);
    }
    for (key, amounts) in
        [("kubeReserved", &kubelet.kube_reserved), ("systemReserved", &kubelet.system_reserved)]
    {
        if !amounts.is_empty() {
            config[key] = amount_texts(amounts).collect();
        }
    }
    for (key, entries) in [
        ("evictionHard", threshold_texts(&kubelet.eviction_hard)),
        ("evictionSoft", threshold_texts(&kubelet.eviction_soft)),
        ("evictionSoftGracePeriod", grace_period_texts(kubelet)),
    ] {
        if !entries.is_empty() {
            config[key] = entries.into_iter().collect();
        }
    }
    for (key, number) in [
        ("evictionMaxPodGracePeriod", kubelet.eviction_max_pod_grace_period),
        ("imageGCHighThresholdPercent", kubelet.image_gc_high_percent),
        ("imageGCLowThresholdPercent", kubelet.image_gc_low_percent),
    ] {
        if let Some(number) = number {
            config[key] = json!(number);
        }
    }
    if let Some(is_enforced) = kubelet.cpu_cfs_quota {
        config["cpuCFSQuota"] = json!(is_enforced);
    }
    config
}

/// Returns the settings of Bottlerocket that are single values.
fn bottlerocket_scalars(kubelet: &KubeletSettings) -> Table {
    let number = |key: &str, number: Option<u32>| {
        number.map(|number| (key.to_owned(), Toml::Integer(number.into())))
    };
    let text = |key: &str, number: Option<u32>| {
        number.map(|number| (key.to_owned(), Toml::String(number.to_string())))
    };
    let quota =
        kubelet.cpu_cfs_quota.map(|quota| ("cpu-cfs-quota-enforced".to_owned(), quota.into()));
    [
        number("max-pods", kubelet.max_pods),
        number("eviction-max-pod-grace-period", kubelet.eviction_max_pod_grace_period),
        text("image-gc-high-threshold-percent", kubelet.image_gc_high_percent),
        text("image-gc-low-threshold-percent", kubelet.image_gc_low_percent),
        quota,
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn threshold_texts(thresholds: &BTreeMap<String, ReservedAmount>) -> Vec<(String, String)> {
    thresholds.iter().map(|(signal, at)| (signal.clone(), threshold_text(*at))).collect()
}

fn grace_period_texts(kubelet: &KubeletSettings) -> Vec<(String, String)> {
    let periods = kubelet.eviction_soft_grace_period.iter();
    periods.map(|(signal, period)| (signal.clone(), format!("{}s", period.as_secs()))).collect()
}

/// Returns the same settings as flags, for images whose bootstrap script takes no configuration.
fn kubelet_setting_flags(kubelet: &KubeletSettings) -> Vec<String> {
    let list_flag = |flag: &str, between: &str, items: Vec<(String, String)>| {
        let items: Vec<String> =
            items.into_iter().map(|(key, value)| format!("{key}{between}{value}")).collect();
        (!items.is_empty()).then(|| format!("--{flag}={}", items.join(",")))
    };
    let flag = |flag: &str, value: Option<u32>| value.map(|value| format!("--{flag}={value}"));
    [
        flag("max-pods", kubelet.max_pods),
        flag("pods-per-core", kubelet.pods_per_core),
        flag("eviction-max-pod-grace-period", kubelet.eviction_max_pod_grace_period),
        flag("image-gc-high-threshold", kubelet.image_gc_high_percent),
        flag("image-gc-low-threshold", kubelet.image_gc_low_percent),
        kubelet.cpu_cfs_quota.map(|is_enforced| format!("--cpu-cfs-quota={is_enforced}")),
        list_flag("kube-reserved", "=", amount_texts(&kubelet.kube_reserved).collect()),
        list_flag("system-reserved", "=", amount_texts(&kubelet.system_reserved).collect()),
        list_flag("eviction-hard", "<", threshold_texts(&kubelet.eviction_hard)),
        list_flag("eviction-soft", "<", threshold_texts(&kubelet.eviction_soft)),
        list_flag("eviction-soft-grace-period", "=", grace_period_texts(kubelet)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn amount_texts(amounts: &ResourceList) -> impl Iterator<Item = (String, String)> {
    amounts.iter().map(|(name, amount)| {
        let is_cpu = name.as_str() == "cpu";
        let text = if is_cpu { MilliCpu(*amount).to_string() } else { Bytes(*amount).to_string() };
        (name.to_string(), text)
    })
}

fn threshold_text(reserved: ReservedAmount) -> String {
    match reserved {
        ReservedAmount::Bytes(bytes) => Bytes(bytes).to_string(),
        ReservedAmount::MilliPercent(share) if share % 1000 == 0 => format!("{}%", share / 1000),
        ReservedAmount::MilliPercent(share) => {
            let fraction = format!("{:03}", share % 1000);
            format!("{}.{}%", share / 1000, fraction.trim_end_matches('0'))
        }
    }
}

fn effect_name(taint: &Taint) -> &'static str {
    use crate::model::pod::TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    match taint.effect {
        NoSchedule => "NoSchedule",
        PreferNoSchedule => "PreferNoSchedule",
        NoExecute => "NoExecute",
    }
}

/// Joins parts into one MIME message. A part that is a MIME message already keeps its own header.
fn multipart(parts: Vec<(&str, String)>) -> String {
    let mut boundary = String::from("//");
    while parts.iter().any(|(_, text)| text.contains(&format!("--{boundary}"))) {
        boundary.push('=');
    }
    let mut out =
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{boundary}\"\n\n");
    for (kind, text) in parts {
        let header = match text.strip_prefix("MIME-Version: 1.0") {
            // A nested message keeps its own header.
            Some(_) => String::new(),
            None => format!("Content-Type: {kind}\n\n"),
        };
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let _ = write!(out, "--{boundary}\n{header}{text}{end}");
    }
    let _ = writeln!(out, "--{boundary}--");
    out
}

fn insert_if_any(table: &mut Table, key: &str, entries: impl Iterator<Item = (String, String)>) {
    let entries: Table = entries.map(|(key, value)| (key, Toml::from(value))).collect();
    if !entries.is_empty() {
        table.insert(key.to_owned(), entries.into());
    }
}

/// Merges `ours` into `theirs`: tables are merged, other values are replaced.
fn merge_tables(theirs: &mut Table, ours: Table) {
    for (key, value) in ours {
        match (theirs.get_mut(&key), value) {
            (Some(Toml::Table(theirs)), Toml::Table(ours)) => merge_tables(theirs, ours),
            (_, value) => {
                theirs.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::TaintEffect;
    use jiff::SignedDuration;

    fn endpoint() -> ClusterEndpoint {
        ClusterEndpoint {
            cluster: "prod".into(),
            url: "https://api.example".into(),
            authority: "Q0E=".into(),
            service_cidr: "10.100.0.0/16".into(),
            dns: "10.100.0.10".into(),
        }
    }

    fn render_user_data(family: AmiFamily, custom: Option<&str>) -> String {
        let labels: Labels = [
            ("team", "web"),
            ("kubernetes.io/arch", "amd64"),
            ("node.kubernetes.io/instance-type", "m5.large"),
            ("karpenter.sh/nodepool", "general"),
        ]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
        let taints = [Taint {
            key: "dedicated".into(),
            value: "it's".into(),
            effect: TaintEffect::NoSchedule,
        }];
        let kubelet = KubeletSettings {
            max_pods: Some(42),
            eviction_hard: [("memory.available".to_owned(), ReservedAmount::MilliPercent(7_500))]
                .into(),
            eviction_soft: [("nodefs.available".to_owned(), ReservedAmount::MilliPercent(12_000))]
                .into(),
            eviction_soft_grace_period: [(
                "nodefs.available".to_owned(),
                SignedDuration::from_secs(95),
            )]
            .into(),
            eviction_max_pod_grace_period: Some(61),
            image_gc_high_percent: Some(83),
            image_gc_low_percent: Some(71),
            cpu_cfs_quota: Some(false),
            cluster_dns: vec!["10.9.0.53".parse().expect("an address")],
            ..KubeletSettings::default()
        };
        let endpoint = endpoint();
        let config = BootstrapConfig {
            endpoint: &endpoint,
            family,
            kubelet: &kubelet,
            labels: &labels,
            taints: &taints,
            raid0: true,
            custom,
        };
        config.user_data().expect("user data")
    }

    #[test]
    fn user_data_has_cluster_labels_and_taints() {
        for family in [
            AmiFamily::Al2,
            AmiFamily::Al2023,
            AmiFamily::Bottlerocket,
            AmiFamily::Windows,
            AmiFamily::Ubuntu,
        ] {
            let text = render_user_data(family, None);
            for part in ["prod", "https://api.example", "Q0E=", "general", "dedicated", "42"] {
                assert!(text.contains(part), "{family:?} lacks {part}:\n{text}");
            }
            for part in ["7.5%", "12%", "95s", "61", "83", "71", "false", "10.9.0.53"] {
                assert!(text.contains(part), "{family:?} lacks {part}:\n{text}");
            }
            assert!(!text.contains("10.100.0.10"), "the node class names its own DNS: {family:?}");
            assert!(!text.contains("amd64"), "a kubelet may not set it: {family:?}");
            assert!(!text.contains("m5.large"), "the cloud sets it: {family:?}");
        }
        assert_eq!(render_user_data(AmiFamily::Custom, Some("own")), "own");
    }

    #[test]
    fn al2023_config_follows_custom_user_data() {
        let text = render_user_data(AmiFamily::Al2023, Some("#!/bin/sh\necho //\n"));
        let (script, ours) =
            (text.find("echo").expect("a script"), text.find("NodeConfig").expect("a config"));
        assert!(script < ours);
        let json = &text[text.find("{\"apiVersion").expect("JSON")..];
        let json = json.lines().next().expect("a line");
        let config: Json = serde_json::from_str(json).expect("JSON");
        assert_eq!(config["spec"]["kubelet"]["config"]["evictionHard"]["memory.available"], "7.5%");
        assert_eq!(config["spec"]["instance"]["localStorage"]["strategy"], "RAID0");
        assert_eq!(text.matches("\n--//").count(), 3, "two parts and the end:\n{text}");
    }

    #[test]
    fn mime_boundary_is_unique() {
        let text = render_user_data(AmiFamily::Al2023, Some("#!/bin/sh\n--//\n"));
        assert!(text.contains("boundary=\"//=\""), "{text}");
    }

    #[test]
    fn arguments_are_quoted_for_their_shell() {
        assert!(render_user_data(AmiFamily::Al2, None).contains("dedicated=it'\\''s:NoSchedule"));
        assert!(render_user_data(AmiFamily::Windows, None).contains("dedicated=it''s:NoSchedule"));
    }

    #[test]
    fn bottlerocket_settings_override_custom_ones() {
        let custom = "[settings.kubernetes]\nmax-pods = 7\nlog-level = 3\n[settings.host]\na = 1\n";
        let table: Table =
            render_user_data(AmiFamily::Bottlerocket, Some(custom)).parse().expect("TOML");
        let kubernetes = &table["settings"]["kubernetes"];
        assert_eq!(kubernetes["max-pods"].as_integer(), Some(42));
        assert_eq!(kubernetes["log-level"].as_integer(), Some(3));
        assert_eq!(kubernetes["node-taints"]["dedicated"][0].as_str(), Some("it's:NoSchedule"));
        assert_eq!(table["settings"]["host"]["a"].as_integer(), Some(1));
    }

    #[test]
    fn user_data_error_does_not_quote_it() {
        let (endpoint, kubelet) = (endpoint(), KubeletSettings::default());
        let config = BootstrapConfig {
            endpoint: &endpoint,
            family: AmiFamily::Bottlerocket,
            kubelet: &kubelet,
            labels: &Labels::new(),
            taints: &[],
            raid0: false,
            custom: Some("[settings]\npassword hunter2\n"),
        };
        let error = config.user_data().expect_err("no TOML").to_string();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
}
