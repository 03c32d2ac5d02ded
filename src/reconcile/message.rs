//! What `EventBridge` says of machines, as it comes off the queue.
//!
//! Five kinds of event are understood; any other text is a message too, which says nothing of any
//! machine: it is counted and taken off the queue, since it would come again for ever.

use std::fmt;

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::kept::later;
use crate::ids::InstanceId;

/// How long after its warning a spot machine is taken back, says EC2.
const SPOT_NOTICE: SignedDuration = SignedDuration::from_mins(2);

/// A message of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// By which it is taken off the queue.
    pub receipt: String,
    /// What it says.
    pub kind: Kind,
    /// The machines that it is about.
    pub instances: Vec<InstanceId>,
    /// When the machines are gone, where that is said.
    pub deadline: Option<Timestamp>,
    /// When it was sent, by its own account.
    pub sent: Option<Timestamp>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A spot machine is taken back in two minutes.
    SpotInterruption,
    /// A spot machine may be taken back before long: a hint.
    Rebalance,
    /// The hardware is to be maintained or retired.
    Health,
    /// A machine stops, or has.
    StateChange,
    /// A machine stops or starts in a way that takes nothing away.
    StateNote,
    /// A machine in a reservation is taken back.
    Reservation,
    /// Something that says nothing of machines.
    Other {
        /// What.
        what: String,
    },
}

impl Kind {
    /// Returns the kind as counters and reasons name it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SpotInterruption => "spot-interruption",
            Self::Rebalance => "rebalance",
            Self::Health => "health",
            Self::StateChange => "state-change",
            Self::StateNote => "state-note",
            Self::Reservation => "reservation",
            Self::Other { .. } => "other",
        }
    }

    /// Returns whether the machines that it is about go.
    #[must_use]
    pub fn takes_away(&self) -> bool {
        match self {
            Self::SpotInterruption | Self::Health | Self::Reservation => true,
            Self::StateChange | Self::Rebalance | Self::StateNote | Self::Other { .. } => false,
        }
    }

    /// Returns whether it is a reason to look at the machines: what EC2 says of their state now counts, as a
    /// message may come late, twice, or after a later one.
    #[must_use]
    pub fn is_hint(&self) -> bool {
        *self == Self::StateChange
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The envelope of an event.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "detail-type", alias = "detail_type", default)]
    detail_type: String,
    #[serde(default)]
    source: String,
    time: Option<Timestamp>,
    #[serde(default)]
    detail: Detail,
}

/// What an event says, whatever its kind; the parts of other kinds are absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Detail {
    #[serde(rename = "instance-id")]
    instance_id: Option<String>,
    state: String,
    #[serde(rename = "instance-termination-time")]
    termination_time: Option<String>,
    service: String,
    #[serde(rename = "eventTypeCategory")]
    category: String,
    #[serde(rename = "startTime")]
    start_time: Option<String>,
    #[serde(rename = "affectedEntities")]
    affected: Vec<Affected>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Affected {
    #[serde(rename = "entityValue")]
    value: String,
}

impl Message {
    /// Reads the body of a message of the queue.
    #[must_use]
    pub fn read(receipt: &str, body: &str) -> Self {
        let receipt = receipt.to_owned();
        match serde_json::from_str::<Envelope>(body) {
            Ok(envelope) => Self::of(receipt, envelope),
            Err(error) => {
                let kind = Kind::Other { what: format!("no event of EventBridge: {error}") };
                Self { receipt, kind, instances: Vec::new(), deadline: None, sent: None }
            }
        }
    }

    fn of(receipt: String, envelope: Envelope) -> Self {
        let Envelope { detail_type, source, time, detail } = envelope;
        let kind = kind_of(&source, &detail_type, &detail);
        let named = detail.instance_id.into_iter();
        let affected = detail.affected.into_iter().map(|entity| entity.value);
        let instances = named.chain(affected).filter(|id| id.starts_with("i-"));
        let deadline = match &kind {
            Kind::SpotInterruption => time.map(|time| later(time, SPOT_NOTICE)),
            Kind::Reservation => detail.termination_time.as_deref().and_then(moment),
            Kind::Health => detail.start_time.as_deref().and_then(moment),
            // It is on its way out as this is written.
            Kind::StateChange => time,
            Kind::Rebalance | Kind::StateNote | Kind::Other { .. } => None,
        };
        let instances = instances.map(InstanceId::from).collect();
        Self { receipt, kind, instances, deadline, sent: time }
    }
}

fn kind_of(source: &str, detail_type: &str, detail: &Detail) -> Kind {
    match (source, detail_type) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => Kind::SpotInterruption,
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => Kind::Rebalance,
        ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => Kind::Reservation,
        ("aws.ec2", "EC2 Instance State-change Notification") => match detail.state.as_str() {
            "stopping" | "stopped" | "shutting-down" | "terminated" => Kind::StateChange,
            _ => Kind::StateNote,
        },
        ("aws.health", "AWS Health Event")
            if detail.service == "EC2" && detail.category == "scheduledChange" =>
        {
            Kind::Health
        }
        _ => Kind::Other { what: format!("`{detail_type}` of `{source}`") },
    }
}

/// Reads a moment as AWS Health writes it (RFC 2822), or as everybody else does (RFC 3339).
fn moment(text: &str) -> Option<Timestamp> {
    let mail = || rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    text.parse().ok().or_else(mail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(source: &str, detail_type: &str, detail: &str) -> String {
        format!(
            r#"{{"version":"0","id":"12345678-1234-1234-1234-123456789012","detail-type":"{detail_type}",
            "source":"{source}","account":"123456789012","time":"2026-11-21T10:00:00Z","region":"us-east-2",
            "resources":["arn:aws:ec2:us-east-2a:instance/i-0a1b2c3d4e5f60718"],"detail":{detail}}}"#
        )
    }

    #[test]
    fn each_kind_of_event_is_read_with_its_machines_and_its_deadline() {
        let named = r#"{"instance-id":"i-0a1b2c3d4e5f60718","instance-action":"terminate"}"#;
        let state = |state: &str| format!(r#"{{"instance-id":"i-1","state":"{state}"}}"#);
        let health = r#"{"eventArn":"arn:aws:health:us-east-2::event/EC2/x","service":"EC2",
            "eventTypeCode":"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED","eventTypeCategory":"scheduledChange",
            "startTime":"Sat, 05 Dec 2026 15:10:09 GMT","eventDescription":[],
            "affectedEntities":[{"entityValue":"i-1"},{"entityValue":"i-2","tags":{}}]}"#;
        let issue = r#"{"service":"EC2","eventTypeCategory":"issue","affectedEntities":[{"entityValue":"i-1"}]}"#;
        let reserved = r#"{"instance-id":"i-1","instance-action":"terminate",
            "instance-termination-time":"2026-11-21T10:30:00Z","instance-lifecycle":"capacity-block"}"#;
        let spot = "EC2 Spot Instance Interruption Warning";
        let changed = "EC2 Instance State-change Notification";
        let cases = [
            ("aws.ec2", spot, named, "spot-interruption", 1, Some("2026-11-21T10:02:00Z")),
            ("aws.ec2", "EC2 Instance Rebalance Recommendation", named, "rebalance", 1, None),
            (
                "aws.ec2",
                changed,
                &state("stopping"),
                "state-change",
                1,
                Some("2026-11-21T10:00:00Z"),
            ),
            ("aws.ec2", changed, &state("running"), "state-note", 1, None),
            ("aws.health", "AWS Health Event", health, "health", 2, Some("2026-12-05T15:10:09Z")),
            ("aws.health", "AWS Health Event", issue, "other", 1, None),
            (
                "aws.ec2",
                "EC2 Capacity Reservation Instance Interruption Warning",
                reserved,
                "reservation",
                1,
                Some("2026-11-21T10:30:00Z"),
            ),
            ("aws.s3", spot, named, "other", 1, None),
            (
                "aws.ec2",
                spot,
                r#"{"instance-id":"vol-1"}"#,
                "spot-interruption",
                0,
                Some("2026-11-21T10:02:00Z"),
            ),
        ];
        for (source, detail_type, detail, kind, instances, deadline) in cases {
            let message = Message::read("r", &event(source, detail_type, detail));
            assert_eq!(message.kind.as_str(), kind, "{detail_type}");
            assert_eq!(message.instances.len(), instances, "{detail_type}");
            let deadline = deadline.map(|at| at.parse::<Timestamp>().expect("a time"));
            assert_eq!(message.deadline, deadline, "{detail_type}");
        }
    }

    #[test]
    fn what_is_no_event_is_a_message_all_the_same() {
        for body in ["", "{", "[]", "{}", r#"{"detail":null}"#, r#"{"time":"soon"}"#, "\u{0}"] {
            let message = Message::read("r", body);
            assert!(matches!(message.kind, Kind::Other { .. }), "{body:?}");
            assert!(!message.kind.takes_away() && message.instances.is_empty(), "{body:?}");
        }
    }
}
