//! Kubelet settings. Every generation has the same fields, in a different place.

use core::net::IpAddr;
use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::super::decode::{Field, FieldMap, shorten};
use super::super::resource_list::{non_negative_quantity, resource_list};
use super::warn_unsupported;
use crate::model::desired::{KubeletSettings, ReservedAmount};
use crate::model::pod::ResourceList;
use crate::model::units::Bytes;

/// The setting of older generations without effect: every image has containerd.
const UNSUPPORTED: &[&str] = &["containerRuntime"];

/// Default of the kubelet for `imageGCHighThresholdPercent`.
const IMAGE_GC_HIGH_PERCENT: u32 = 85;

/// Default of the kubelet for `imageGCLowThresholdPercent`.
const IMAGE_GC_LOW_PERCENT: u32 = 80;

/// Signals of eviction.
const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];

/// Resources that a kubelet reserves.
const RESERVED: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// Reads kubelet settings.
pub(in super::super) fn kubelet(field: &Field<'_>) -> KubeletSettings {
    let Some(map) = field.map() else { return KubeletSettings::default() };
    let mut settings = KubeletSettings {
        max_pods: map.get("maxPods").and_then(|f| f.int(0)),
        pods_per_core: map.get("podsPerCore").and_then(|f| f.int(0)),
        kube_reserved: reserved_resources(&map, "kubeReserved"),
        system_reserved: reserved_resources(&map, "systemReserved"),
        ..KubeletSettings::default()
    };
    settings.eviction_hard = by_signal(&map, "evictionHard", reserved);
    settings.eviction_soft = by_signal(&map, "evictionSoft", reserved);
    settings.eviction_soft_grace_period = by_signal(&map, "evictionSoftGracePeriod", grace_period);
    settings.eviction_max_pod_grace_period =
        map.get("evictionMaxPodGracePeriod").and_then(|f| f.int(0));
    settings.image_gc_high_percent = map.get("imageGCHighThresholdPercent").and_then(percent);
    settings.image_gc_low_percent = map.get("imageGCLowThresholdPercent").and_then(percent);
    settings.cpu_cfs_quota = map.get("cpuCFSQuota").and_then(|f| f.boolean());
    settings.cluster_dns = map.get("clusterDNS").map(|f| addresses(&f)).unwrap_or_default();
    report_contradictions(field, &settings);
    warn_unsupported(&map, UNSUPPORTED, "the kubelet starts without it");
    map.finish_with_typo_check();
    settings
}

/// Reads kubelet settings by their names in Bottlerocket, as far as they change what a node leaves
/// for pods.
pub(in super::super) fn bottlerocket_kubelet(map: &FieldMap<'_>) -> KubeletSettings {
    KubeletSettings {
        max_pods: map.get("max-pods").and_then(|f| f.int(0)),
        kube_reserved: reserved_resources(map, "kube-reserved"),
        system_reserved: reserved_resources(map, "system-reserved"),
        eviction_hard: by_signal(map, "eviction-hard", reserved),
        ..KubeletSettings::default()
    }
}

/// Reads a value for each signal of eviction.
fn by_signal<T>(
    map: &FieldMap<'_>,
    key: &'static str,
    read: impl Fn(&Field<'_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let mut values = BTreeMap::new();
    if let Some(signals) = map.get(key).as_ref().and_then(Field::map) {
        for (signal, value) in signals.entries() {
            if !SIGNALS.contains(&signal) {
                value.error(
                    format_args!("is for `{}`, which is not a signal", shorten(signal)),
                    None,
                );
            } else if let Some(read) = read(&value) {
                values.insert(signal.to_owned(), read);
            }
        }
    }
    values
}

fn grace_period(field: &Field<'_>) -> Option<SignedDuration> {
    field.duration()
}

fn percent(field: Field<'_>) -> Option<u32> {
    let percent = field.int(0)?;
    if percent > 100 {
        field.error(format_args!("is {percent}, not a percentage"), "write 0 to 100".to_owned());
    }
    Some(percent).filter(|percent| *percent <= 100)
}

fn addresses(field: &Field<'_>) -> Vec<IpAddr> {
    let address = |item: Field<'_>| {
        let text = item.text()?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let hint = "write an address such as 10.100.0.10".to_owned();
            item.error(format_args!("is `{}`, not an IP address", shorten(&text)), hint);
        }
        parsed
    };
    field.items().filter_map(address).collect()
}

/// Reports settings with which no kubelet starts.
fn report_contradictions(field: &Field<'_>, settings: &KubeletSettings) {
    let thresholds: Vec<&String> = settings.eviction_soft.keys().collect();
    let periods: Vec<&String> = settings.eviction_soft_grace_period.keys().collect();
    if thresholds != periods {
        let hint = "write `evictionSoftGracePeriod` for the signals of `evictionSoft`".to_owned();
        field.error("has soft thresholds and grace periods of different signals", hint);
    }
    let high = settings.image_gc_high_percent.unwrap_or(IMAGE_GC_HIGH_PERCENT);
    let low = settings.image_gc_low_percent.unwrap_or(IMAGE_GC_LOW_PERCENT);
    if low >= high {
        field.error(
            format_args!(
                "has `imageGCLowThresholdPercent` {low}, not below `imageGCHighThresholdPercent` \
                 {high}"
            ),
            None,
        );
    }
}

/// Reads amounts of the resources that a kubelet reserves.
fn reserved_resources(map: &FieldMap<'_>, key: &'static str) -> ResourceList {
    let Some(field) = map.get(key) else { return ResourceList::new() };
    if let Some(amounts) = field.map() {
        for (name, amount) in amounts.entries().filter(|(name, _)| !RESERVED.contains(name)) {
            let name = shorten(name);
            let hint = format!("write one of {}", RESERVED.join(", "));
            amount.error(format_args!("is an amount of `{name}`, which is not reserved"), hint);
        }
    }
    resource_list(&field)
}

/// Reads `100Mi` or `7.5%`.
fn reserved(field: &Field<'_>) -> Option<ReservedAmount> {
    let text = field.text_or_number()?;
    let Some(percent) = text.strip_suffix('%') else {
        return Some(ReservedAmount::Bytes(Bytes::from_quantity(non_negative_quantity(field)?).0));
    };
    let parsed = milli_percent(percent);
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not a share", shorten(&text)),
            "write 0% to 100%, or an amount such as 100Mi".to_owned(),
        );
    }
    parsed.map(ReservedAmount::MilliPercent)
}

/// Returns the thousandths of a percent that `text` states, from 0 to 100 %, further digits
/// truncated.
pub(in super::super) fn milli_percent(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    let total = whole.parse::<u32>().ok()?.checked_mul(1000)?;
    total.checked_add(thousandths.parse().ok()?).filter(|total| *total <= 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_in_thousandths_of_a_percent() {
        for (text, expected) in [
            ("5", Some(5_000)),
            ("7.5", Some(7_500)),
            ("0.0019", Some(1)),
            ("100", Some(100_000)),
            ("100.001", None),
            ("", None),
            ("-1", None),
            ("1.2.3", None),
        ] {
            assert_eq!(milli_percent(text), expected, "{text}");
        }
    }
}
