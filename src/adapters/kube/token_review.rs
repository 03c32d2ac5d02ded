//! Authentication and authorization: a token review, and an access review for the authenticated
//! user.

use ::kube::Error;
use ::kube::api::{Api, PostParams};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};

use super::client::Kubernetes;
use super::port_error;
use crate::apply::ports::{Authorizer, Caller, PortError};

/// Token audience that is valid for this program only: `kubectl create token NAME --audience
/// fleetwright.dev`.
const AUDIENCE: &str = "fleetwright.dev";

/// Maximum length of a token in bytes.
const TOKEN_MAX: usize = 16 << 10;

impl Authorizer for Kubernetes {
    /// Reviews the token for our audience. If the flag allows it, it is then reviewed for the API
    /// server itself.
    async fn caller(&self, token: &str) -> Result<Option<Caller>, PortError> {
        if token.is_empty() || token.len() > TOKEN_MAX {
            return Ok(None);
        }
        let ours = Some(vec![AUDIENCE.to_owned()]);
        for audiences in [Some(ours), self.accepts_api_tokens.then_some(None)].into_iter().flatten()
        {
            if let Some(caller) = self.review_token(token, audiences).await? {
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
        let review_response: Result<_, Error> =
            reviews.create(&PostParams::default(), &review).await;
        let review_response =
            review_response.map_err(|error| port_error("review access", &error))?;
        // A denial by one authorizer outweighs permissions of others.
        let status = review_response.status;
        Ok(status.is_some_and(|status| status.allowed && !status.denied.unwrap_or(false)))
    }
}

impl Kubernetes {
    async fn review_token(
        &self,
        token: &str,
        audiences: Option<Vec<String>>,
    ) -> Result<Option<Caller>, PortError> {
        let requested_audiences = audiences.clone();
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review_response: Result<_, Error> =
            reviews.create(&PostParams::default(), &review).await;
        let review_response =
            review_response.map_err(|error| port_error("review token", &error))?;
        let Some(status) = review_response.status else { return Ok(None) };
        let audience = status.audiences.unwrap_or_default();
        // An authenticator without audience support answers for the API server, not for our
        // audience.
        let meant = requested_audiences.is_none_or(|requested_audiences| {
            requested_audiences.iter().any(|one| audience.contains(one))
        });
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Returns a cluster that accepts every token for the API server, and none for our audience.
    fn cluster() -> Kubernetes {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = Vec::new();
                while !String::from_utf8_lossy(&request).contains("\"token\"") {
                    let mut bytes = [0; 4096];
                    let Ok(count @ 1..) = stream.read(&mut bytes) else { break };
                    request.extend_from_slice(&bytes[..count]);
                }
                let is_ours = String::from_utf8_lossy(&request).contains(AUDIENCE);
                let body = format!(
                    "{{\"apiVersion\":\"authentication.k8s.io/v1\",\"kind\":\"TokenReview\",\"spec\":{{}},\
                     \"status\":{{\"authenticated\":{},\"user\":{{\"username\":\"alice\"}}}}}}",
                    !is_ours
                );
                let length = body.len();
                // A client may disconnect at any time.
                let _ = write!(
                    stream,
                    "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nconnection: close\r\n\
                     content-length: {length}\r\n\r\n{body}"
                );
            }
        });
        let config = ::kube::Config::new(url.parse().expect("a URL"));
        Kubernetes::from_config(config).expect("a client")
    }

    #[tokio::test]
    async fn tokens_for_the_api_server_need_a_flag() {
        let cluster = cluster();
        assert_eq!(cluster.caller("a token").await.expect("reviewed"), None);
        let cluster = cluster.accept_api_tokens(true);
        let caller = cluster.caller("a token").await.expect("reviewed").expect("accepted");
        assert_eq!(caller.name, "alice");
    }
}
