//! Who asks, and what they may: a token review, and a review of access for whoever it names.

use ::kube::Error;
use ::kube::api::{Api, PostParams};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};

use super::client::Kubernetes;
use super::port_error;
use crate::port::{Caller, Gate, PortError};

/// The audience of tokens that are good for nothing else:
/// `kubectl create token NAME --audience fleetwright.dev`.
const AUDIENCE: &str = "fleetwright.dev";

/// Longest token that is passed on.
const TOKEN_MAX: usize = 16 << 10;

impl Gate for Kubernetes {
    /// Tokens for this program are looked at first, then those that the API server takes itself.
    async fn caller(&self, token: &str) -> Result<Option<Caller>, PortError> {
        if token.is_empty() || token.len() > TOKEN_MAX {
            return Ok(None);
        }
        for audiences in [Some(vec![AUDIENCE.to_owned()]), None] {
            if let Some(caller) = self.review(token, audiences).await? {
                return Ok(Some(caller));
            }
        }
        Ok(None)
    }

    async fn may(&self, caller: &Caller, verb: &str) -> Result<bool, PortError> {
        let attributes = ResourceAttributes {
            group: Some("fleetwright.dev".to_owned()),
            resource: Some("capacityplans".to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(caller.name.clone()),
                uid: (!caller.uid.is_empty()).then(|| caller.uid.clone()),
                groups: Some(caller.groups.clone()),
                extra: Some(caller.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer: Result<_, Error> = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| port_error("ask what somebody may", &error))?;
        // What is denied by one authorizer is denied, whatever another says.
        let status = answer.status;
        Ok(status.is_some_and(|status| status.allowed && !status.denied.unwrap_or(false)))
    }
}

impl Kubernetes {
    async fn review(
        &self,
        token: &str,
        audiences: Option<Vec<String>>,
    ) -> Result<Option<Caller>, PortError> {
        let asked = audiences.clone();
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let answer: Result<_, Error> = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| port_error("ask whose token it is", &error))?;
        let Some(status) = answer.status else { return Ok(None) };
        let audience = status.audiences.unwrap_or_default();
        // Whoever does not know of audiences answers for the API server, and not for us.
        let meant = asked.is_none_or(|asked| asked.iter().any(|one| audience.contains(one)));
        if !status.authenticated.unwrap_or(false) || !meant {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        let name = user.username.unwrap_or_default();
        Ok((!name.is_empty()).then(|| Caller {
            name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }
}
