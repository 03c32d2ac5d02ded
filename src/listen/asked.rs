//! What a form asks of the loop.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::door::{Answered, Asked, Wanted};
use crate::reconcile::allow::{GLASS_MAX, MASS_REMOVAL};
use crate::web::{form, header};

/// Largest form; a token is a few thousand bytes.
const FORM_MAX: usize = 64 << 10;

/// Longest that a form may take to come.
const FORM_WITHIN: Duration = Duration::from_secs(10);

/// Most characters of a reason.
const REASON_MAX: usize = 400;

/// Passes on what a form asks, and returns the code and text of the answer.
pub(super) async fn ask(
    questions: &mpsc::Sender<Asked>,
    request: Request<Incoming>,
) -> (u16, String) {
    let (head, body) = request.into_parts();
    let bearer = header(&head.headers, &AUTHORIZATION);
    let body = Limited::new(body, FORM_MAX).collect();
    let body = match tokio::time::timeout(FORM_WITHIN, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return (413, format!("a form has at most {FORM_MAX} bytes\n")),
        Err(_) => return (408, "the form did not come in time\n".to_owned()),
    };
    let fields = form(&String::from_utf8_lossy(&body.to_bytes()));
    let wanted = match wanted(&fields) {
        Ok(wanted) => wanted,
        Err(why) => return (400, format!("{why}\n")),
    };
    let token = fields.get("token").map(String::as_str).or(bearer.strip_prefix("Bearer "));
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return (401, "a token is missing: kubectl create token NAME makes one\n".to_owned());
    };
    let (answer, answered) = oneshot::channel();
    let token = token.to_owned().into();
    if questions.try_send(Asked { token, wanted, at: Timestamp::now(), answer }).is_err() {
        return (503, "too many ask at once; come again later\n".to_owned());
    }
    match answered.await {
        Ok(answered) => says(&answered),
        Err(_) => (503, "the loop ends\n".to_owned()),
    }
}

fn wanted(fields: &BTreeMap<String, String>) -> Result<Wanted, String> {
    let field = |name: &str| {
        let value = fields.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("the field `{name}` is missing"))
    };
    let reason = || Ok::<_, String>(field("reason")?.chars().take(REASON_MAX).collect());
    match field("request")? {
        "approve" => Ok(Wanted::Approve { digest: field("digest")?.into() }),
        "confirm" => Ok(Wanted::Confirm { instance: field("instance")?.into() }),
        "suspend" => Ok(Wanted::Suspend { lasts: minutes(field("minutes")?)?, reason: reason()? }),
        "resume" => Ok(Wanted::Resume),
        "break-glass" => {
            let lasts = minutes(field("minutes")?)?;
            if lasts.is_zero() || lasts > GLASS_MAX {
                let most = GLASS_MAX.as_mins();
                return Err(format!("the glass is broken for 1 to {most} minutes; ask again then"));
            }
            Ok(Wanted::BreakGlass { lasts, reason: reason()? })
        }
        "mend-glass" => Ok(Wanted::MendGlass),
        "reset" => {
            let breaker = field("breaker")?.to_owned();
            // Whoever opens this one approves a plan, and has to say which.
            let approves = breaker == MASS_REMOVAL;
            let digest = if approves { Some(field("digest")?.into()) } else { None };
            Ok(Wanted::Reset { breaker, digest })
        }
        other => {
            let other: String = other.chars().take(40).collect();
            Err(format!(
                "the request `{}` is none of approve, confirm, suspend, resume, break-glass, mend-glass, \
                 reset",
                other.escape_debug()
            ))
        }
    }
}

fn minutes(text: &str) -> Result<SignedDuration, String> {
    let minutes: u32 =
        text.parse().map_err(|_| "the field `minutes` is no number of minutes".to_owned())?;
    Ok(SignedDuration::from_mins(minutes.into()))
}

fn says(answered: &Answered) -> (u16, String) {
    match answered {
        Answered::Passed { who } => (202, format!("passed on to the loop, as {who}\n")),
        Answered::Unknown => (401, "the cluster does not know the token\n".to_owned()),
        Answered::Refused { who, verb } => {
            (403, format!("{who} may not {verb} capacityplans of fleetwright.dev\n"))
        }
        Answered::Unanswered { why } => (503, format!("{why}\n")),
    }
}
