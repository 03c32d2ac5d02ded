//! What a machine is told at its first start, so that it joins its cluster as the node it was planned
//! to be: labels, taints and kubelet settings are there from its first heartbeat, and no controller
//! has to come by afterwards.
//!
//! Each family has a form of its own. What the node class says beside it is kept, and where both say
//! the same thing ours counts: the plan rests on it.
//!
//! Source: nodeadm's `NodeConfig` (AL2023), the AMI's `bootstrap.sh` (AL2) and `Start-EKSBootstrap.ps1`
//! (Windows), Bottlerocket's settings reference.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};
use toml::{Table, Value as Toml};

use crate::ids::{LabelKey, Labels};
use crate::manifest::{AmiFamily, KubeletSettings, Reserved};
use crate::pod::{Amounts, Taint};
use crate::units::{Bytes, MilliCpu};

/// Where the cluster is, as its machines need to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name of the cluster.
    pub cluster: String,
    /// URL of the API server.
    pub url: String,
    /// Certificate authority, in base64.
    pub authority: String,
    /// Addresses of services, such as `10.100.0.0/16`.
    pub service_cidr: String,
    /// Address of the cluster's DNS.
    pub dns: String,
}

/// Everything a machine is told.
#[derive(Debug, Clone, Copy)]
pub struct Boot<'a> {
    /// The cluster to join.
    pub endpoint: &'a Endpoint,
    /// The family of its image.
    pub family: AmiFamily,
    /// Kubelet settings.
    pub kubelet: &'a KubeletSettings,
    /// Labels of the node.
    pub labels: &'a Labels,
    /// Taints of the node, those that go at its start included.
    pub taints: &'a [Taint],
    /// Whether instance-store disks hold the kubelet's data.
    pub raid0: bool,
    /// What the node class says itself.
    pub custom: Option<&'a str>,
}

/// Why no user data can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("user data of the node class is not TOML, which Bottlerocket needs (line {line})")]
pub struct NotToml {
    line: usize,
}

impl Boot<'_> {
    /// Returns the user data.
    ///
    /// # Errors
    /// When the node class has user data for Bottlerocket that is not TOML. The error does not repeat
    /// any of it.
    pub fn user_data(&self) -> Result<String, NotToml> {
        match self.family {
            AmiFamily::Al2023 => Ok(self.nodeadm()),
            AmiFamily::Al2 | AmiFamily::Ubuntu => Ok(self.bootstrap()),
            AmiFamily::Bottlerocket => self.bottlerocket(),
            AmiFamily::Windows => Ok(self.windows()),
            AmiFamily::Custom => Ok(self.custom.unwrap_or_default().to_owned()),
        }
    }

    fn nodeadm(&self) -> String {
        let Endpoint { cluster, url, authority, service_cidr, dns } = self.endpoint;
        let mut config = kubelet_config(self.kubelet);
        config["clusterDNS"] = json!([dns]);
        let mut spec = json!({
            "cluster": {
                "name": cluster, "apiServerEndpoint": url, "certificateAuthority": authority,
                "cidr": service_cidr,
            },
            "kubelet": { "config": config, "flags": self.flags() },
        });
        if self.raid0 {
            spec["instance"] = json!({ "localStorage": { "strategy": "RAID0" } });
        }
        // JSON is YAML, and quotes by itself.
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
        // The last of several counts where they say the same thing.
        parts.push((NODE_CONFIG, ours.to_string()));
        multipart(parts)
    }

    fn bootstrap(&self) -> String {
        let Endpoint { cluster, url, authority, dns, .. } = self.endpoint;
        let mut script = String::from("#!/bin/bash -xe\n");
        if self.raid0 {
            script.push_str("export LOCAL_DISKS=raid0\n");
        }
        let most = self.kubelet.max_pods.map_or("", |_| " --use-max-pods false");
        let mut flags = self.flags();
        flags.extend(bootstrap_flags(self.kubelet));
        let _ = writeln!(
            script,
            "/etc/eks/bootstrap.sh {} --apiserver-endpoint {} --b64-cluster-ca {} \
             --dns-cluster-ip {}{most} --kubelet-extra-args {}",
            shell(cluster),
            shell(url),
            shell(authority),
            shell(dns),
            shell(&flags.join(" ")),
        );
        match self.custom {
            None => script,
            Some(custom) => multipart(vec![(SHELL, custom.to_owned()), (SHELL, script)]),
        }
    }

    fn windows(&self) -> String {
        let Endpoint { cluster, url, authority, dns, .. } = self.endpoint;
        let custom = self.custom.map(|text| format!("{text}\n")).unwrap_or_default();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut flags = self.flags();
        flags.extend(self.kubelet.max_pods.map(|most| format!("--max-pods={most}")));
        format!(
            "<powershell>\n{custom}[string]$EKSBootstrapScriptFile = \
             \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n\
             & $EKSBootstrapScriptFile -EKSClusterName {} -APIServerEndpoint {} \
             -Base64ClusterCA {} -DNSClusterIP {} -KubeletExtraArgs {}\n</powershell>",
            quoted(cluster),
            quoted(url),
            quoted(authority),
            quoted(dns),
            quoted(&flags.join(" ")),
        )
    }

    fn bottlerocket(&self) -> Result<String, NotToml> {
        let text = self.custom.unwrap_or_default();
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            NotToml { line: before.matches('\n').count() + 1 }
        })?;
        let Endpoint { cluster, url, authority, dns, .. } = self.endpoint;
        let mut ours = Table::new();
        for (key, value) in [
            ("api-server", url),
            ("cluster-certificate", authority),
            ("cluster-name", cluster),
            ("cluster-dns-ip", dns),
        ] {
            ours.insert(key.to_owned(), value.as_str().into());
        }
        if let Some(most) = self.kubelet.max_pods {
            ours.insert("max-pods".to_owned(), Toml::Integer(most.into()));
        }
        for (key, amounts) in [
            ("kube-reserved", &self.kubelet.kube_reserved),
            ("system-reserved", &self.kubelet.system_reserved),
        ] {
            insert_some(&mut ours, key, texts(amounts));
        }
        let eviction = self.kubelet.eviction_hard.iter();
        insert_some(&mut ours, "eviction-hard", eviction.map(|(k, v)| (k.clone(), threshold(*v))));
        let labels = node_labels(self.labels);
        insert_some(&mut ours, "node-labels", labels.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let mut taints = Table::new();
        for taint in self.taints {
            let value = Toml::from(format!("{}:{}", taint.value, effect(taint)));
            let of_key = taints.entry(taint.key.to_string()).or_insert(Toml::Array(Vec::new()));
            if let Toml::Array(values) = of_key {
                values.push(value);
            }
        }
        if !taints.is_empty() {
            ours.insert("node-taints".to_owned(), taints.into());
        }
        let settings: Table = [("kubernetes".to_owned(), ours.into())].into_iter().collect();
        merge(&mut table, [("settings".to_owned(), Toml::Table(settings))].into_iter().collect());
        Ok(table.to_string())
    }

    /// Returns the flags of the kubelet that no configuration file has.
    fn flags(&self) -> Vec<String> {
        let joined = |items: Vec<String>| (!items.is_empty()).then(|| items.join(","));
        let labels = node_labels(self.labels).map(|(key, value)| format!("{key}={value}"));
        let taints = self.taints.iter();
        let taints = taints.map(|t| format!("{}={}:{}", t.key, t.value, effect(t)));
        let labels = joined(labels.collect()).map(|all| format!("--node-labels={all}"));
        let taints = joined(taints.collect()).map(|all| format!("--register-with-taints={all}"));
        labels.into_iter().chain(taints).collect()
    }
}

const NODE_CONFIG: &str = "application/node.eks.aws";
const SHELL: &str = "text/x-shellscript; charset=\"us-ascii\"";

/// Returns the labels that a kubelet may give its own node: Kubernetes keeps its own domains to
/// itself but for a few, and fills those in from what the machine is.
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

/// Returns what a kubelet configuration says of these settings.
fn kubelet_config(kubelet: &KubeletSettings) -> Json {
    let mut config = json!({});
    if let Some(most) = kubelet.max_pods {
        config["maxPods"] = json!(most);
    }
    if let Some(most) = kubelet.pods_per_core {
        config["podsPerCore"] = json!(most);
    }
    for (key, amounts) in
        [("kubeReserved", &kubelet.kube_reserved), ("systemReserved", &kubelet.system_reserved)]
    {
        if !amounts.is_empty() {
            config[key] = texts(amounts).collect();
        }
    }
    if !kubelet.eviction_hard.is_empty() {
        let thresholds = kubelet.eviction_hard.iter();
        config["evictionHard"] = thresholds.map(|(k, v)| (k.clone(), threshold(*v))).collect();
    }
    config
}

/// Returns the same settings as flags, for images whose bootstrap takes no configuration.
fn bootstrap_flags(kubelet: &KubeletSettings) -> Vec<String> {
    let listed = |flag: &str, between: &str, items: Vec<(String, String)>| {
        let items: Vec<String> =
            items.into_iter().map(|(key, value)| format!("{key}{between}{value}")).collect();
        (!items.is_empty()).then(|| format!("--{flag}={}", items.join(",")))
    };
    let thresholds = kubelet.eviction_hard.iter();
    let thresholds = thresholds.map(|(k, v)| (k.clone(), threshold(*v))).collect();
    [
        kubelet.max_pods.map(|most| format!("--max-pods={most}")),
        kubelet.pods_per_core.map(|most| format!("--pods-per-core={most}")),
        listed("kube-reserved", "=", texts(&kubelet.kube_reserved).collect()),
        listed("system-reserved", "=", texts(&kubelet.system_reserved).collect()),
        listed("eviction-hard", "<", thresholds),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn texts(amounts: &Amounts) -> impl Iterator<Item = (String, String)> {
    amounts.iter().map(|(name, amount)| {
        let is_cpu = name.as_str() == "cpu";
        let text = if is_cpu { MilliCpu(*amount).to_string() } else { Bytes(*amount).to_string() };
        (name.to_string(), text)
    })
}

fn threshold(reserved: Reserved) -> String {
    match reserved {
        Reserved::Bytes(bytes) => Bytes(bytes).to_string(),
        Reserved::MilliPercent(share) if share % 1000 == 0 => format!("{}%", share / 1000),
        Reserved::MilliPercent(share) => {
            let fraction = format!("{:03}", share % 1000);
            format!("{}.{}%", share / 1000, fraction.trim_end_matches('0'))
        }
    }
}

fn effect(taint: &Taint) -> &'static str {
    use crate::pod::TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    match taint.effect {
        NoSchedule => "NoSchedule",
        PreferNoSchedule => "PreferNoSchedule",
        NoExecute => "NoExecute",
    }
}

/// Quotes a word for a shell.
fn shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Joins parts into one MIME message; a part that is one already gives its own parts.
fn multipart(parts: Vec<(&str, String)>) -> String {
    let mut boundary = String::from("//");
    while parts.iter().any(|(_, text)| text.contains(&format!("--{boundary}"))) {
        boundary.push('=');
    }
    let mut out =
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{boundary}\"\n\n");
    for (kind, text) in parts {
        let header = match text.strip_prefix("MIME-Version: 1.0") {
            // A message inside a message keeps its own header.
            Some(_) => String::new(),
            None => format!("Content-Type: {kind}\n\n"),
        };
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let _ = write!(out, "--{boundary}\n{header}{text}{end}");
    }
    let _ = writeln!(out, "--{boundary}--");
    out
}

fn insert_some(table: &mut Table, key: &str, entries: impl Iterator<Item = (String, String)>) {
    let entries: Table = entries.map(|(key, value)| (key, Toml::from(value))).collect();
    if !entries.is_empty() {
        table.insert(key.to_owned(), entries.into());
    }
}

/// Puts `ours` over `theirs`: tables are merged, anything else is replaced.
fn merge(theirs: &mut Table, ours: Table) {
    for (key, value) in ours {
        match (theirs.get_mut(&key), value) {
            (Some(Toml::Table(theirs)), Toml::Table(ours)) => merge(theirs, ours),
            (_, value) => {
                theirs.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::TaintEffect;

    fn endpoint() -> Endpoint {
        Endpoint {
            cluster: "prod".into(),
            url: "https://api.example".into(),
            authority: "Q0E=".into(),
            service_cidr: "10.100.0.0/16".into(),
            dns: "10.100.0.10".into(),
        }
    }

    fn told(family: AmiFamily, custom: Option<&str>) -> String {
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
            eviction_hard: [("memory.available".to_owned(), Reserved::MilliPercent(7_500))].into(),
            ..KubeletSettings::default()
        };
        let endpoint = endpoint();
        let boot = Boot {
            endpoint: &endpoint,
            family,
            kubelet: &kubelet,
            labels: &labels,
            taints: &taints,
            raid0: true,
            custom,
        };
        boot.user_data().expect("user data")
    }

    #[test]
    fn every_family_is_told_the_cluster_its_labels_and_its_taints() {
        for family in [
            AmiFamily::Al2,
            AmiFamily::Al2023,
            AmiFamily::Bottlerocket,
            AmiFamily::Windows,
            AmiFamily::Ubuntu,
        ] {
            let text = told(family, None);
            for part in ["prod", "https://api.example", "Q0E=", "general", "dedicated", "42"] {
                assert!(text.contains(part), "{family:?} lacks {part}:\n{text}");
            }
            assert!(!text.contains("amd64"), "a kubelet may not set it: {family:?}");
            assert!(!text.contains("m5.large"), "the cloud sets it: {family:?}");
        }
        assert_eq!(told(AmiFamily::Custom, Some("own")), "own");
    }

    #[test]
    fn amazon_linux_2023_reads_ours_after_what_the_class_says() {
        let text = told(AmiFamily::Al2023, Some("#!/bin/sh\necho //\n"));
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
    fn a_boundary_never_stands_in_what_it_bounds() {
        let text = told(AmiFamily::Al2023, Some("#!/bin/sh\n--//\n"));
        assert!(text.contains("boundary=\"//=\""), "{text}");
    }

    #[test]
    fn words_are_quoted_for_the_shell_that_reads_them() {
        assert!(told(AmiFamily::Al2, None).contains("dedicated=it'\\''s:NoSchedule"));
        assert!(told(AmiFamily::Windows, None).contains("dedicated=it''s:NoSchedule"));
    }

    #[test]
    fn bottlerocket_keeps_what_the_class_says_and_ours_counts() {
        let custom = "[settings.kubernetes]\nmax-pods = 7\nlog-level = 3\n[settings.host]\na = 1\n";
        let table: Table = told(AmiFamily::Bottlerocket, Some(custom)).parse().expect("TOML");
        let kubernetes = &table["settings"]["kubernetes"];
        assert_eq!(kubernetes["max-pods"].as_integer(), Some(42));
        assert_eq!(kubernetes["log-level"].as_integer(), Some(3));
        assert_eq!(kubernetes["node-taints"]["dedicated"][0].as_str(), Some("it's:NoSchedule"));
        assert_eq!(table["settings"]["host"]["a"].as_integer(), Some(1));
    }

    #[test]
    fn an_error_about_user_data_does_not_repeat_it() {
        let (endpoint, kubelet) = (endpoint(), KubeletSettings::default());
        let boot = Boot {
            endpoint: &endpoint,
            family: AmiFamily::Bottlerocket,
            kubelet: &kubelet,
            labels: &Labels::new(),
            taints: &[],
            raid0: false,
            custom: Some("[settings]\npassword hunter2\n"),
        };
        let error = boot.user_data().expect_err("no TOML").to_string();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
}
