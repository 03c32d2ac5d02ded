//! Cron expressions, as far as their form goes.

use super::decode::{Field, shorten};

const MACROS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Reads a cron expression: five fields, or one of the macros.
pub(super) fn expression(field: &Field<'_>) -> Option<String> {
    let text = field.text()?;
    if !is_expression(&text) {
        field.error(
            format_args!("is `{}`, not a cron expression", shorten(&text)),
            "write five fields, such as \"30 2 * * 1-5\", or one of @hourly, @daily, @weekly, \
             @monthly, @yearly"
                .to_owned(),
        );
        return None;
    }
    Some(text.into_owned())
}

fn is_expression(text: &str) -> bool {
    // `TZ=` and `CRON_TZ=` name a zone in front of the fields; Kubernetes has `timeZone` for it.
    let fields = |text: &str| text.split_whitespace().count() == 5;
    let allowed = |c: char| c.is_ascii_alphanumeric() || " \t*/,-?#".contains(c);
    MACROS.contains(&text)
        || text.strip_prefix("@every ").is_some_and(|d| super::duration::parse(d).is_some())
        || (fields(text) && text.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_fields_or_a_macro_make_an_expression() {
        for (text, expected) in [
            ("*/5 * * * *", true),
            ("30 2 * * MON-FRI", true),
            ("@daily", true),
            ("@every 1h", true),
            ("* * * *", false),
            ("* * * * * *", false),
            ("", false),
            ("@never", false),
            ("a b c d {", false),
        ] {
            assert_eq!(is_expression(text), expected, "{text}");
        }
    }
}
