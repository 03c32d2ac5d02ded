//! Devices that pods claim by Dynamic Resource Allocation (DRA).

/// Devices that a `ResourceClaimTemplate` claims for each pod that names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceClaim {
    /// Requests; all must be met on one node.
    pub requests: Vec<DeviceRequest>,
    /// True if constraints relate the attributes of the devices.
    pub is_constrained: bool,
}

/// A request of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Name of the request.
    pub name: String,
    /// Name of the `DeviceClass`.
    pub class: String,
    /// CEL expressions that each device must satisfy.
    pub selectors: Vec<String>,
    /// Number of devices.
    pub amount: DeviceAmount,
}

/// Number of devices of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAmount {
    /// This many whole devices.
    Exactly(i64),
    /// Decided by a field that is not planned, by name.
    Unplanned(&'static str),
}
