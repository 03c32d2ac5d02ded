//! Errors of AWS calls, and the conversion of SDK errors to port errors.

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use thiserror::Error as ThisError;

use crate::apply::ports::{CallEffect, PortError, with_causes};
use crate::catalog::Catalog;
use crate::model::ids::Region;

/// Text of the SDK error for missing credentials.
const NO_CREDENTIALS: &str = "no credentials found in chain";

/// Text of the SDK for credentials that a source could not provide, such as the metadata service of
/// an instance outside of EC2.
const UNLOADED_CREDENTIALS: &str = "an error occurred while loading credentials";

/// Error codes for throttling.
const THROTTLING_CODES: [&str; 5] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "TooManyRequestsException",
];

/// Error codes of server faults, and the code for a token that an earlier launch used. The instance
/// of that launch appears later. If the earlier launch failed permanently, it is launched again
/// with a new token.
const SERVER_ERROR_CODES: [&str; 7] = [
    "IdempotentParameterMismatch",
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "PriorRequestNotComplete",
    "ServiceUnavailable",
    "Unavailable",
];

/// Error codes for missing capacity, in EC2 or for this account.
const INSUFFICIENT_CAPACITY_CODES: [&str; 10] = [
    "InsufficientInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientFreeAddressesInSubnet",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "ReservationCapacityExceeded",
];

/// Words of EC2 for a full spread placement group, in lower case.
const SPREAD_GROUP: &str = "spread placement group";

/// The reason that an account cannot be used.
#[derive(Debug, ThisError)]
pub enum AwsError {
    /// A call failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A resource that a node class names does not exist.
    #[error("{0}")]
    Missing(String),
}

/// Error codes for credentials that are no longer valid.
const EXPIRED_CODES: [&str; 3] = ["ExpiredToken", "ExpiredTokenException", "RequestExpired"];

/// Error codes for credentials that a region does not know.
const UNKNOWN_KEY_CODES: [&str; 4] =
    ["AuthFailure", "InvalidClientTokenId", "OptInRequired", "UnrecognizedClientException"];

/// Error codes for a call that the credentials may not make.
const DENIED_CODES: [&str; 3] = ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation"];

const UNREACHABLE: &str = "AWS cannot be reached";

const NOT_LOADED: &str = "credentials could not be loaded";

/// Words of a connection that failed while credentials were loaded.
const CONNECTION_FAILURES: [&str; 5] =
    ["connect", "dispatch failure", "dns error", "timed out", "timeout"];

/// Returns whether an error is about a connection.
fn is_unreachable(reason: &str) -> bool {
    let names_connection =
        |why: &str| CONNECTION_FAILURES.iter().any(|failure| why.contains(failure));
    reason.contains(UNREACHABLE)
        || reason.split_once(NOT_LOADED).is_some_and(|(_, why)| names_connection(why))
}

impl AwsError {
    /// Returns what to do if the account or the EKS cluster cannot be used in `region`.
    pub fn remedy(&self, region: &Region) -> String {
        let reason = self.to_string();
        let has_code =
            |codes: &[&str]| codes.iter().any(|code| reason.ends_with(&format!("({code})")));
        if has_code(&EXPIRED_CODES) {
            return "the credentials have expired: run `aws sso login`, or set new ones".to_owned();
        }
        if has_code(&UNKNOWN_KEY_CODES) {
            return format!(
                "set valid credentials; if they work in another region, correct \
                 spec.cluster.region, or enable {region} for the account: `aws account \
                 enable-region --region-name {region}`"
            );
        }
        if has_code(&DENIED_CODES) {
            return "allow this call to the role; deploy/aws/plan.json has all permissions that a \
                    plan needs"
                .to_owned();
        }
        if matches!(self, Self::Missing(_)) {
            return "wait until the EKS cluster is active, or correct spec.cluster".to_owned();
        }
        if has_code(&["ResourceNotFoundException"]) {
            return format!(
                "check spec.cluster.name and spec.cluster.region; `aws eks list-clusters --region \
                 {region}` lists the clusters of this region"
            );
        }
        if is_unreachable(&reason) {
            let unknown = Catalog::load(region, &[]).err().and_then(|error| error.hint());
            return match unknown {
                Some(hint) => format!("correct spec.cluster.region `{region}`: {hint}"),
                None => format!("check the network, the proxy, and spec.cluster.region `{region}`"),
            };
        }
        "set credentials as for the AWS CLI; test them with `aws sts get-caller-identity`"
            .to_owned()
    }
}

/// Returns a permanent error: a retry fails in the same way.
pub(super) fn refused(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::Refused }
}

/// Returns whether EC2 has no capacity for an offering, from the code and the message of an error.
///
/// EC2 has the same codes for a full spread placement group. The offering has capacity outside of
/// the group.
pub(super) fn is_insufficient_capacity(code: Option<&str>, message: Option<&str>) -> bool {
    let is_of_group =
        message.is_some_and(|message| message.to_ascii_lowercase().contains(SPREAD_GROUP));
    !is_of_group && code.is_some_and(|code| INSUFFICIENT_CAPACITY_CODES.contains(&code))
}

/// Converts an SDK error to a port error. A response without a code comes from a proxy or is
/// truncated, so that a retry may help. The error describes the last attempt only: if the SDK
/// retried, an earlier attempt may have succeeded.
pub(super) fn port_error<E, R>(verb: &str, error: &SdkError<E, R>) -> PortError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug + 'static,
{
    let (reason, effect) = match error {
        SdkError::ServiceError(found) => {
            let code = found.err().code().unwrap_or_default();
            let message = found.err().message().unwrap_or("no message");
            let effect = if THROTTLING_CODES.contains(&code) {
                CallEffect::NotApplied
            } else {
                CallEffect::from_transience(code.is_empty() || SERVER_ERROR_CODES.contains(&code))
            };
            (format!("{message} ({})", if code.is_empty() { "no code" } else { code }), effect)
        }
        SdkError::TimeoutError(_) => {
            ("AWS did not respond in time".to_owned(), CallEffect::Unknown)
        }
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            let why = "the request could not be created; check credentials and region";
            (why.to_owned(), CallEffect::Refused)
        }
        SdkError::DispatchFailure(_) => {
            (dispatch_failure(&with_causes(error)), CallEffect::Unknown)
        }
        SdkError::ResponseError(_) => {
            ("the response of AWS was incomplete".to_owned(), CallEffect::Unknown)
        }
        other @ (SdkError::ConstructionFailure(_) | _) => {
            let why = with_causes(other);
            (
                format!("the request could not be created: {}", strip_request(&why)),
                CallEffect::Refused,
            )
        }
    };
    PortError { verb: verb.to_owned(), reason, effect }
}

/// Returns why a request was not sent, from the text of the SDK: without credentials, or without a
/// connection.
fn dispatch_failure(why: &str) -> String {
    let why = strip_request(why);
    let after = |text: &str| why.split_once(text).map(|(_, rest)| rest);
    if let Some(rest) = after(NO_CREDENTIALS) {
        return format!("no credentials were found{rest}");
    }
    match after(UNLOADED_CREDENTIALS) {
        Some(rest) => format!("{NOT_LOADED}{rest}"),
        None => format!("{UNREACHABLE}: {why}"),
    }
}

/// Removes the quoted request from a text of the SDK.
fn strip_request(text: &str) -> String {
    const QUOTED: (&str, &str) = (" to request `", "`: ");
    let cut = text.split_once(QUOTED.0).and_then(|(before, rest)| {
        let (_, after) = rest.rsplit_once(QUOTED.1)?;
        Some(format!("{before}: {after}"))
    });
    cut.unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_stripped_from_errors() {
        let text = "dispatch failure: other: failed to apply endpoint `x` to request `Request { body: \
                    \"Action=`a`\" }`: endpoint must contain scheme";
        assert_eq!(
            strip_request(text),
            "dispatch failure: other: failed to apply endpoint `x`: endpoint must contain scheme"
        );
        assert_eq!(strip_request("timed out"), "timed out");
    }

    #[test]
    fn full_spread_group_is_no_missing_capacity() {
        let full = "You've reached the limit of instances in this Spread placement group.";
        for (code, message, expected) in [
            (Some("InsufficientInstanceCapacity"), Some("We do not have m5.large capacity."), true),
            (Some("InsufficientInstanceCapacity"), None, true),
            (Some("InsufficientInstanceCapacity"), Some(full), false),
            (Some("UnfulfillableCapacity"), Some(full), false),
            (Some("UnauthorizedOperation"), None, false),
            (None, Some("no capacity"), false),
        ] {
            let found = is_insufficient_capacity(code, message);
            assert_eq!(found, expected, "{code:?} {message:?}");
        }
    }

    #[test]
    fn credentials_that_cannot_be_loaded_are_no_network_problem() {
        let failure = "dispatch failure: other: an error occurred while loading credentials: failed \
                       to load IMDS session token: request forbidden";
        assert_eq!(
            dispatch_failure(failure),
            "credentials could not be loaded: failed to load IMDS session token: request forbidden"
        );
        let with_request = "failed to load to request `Request { body: \"secret\" }`: an error \
                            occurred while loading credentials: refused";
        assert_eq!(dispatch_failure(with_request), "credentials could not be loaded: refused");
        let missing = "dispatch failure: other: no credentials found in chain";
        assert_eq!(dispatch_failure(missing), "no credentials were found");
        assert_eq!(dispatch_failure("dns error"), "AWS cannot be reached: dns error");
    }

    #[test]
    fn unusable_account_has_a_remedy_for_its_cause() {
        let remedy = |reason: &str, region: &str| {
            AwsError::from(refused("get caller identity", reason.to_owned())).remedy(&region.into())
        };
        for (reason, region, expected) in [
            ("it is expired (ExpiredToken)", "us-east-1", "the credentials have expired"),
            (
                "it is invalid (InvalidClientTokenId)",
                "ap-east-1",
                "enable-region --region-name ap-east-1",
            ),
            ("not subscribed (OptInRequired)", "ap-east-1", "enable ap-east-1 for the account"),
            (
                "No cluster (ResourceNotFoundException)",
                "us-east-1",
                "list-clusters --region us-east-1",
            ),
            (
                "AWS cannot be reached: dns error",
                "us-east-9",
                "`us-east-9`: did you mean `us-east-1`",
            ),
            ("AWS cannot be reached: dns error", "us-east-1", "check the network, the proxy, and"),
            ("no credentials were found", "us-east-1", "aws sts get-caller-identity"),
            (
                "credentials could not be loaded: request forbidden",
                "us-east-1",
                "aws sts get-caller-identity",
            ),
            (
                "credentials could not be loaded: dispatch failure: io error",
                "us-east-1",
                "check the network, the proxy, and",
            ),
        ] {
            let found = remedy(reason, region);
            assert!(found.contains(expected), "{reason}: {found}");
        }
    }
}
