//! Errors of the SDK in the words of the port.

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};

use crate::port::{Fate, PortError, with_causes};

/// What the SDK says where nothing tells who asks.
const NO_CREDENTIALS: &str = "no credentials found in chain";

/// Codes by which AWS asks for patience.
const THROTTLED: [&str; 5] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "TooManyRequestsException",
];

/// Codes of faults of AWS itself, and the one by which EC2 says that a token was used for a launch before:
/// its machine comes to be shown, and what failed for good would be launched anew.
const FAULTS: [&str; 7] = [
    "IdempotentParameterMismatch",
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "PriorRequestNotComplete",
    "ServiceUnavailable",
    "Unavailable",
];

/// Codes by which EC2 says that there is no capacity, or none for this account now.
const NO_CAPACITY: [&str; 10] = [
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

/// Returns whether `code` says that there is no capacity of what was asked for.
pub(super) fn is_no_capacity(code: &str) -> bool {
    NO_CAPACITY.contains(&code)
}

/// Returns the error of a verb. An answer without a code is one that a proxy gave, or half an answer:
/// asking again may help. It tells of one call: where the SDK had made it before by itself, one of those may
/// have been heard.
pub(super) fn port_error<E, R>(verb: &str, error: &SdkError<E, R>) -> PortError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug + 'static,
{
    let (reason, fate) = match error {
        SdkError::ServiceError(found) => {
            let code = found.err().code().unwrap_or_default();
            let message = found.err().message().unwrap_or("no message");
            let fate = if THROTTLED.contains(&code) {
                Fate::TurnedAway
            } else {
                Fate::of(code.is_empty() || FAULTS.contains(&code))
            };
            (format!("{message} ({})", if code.is_empty() { "no code" } else { code }), fate)
        }
        SdkError::TimeoutError(_) => ("AWS did not answer in time".to_owned(), Fate::Unknown),
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            let why = "the request could not be made; are credentials and region set?";
            (why.to_owned(), Fate::Refused)
        }
        SdkError::DispatchFailure(_) => {
            let why = with_causes(error);
            let why = match why.split_once(NO_CREDENTIALS) {
                Some((_, tried)) => format!("no credentials were found{tried}"),
                None => format!("AWS cannot be reached: {}", without_request(&why)),
            };
            (why, Fate::Unknown)
        }
        SdkError::ResponseError(_) => ("AWS gave half an answer".to_owned(), Fate::Unknown),
        other @ (SdkError::ConstructionFailure(_) | _) => {
            let why = with_causes(other);
            (format!("the request could not be made: {}", without_request(&why)), Fate::Refused)
        }
    };
    PortError { verb: verb.to_owned(), reason, fate }
}

/// Returns a text of the SDK without the whole request that it may quote.
fn without_request(text: &str) -> String {
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
    fn a_request_is_not_quoted() {
        let text = "dispatch failure: other: failed to apply endpoint `x` to request `Request { body: \
                    \"Action=`a`\" }`: endpoint must contain scheme";
        assert_eq!(
            without_request(text),
            "dispatch failure: other: failed to apply endpoint `x`: endpoint must contain scheme"
        );
        assert_eq!(without_request("timed out"), "timed out");
    }
}
