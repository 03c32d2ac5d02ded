//! The namespace of an object that names none.

/// The namespace of objects without one, unless their delivery object sets another.
const DEFAULT_NAMESPACE: &str = "default";

/// Namespace rules without a delivery object.
pub(in super::super) const DEFAULT_NAMESPACES: NamespaceRules<'static> =
    NamespaceRules { default: DEFAULT_NAMESPACE, target: None };

/// Namespace rules that a delivery object applies to its objects.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct NamespaceRules<'a> {
    /// The namespace of objects without one.
    pub(in super::super) default: &'a str,
    /// The namespace of every object, overriding its own.
    pub(in super::super) target: Option<&'a str>,
}

impl NamespaceRules<'_> {
    /// Returns the namespace of an object that names `own`.
    pub(in super::super) fn resolve<'n>(&'n self, own: Option<&'n str>) -> &'n str {
        self.target.or(own).unwrap_or(self.default)
    }
}
