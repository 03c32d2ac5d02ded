//! How long calls took: each from its beginning to its answer, tries and the waits between them included.

use std::time::Instant;

use aws_sdk_ec2::config::interceptors::{
    BeforeSerializationInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_types::config_bag::{Storable, StoreReplace};

use crate::measure::Meter;

/// Measures every call of a client.
#[derive(Debug, Clone)]
pub(super) struct Timed(pub(super) Meter);

/// When a call was begun.
#[derive(Debug)]
struct Begun(Instant);

impl Storable for Begun {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Timed {
    fn name(&self) -> &'static str {
        "Timed"
    }

    fn read_before_execution(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        bag.interceptor_state().store_put(Begun(Instant::now()));
        Ok(())
    }

    fn read_after_execution(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let (Some(Begun(begun)), Some(call)) = (bag.load::<Begun>(), bag.load::<Metadata>()) {
            let well = context.output_or_error().is_some_and(|end| end.is_ok());
            let result = if well { "done" } else { "failed" };
            // Names of services have spaces in them.
            let service = call.service().to_lowercase().replace(' ', "-");
            self.0.note(&format!("cloud.{service}.{}.{result}", call.name()), begun.elapsed());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aws_config::retry::RetryConfig;
    use aws_config::{BehaviorVersion, Region};
    use aws_sdk_ec2::config::Credentials;

    use crate::aws::Aws;

    #[tokio::test]
    async fn a_call_is_timed_by_its_service_its_name_and_how_it_ended() {
        // Nobody listens there.
        let config = aws_config::defaults(BehaviorVersion::latest())
            .credentials_provider(Credentials::new("a", "b", None, None, "test"))
            .endpoint_url("http://127.0.0.1:1")
            .region(Region::new("eu-west-1"))
            .retry_config(RetryConfig::disabled())
            .load()
            .await;
        let aws = Aws::with(&config, "c");
        assert!(aws.account().await.is_err());
        let measured = aws.measured();
        let told: Vec<_> = measured.iter().map(|(name, all)| (name, all.count())).collect();
        assert_eq!(told, [("cloud.sts.GetCallerIdentity.failed", 1)]);
    }
}
