//! Forms with operator requests.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::header::AUTHORIZATION;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::adapters::http::{RequestBody, header_values, parse_form};
use crate::controller::authorization::{Decision, OperatorRequest, PendingRequest};
use crate::controller::gates::{BREAK_GLASS_MAX, MASS_REMOVAL_BREAKER};

/// Maximum size of a form. A token has a few thousand bytes.
const FORM_BYTES_MAX: usize = 64 << 10;

/// Timeout for receiving a form.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);

const REASON_CHARS_MAX: usize = 400;

const TOKEN_HINT: &str = "create one with kubectl create token NAME --audience fleetwright.dev";

/// Submits the request of a form for authorization; returns the status code and text of the
/// response.
pub(super) async fn submit(
    pending_requests: &mpsc::Sender<PendingRequest>,
    request: Request<RequestBody>,
) -> (u16, String) {
    let (head, body) = request.into_parts();
    let bearer = header_values(&head.headers, &AUTHORIZATION);
    let body = Limited::new(body, FORM_BYTES_MAX).collect();
    let body = match tokio::time::timeout(FORM_TIMEOUT, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return (413, format!("a form has at most {FORM_BYTES_MAX} bytes\n")),
        Err(_) => return (408, "timeout while receiving the form\n".to_owned()),
    };
    let fields = parse_form(&String::from_utf8_lossy(&body.to_bytes()));
    let wanted = match parse_request(&fields) {
        Ok(wanted) => wanted,
        Err(why) => return (400, format!("{why}\n")),
    };
    let token = fields.get("token").map(String::as_str).or(bearer.strip_prefix("Bearer "));
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return (401, format!("the token is missing; {TOKEN_HINT}\n"));
    };
    let (answer, answered) = oneshot::channel();
    let token = token.to_owned().into();
    if pending_requests
        .try_send(PendingRequest {
            token,
            request: wanted,
            requested_at: Timestamp::now(),
            reply: answer,
        })
        .is_err()
    {
        return (503, "too many pending requests; retry later\n".to_owned());
    }
    match answered.await {
        Ok(answered) => decision_response(&answered),
        Err(_) => (503, "the controller is shutting down\n".to_owned()),
    }
}

fn parse_request(fields: &BTreeMap<String, String>) -> Result<OperatorRequest, String> {
    let field = |name: &str| {
        let value = fields.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("the field `{name}` is missing"))
    };
    let reason = || Ok::<_, String>(field("reason")?.chars().take(REASON_CHARS_MAX).collect());
    match field("request")? {
        "approve" => Ok(OperatorRequest::Approve { digest: field("digest")?.into() }),
        "confirm" => Ok(OperatorRequest::Confirm { instance: field("instance")?.into() }),
        "suspend" => {
            Ok(OperatorRequest::Suspend { lasts: minutes(field("minutes")?)?, reason: reason()? })
        }
        "resume" => Ok(OperatorRequest::Resume),
        "break-glass" => {
            let lasts = minutes(field("minutes")?)?;
            if lasts.is_zero() || lasts > BREAK_GLASS_MAX {
                let most = BREAK_GLASS_MAX.as_mins();
                return Err(format!(
                    "break-glass lasts 1 to {most} minutes; request it again afterwards"
                ));
            }
            Ok(OperatorRequest::BreakGlass { lasts, reason: reason()? })
        }
        "end-break-glass" => Ok(OperatorRequest::EndBreakGlass),
        "reset" => {
            let breaker = field("breaker")?.to_owned();
            // Resetting this breaker approves a plan, which the form must name.
            let approves = breaker == MASS_REMOVAL_BREAKER;
            let digest = if approves { Some(field("digest")?.into()) } else { None };
            Ok(OperatorRequest::Reset { breaker, digest })
        }
        other => {
            let other: String = other.chars().take(40).collect();
            Err(format!(
                "the request `{}` is none of approve, confirm, suspend, resume, break-glass, \
                 end-break-glass, reset",
                other.escape_debug()
            ))
        }
    }
}

fn minutes(text: &str) -> Result<SignedDuration, String> {
    let minutes: u32 =
        text.parse().map_err(|_| "the field `minutes` is not a number of minutes".to_owned())?;
    Ok(SignedDuration::from_mins(minutes.into()))
}

fn decision_response(answered: &Decision) -> (u16, String) {
    match answered {
        Decision::Accepted { who } => (202, format!("passed to the controller as {who}\n")),
        Decision::Unauthenticated => {
            (401, format!("the cluster does not accept the token; {TOKEN_HINT}\n"))
        }
        Decision::Forbidden { who, verb } => {
            (403, format!("{who} may not {verb} capacityplans of fleetwright.dev\n"))
        }
        Decision::Unavailable { why } => (503, format!("{why}\n")),
    }
}
