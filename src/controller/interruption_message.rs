//! Interruption messages: `EventBridge` events about instances, as the queue delivers them.
//!
//! Five kinds of event are understood. Any other text is a message without instances: it is counted
//! and acknowledged, since it would return forever.

use std::fmt;

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::model::ids::InstanceId;
use crate::model::market::CapacityType;
use crate::model::observed::Instance;
use crate::model::saturating_time::{earlier, later};

/// EC2 reclaims a spot instance this long after its warning, as its documentation states.
const SPOT_NOTICE: SignedDuration = SignedDuration::from_mins(2);
/// AWS Health announces scheduled events earlier than this. A nearer start is not believed.
const SCHEDULED_NOTICE_MIN: SignedDuration = SignedDuration::from_mins(10);
/// The queue holds messages this long (`deploy/aws/queue.yaml`). An older send time is not believed:
/// a forged one moves the earliest believed start by at most this much.
const MESSAGE_AGE_MAX: SignedDuration = SignedDuration::from_mins(5);
/// No message announces the end of an instance earlier than this. A later deadline is not believed.
const NOTICE_MAX: SignedDuration = SignedDuration::from_hours(90 * 24);

/// A message of the interruption queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptionMessage {
    /// Receipt that acknowledges the message.
    pub receipt: String,
    /// Kind of event.
    pub kind: MessageKind,
    /// Instances that the message names.
    pub instances: Vec<InstanceId>,
    /// Time at which the instances terminate, if the message states it.
    pub deadline: Option<Timestamp>,
    /// Send time stated in the message.
    pub sent: Option<Timestamp>,
}

/// Kind of an interruption message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageKind {
    /// EC2 reclaims a spot instance in two minutes.
    SpotInterruption,
    /// EC2 may reclaim a spot instance before long: a hint.
    Rebalance,
    /// The hardware is scheduled for maintenance or retirement.
    Health,
    /// An instance is stopping or has stopped.
    StateChange,
    /// An instance changes state without loss of capacity.
    StateNote,
    /// EC2 reclaims an instance in a reservation.
    Reservation,
    /// Text that says nothing about instances.
    Other {
        /// Description of the text.
        description: String,
    },
}

impl MessageKind {
    /// Returns the kind as counters and reasons name it.
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

    /// Returns whether the named instances will terminate.
    pub fn is_termination(&self) -> bool {
        match self {
            Self::SpotInterruption | Self::Health | Self::Reservation => true,
            Self::StateChange | Self::Rebalance | Self::StateNote | Self::Other { .. } => false,
        }
    }

    /// Returns the kind that is the reason `why` of an interruption. A repair has none.
    pub fn from_reason(why: &str) -> Option<Self> {
        let kinds = [
            Self::SpotInterruption,
            Self::Rebalance,
            Self::Health,
            Self::StateChange,
            Self::StateNote,
            Self::Reservation,
        ];
        kinds.into_iter().find(|kind| kind.as_str() == why)
    }

    /// Returns whether EC2 can send such a message about `instance`, as far as its observed state
    /// says.
    pub fn is_possible_for(&self, instance: &Instance) -> bool {
        match self {
            Self::SpotInterruption => instance.capacity_type.is_spot(),
            Self::Reservation => {
                instance.capacity_type == CapacityType::Reserved || instance.reservation.is_some()
            }
            Self::Rebalance
            | Self::Health
            | Self::StateChange
            | Self::StateNote
            | Self::Other { .. } => true,
        }
    }

    /// Returns the part of a deadline that is believed at `now`. The sender of a message may be
    /// anyone who may write to the queue, or a clock that is wrong. `sent` is the time that the
    /// message states for itself.
    pub fn believed_deadline(
        &self,
        deadline: Option<Timestamp>,
        sent: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let deadline = deadline.filter(|at| *at <= later(now, NOTICE_MAX));
        match self {
            // The warning comes at most this long before the end.
            Self::SpotInterruption => deadline.map(|at| at.min(later(now, SPOT_NOTICE))),
            Self::Health => {
                // A message that waited on the queue gave its notice when it was sent.
                let plausible = earlier(now, MESSAGE_AGE_MAX)..=now;
                let sent = sent.filter(|at| plausible.contains(at)).unwrap_or(now);
                deadline.filter(|at| *at <= now || *at >= later(sent, SCHEDULED_NOTICE_MIN))
            }
            Self::Reservation
            | Self::StateChange
            | Self::Rebalance
            | Self::StateNote
            | Self::Other { .. } => deadline,
        }
    }

    /// Returns whether the message is a reason to observe the instances. Their current state in EC2
    /// counts: a message may come late, twice, or out of order.
    pub fn is_hint(&self) -> bool {
        *self == Self::StateChange
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Envelope of an event.
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

/// Details of any kind of event; fields of other kinds are absent.
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

impl InterruptionMessage {
    /// Reads the body of a queue message.
    pub fn read(receipt: &str, body: &str) -> Self {
        let receipt = receipt.to_owned();
        match serde_json::from_str::<Envelope>(body) {
            Ok(envelope) => Self::from_envelope(receipt, envelope),
            Err(error) => {
                let kind = MessageKind::Other {
                    description: format!("not an EventBridge event: {error}"),
                };
                Self { receipt, kind, instances: Vec::new(), deadline: None, sent: None }
            }
        }
    }

    fn from_envelope(receipt: String, envelope: Envelope) -> Self {
        let Envelope { detail_type, source, time, detail } = envelope;
        let kind = event_kind(&source, &detail_type, &detail);
        let named = detail.instance_id.into_iter();
        let affected = detail.affected.into_iter().map(|entity| entity.value);
        let instances = named.chain(affected).filter(|id| id.starts_with("i-"));
        let deadline = match &kind {
            MessageKind::SpotInterruption => time.map(|time| later(time, SPOT_NOTICE)),
            MessageKind::Reservation => detail.termination_time.as_deref().and_then(parse_time),
            MessageKind::Health => detail.start_time.as_deref().and_then(parse_time),
            // The instance is already stopping when the event is sent.
            MessageKind::StateChange => time,
            MessageKind::Rebalance | MessageKind::StateNote | MessageKind::Other { .. } => None,
        };
        let instances = instances.map(InstanceId::from).collect();
        Self { receipt, kind, instances, deadline, sent: time }
    }
}

fn event_kind(source: &str, detail_type: &str, detail: &Detail) -> MessageKind {
    match (source, detail_type) {
        ("aws.ec2", "EC2 Spot Instance Interruption Warning") => MessageKind::SpotInterruption,
        ("aws.ec2", "EC2 Instance Rebalance Recommendation") => MessageKind::Rebalance,
        ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning") => {
            MessageKind::Reservation
        }
        ("aws.ec2", "EC2 Instance State-change Notification") => match detail.state.as_str() {
            "stopping" | "stopped" | "shutting-down" | "terminated" => MessageKind::StateChange,
            _ => MessageKind::StateNote,
        },
        ("aws.health", "AWS Health Event")
            if detail.service == "EC2" && detail.category == "scheduledChange" =>
        {
            MessageKind::Health
        }
        _ => MessageKind::Other { description: format!("`{detail_type}` from `{source}`") },
    }
}

/// Reads a time in the format of AWS Health (RFC 2822) or in RFC 3339.
fn parse_time(text: &str) -> Option<Timestamp> {
    let rfc2822_time = || rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    text.parse().ok().or_else(rfc2822_time)
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
    fn each_event_kind_yields_instances_and_deadline() {
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
            let message = InterruptionMessage::read("r", &event(source, detail_type, detail));
            assert_eq!(message.kind.as_str(), kind, "{detail_type}");
            assert_eq!(message.instances.len(), instances, "{detail_type}");
            let deadline = deadline.map(|at| at.parse::<Timestamp>().expect("a time"));
            assert_eq!(message.deadline, deadline, "{detail_type}");
        }
    }

    #[test]
    fn implausible_times_are_not_believed() {
        let now = |minutes: i64| {
            let start: Timestamp = "2026-11-21T10:00:00Z".parse().expect("a time");
            later(start, SignedDuration::from_mins(minutes))
        };
        let days = |days: i64| now(days * 24 * 60);
        let (spot, health) = (MessageKind::SpotInterruption, MessageKind::Health);
        for (rule, kind, stated, believed) in [
            ("a warning of now", &spot, Some(now(2)), Some(now(2))),
            ("a late warning", &spot, Some(now(-60)), Some(now(-60))),
            ("a clock that is ahead", &spot, Some(now(60)), Some(now(2))),
            ("a spot instance of next year", &spot, Some(days(365)), None),
            ("a maintenance in two weeks", &health, Some(days(14)), Some(days(14))),
            ("a maintenance in 20 minutes", &health, Some(now(20)), Some(now(20))),
            ("a maintenance in one minute", &health, Some(now(1)), None),
            ("a maintenance of next year", &health, Some(days(365)), None),
            ("no time", &health, None, None),
        ] {
            assert_eq!(kind.believed_deadline(stated, None, now(0)), believed, "{rule}");
        }
    }

    #[test]
    fn notice_of_maintenance_counts_from_a_plausible_send_time() {
        let now = |minutes: i64| {
            let start: Timestamp = "2026-11-21T10:00:00Z".parse().expect("a time");
            later(start, SignedDuration::from_mins(minutes))
        };
        for (rule, sent, start, is_believed) in [
            ("without a send time", None, 9, false),
            ("sent now", Some(0), 9, false),
            ("waited four minutes", Some(-4), 7, true),
            ("waited four minutes, and announced nine minutes", Some(-4), 5, false),
            // A forged send time gains no more than the longest wait on the queue.
            ("waited as long as the queue holds it", Some(-5), 5, true),
            ("waited longer", Some(-6), 9, false),
            ("an hour old", Some(-60), 1, false),
            ("a clock that is ahead", Some(2), 9, false),
            ("a clock that is ahead, with enough notice", Some(2), 10, true),
            ("a start in the past", Some(-60), -1, true),
        ] {
            let (sent, start) = (sent.map(now), Some(now(start)));
            let believed = MessageKind::Health.believed_deadline(start, sent, now(0));
            assert_eq!(believed, start.filter(|_| is_believed), "{rule}");
        }
    }

    #[test]
    fn kinds_are_read_from_their_reasons() {
        for kind in [MessageKind::SpotInterruption, MessageKind::Health, MessageKind::Reservation] {
            assert_eq!(MessageKind::from_reason(&kind.to_string()), Some(kind));
        }
        assert_eq!(MessageKind::from_reason("not-ready"), None);
    }

    #[test]
    fn malformed_body_is_a_message_of_kind_other() {
        for body in ["", "{", "[]", "{}", r#"{"detail":null}"#, r#"{"time":"soon"}"#, "\u{0}"] {
            let message = InterruptionMessage::read("r", body);
            assert!(matches!(message.kind, MessageKind::Other { .. }), "{body:?}");
            assert!(!message.kind.is_termination() && message.instances.is_empty(), "{body:?}");
        }
    }
}
