//! Open enumerations of the plan format: readers keep the words of newer formats.

use std::cmp::Ordering;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

macro_rules! define_words {
    ($($(#[$doc:meta])+ $name:ident { $($(#[$of:meta])+ $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum $name {
            $($(#[$of])+ $variant,)+
            /// A word of a newer format.
            Other(String),
        }

        impl $name {
            /// Returns the word of the format.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$variant,)+
                    _ => Self::Other(word),
                }
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.as_str().cmp(other.as_str())
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                String::json_schema(generator)
            }
        }
    )+};
}

define_words! {
    /// Severity of a diagnostic.
    DiagnosticSeverity {
        /// The cluster is behind the repository; only in drift reports.
        Behind = "behind",
        /// A problem that prevents the apply.
        Error = "error",
        /// Information for the reader.
        Note = "note",
        /// A problem that needs attention but does not prevent the apply.
        Warning = "warning",
    }

    /// Result of a policy rule.
    #[derive(Default)]
    CheckStatus {
        /// The policy could not be evaluated.
        Error = "error",
        /// The rule denies the plan.
        Fail = "fail",
        /// The rule has no findings.
        Pass = "pass",
        /// The rule was not evaluated.
        #[default]
        Unknown = "unknown",
        /// The rule warns.
        Warn = "warn",
    }

    /// Severity of a policy rule, from its name.
    CheckSeverity {
        /// Findings deny the plan.
        Deny = "deny",
        /// Findings deny the plan.
        Violation = "violation",
        /// Findings warn.
        Warn = "warn",
    }

    /// Method of the placement.
    PlacementMode {
        /// Pods are nominated to their planned nodes.
        Steered = "steered",
        /// kube-scheduler chooses the nodes.
        Unsteered = "unsteered",
    }
}

impl CheckStatus {
    /// Returns whether the check prevents an apply.
    pub fn is_denial(&self) -> bool {
        matches!(self, Self::Fail | Self::Error)
    }
}
