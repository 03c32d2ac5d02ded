//! Values that several settings have: amounts of money and shares.

use super::super::decode::{Field, shorten};
use super::super::karpenter::milli_percent;
use crate::model::units::MicroUsd;

/// Replaces `setting` by `value` if the file states one.
pub(super) fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

pub(super) fn money(field: &Field<'_>) -> Option<MicroUsd> {
    let text = field.text_or_number()?;
    let parsed = text.parse::<MicroUsd>().ok().filter(|amount| amount.0 >= 0);
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not an amount of US dollars", shorten(&text)),
            "write a decimal with at most six digits after the point, such as \"0.001\"".to_owned(),
        );
    }
    parsed
}

pub(super) fn share(field: &Field<'_>) -> Option<u32> {
    let text = field.text()?;
    let parsed = text.strip_suffix('%').and_then(milli_percent);
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not a share", shorten(&text)),
            "write 0% to 100%, such as 5%".to_owned(),
        );
    }
    parsed
}
