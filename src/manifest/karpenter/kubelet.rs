//! Kubelet settings. Every generation has the same fields, in a different place.

use super::super::decode::{Field, shorten};
use super::super::resource_list::{non_negative_quantity, resource_list};
use super::warn_unsupported;
use crate::model::desired::{KubeletSettings, ReservedAmount, Severity};
use crate::model::units::Bytes;

/// Settings that are not passed to the kubelet.
const UNSUPPORTED: &[&str] = &[
    "clusterDNS",
    "containerRuntime",
    "cpuCFSQuota",
    "evictionMaxPodGracePeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
];

/// Signals of hard eviction.
const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];

/// Reads kubelet settings.
pub(in super::super) fn kubelet(field: &Field<'_>) -> KubeletSettings {
    let Some(map) = field.map() else { return KubeletSettings::default() };
    let mut settings = KubeletSettings {
        max_pods: map.get("maxPods").and_then(|f| f.int(0)),
        pods_per_core: map.get("podsPerCore").and_then(|f| f.int(0)),
        kube_reserved: map.get("kubeReserved").map(|f| resource_list(&f)).unwrap_or_default(),
        system_reserved: map.get("systemReserved").map(|f| resource_list(&f)).unwrap_or_default(),
        ..KubeletSettings::default()
    };
    if let Some(signals) = map.get("evictionHard").as_ref().and_then(Field::map) {
        for (signal, value) in signals.entries() {
            if !SIGNALS.contains(&signal) {
                value.error(
                    format_args!("is for `{}`, which is not a signal", shorten(signal)),
                    None,
                );
            } else if let Some(reserved) = reserved(&value) {
                settings.eviction_hard.insert(signal.to_owned(), reserved);
            }
        }
    }
    warn_unsupported(&map, UNSUPPORTED, "the kubelet starts without it");
    map.finish(Severity::Warning);
    settings
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
