//! Measures the duration of each call from start to response, including retries and backoff.

use std::time::Instant;

use aws_sdk_ec2::config::interceptors::{
    BeforeSerializationInterceptorContextRef, FinalizerInterceptorContextRef,
};
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_types::config_bag::{Storable, StoreReplace};

use crate::telemetry::histogram::{Measurement, SharedHistograms};

#[derive(Debug, Clone)]
pub(super) struct CallTimer(pub(super) SharedHistograms);

#[derive(Debug)]
struct CallStart(Instant);

impl Storable for CallStart {
    type Storer = StoreReplace<Self>;
}

impl Intercept for CallTimer {
    fn name(&self) -> &'static str {
        "CallTimer"
    }

    fn read_before_execution(
        &self,
        _: &BeforeSerializationInterceptorContextRef<'_>,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        bag.interceptor_state().store_put(CallStart(Instant::now()));
        Ok(())
    }

    fn read_after_execution(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let (Some(CallStart(begun)), Some(call)) =
            (bag.load::<CallStart>(), bag.load::<Metadata>())
        {
            let succeeded = context.output_or_error().is_some_and(|end| end.is_ok());
            let result = if succeeded { "done" } else { "failed" };
            // Service names contain spaces.
            let service = call.service().to_lowercase().replace(' ', "-");
            let method = call.name().to_owned();
            self.0.note(Measurement::AwsCall { service, method, result }, begun.elapsed());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aws_config::retry::RetryConfig;
    use aws_config::{BehaviorVersion, Region};
    use aws_sdk_ec2::config::Credentials;

    use super::Measurement;
    use crate::adapters::aws::Aws;

    #[tokio::test]
    async fn call_latency_is_keyed_by_service_operation_and_result() {
        // No server listens on this port.
        let config = aws_config::defaults(BehaviorVersion::latest())
            .credentials_provider(Credentials::new("a", "b", None, None, "test"))
            .endpoint_url("http://127.0.0.1:1")
            .region(Region::new("eu-west-1"))
            .retry_config(RetryConfig::disabled())
            .load()
            .await;
        let aws = Aws::from_config(&config, "c");
        assert!(aws.account_id().await.is_err());
        let measured = aws.call_latencies();
        let calls: Vec<_> =
            measured.iter().map(|(call, all)| (call.clone(), all.count())).collect();
        let (service, method) = ("sts".to_owned(), "GetCallerIdentity".to_owned());
        assert_eq!(calls, [(Measurement::AwsCall { service, method, result: "failed" }, 1)]);
    }
}
