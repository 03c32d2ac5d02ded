//! List prices: what a machine costs on demand, as the Price List service tells it.

use std::collections::BTreeMap;

use aws_sdk_pricing::types::{Filter, FilterType};
use serde_json::Value as Json;

use super::client::Aws;
use super::fault::port_error;
use super::limiter::Api;
use super::market::micro_usd;
use crate::catalog::Listed;
use crate::ids::InstanceTypeName;
use crate::port::PortError;
use crate::units::MicroUsd;

/// What the service calls EC2.
const SERVICE: &str = "AmazonEC2";

/// What a machine of Linux is listed under, and what one without a hypervisor is.
const SHARED: [(&str, &str); 2] = [("tenancy", "Shared"), ("productFamily", "Compute Instance")];
const BARE: [(&str, &str); 2] =
    [("tenancy", "Dedicated"), ("productFamily", "Compute Instance (bare metal)")];

/// Returns the region whose service is asked about `region`: there are few of them.
///
/// Source: AWS Billing, "Price List Query API endpoints".
pub(super) fn served_by(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("eu" | "il" | "me" | "af") => "eu-central-1",
        Some("ap") => "ap-south-1",
        Some("cn") => "cn-northwest-1",
        _ => "us-east-1",
    }
}

impl Aws {
    /// Reads the list price of one type in `region`; `None` where it has none.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub async fn list_price(
        &self,
        region: &str,
        name: &InstanceTypeName,
    ) -> Result<Option<MicroUsd>, PortError> {
        let (kind, mut hourly) =
            (if is_bare(name.as_str()) { BARE } else { SHARED }, BTreeMap::new());
        self.prices_of(region, (kind, Some(name.as_str())), &mut hourly).await?;
        Ok(hourly.remove(name))
    }

    /// Reads the list prices of `region`, a dozen pages.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub async fn list_prices(&self, region: &str) -> Result<Listed, PortError> {
        let mut listed = Listed { whole: true, ..Listed::default() };
        for kind in [SHARED, BARE] {
            self.prices_of(region, (kind, None), &mut listed.hourly).await?;
        }
        if listed.hourly.is_empty() {
            // A region without prices is a question that was not understood.
            let reason = format!("it lists no machine of {region}");
            return Err(super::cloud::refused("list prices", reason));
        }
        Ok(listed)
    }

    async fn prices_of(
        &self,
        region: &str,
        (kind, name): ([(&str, &str); 2], Option<&str>),
        into: &mut BTreeMap<InstanceTypeName, MicroUsd>,
    ) -> Result<(), PortError> {
        let always = [
            ("regionCode", region),
            ("operatingSystem", "Linux"),
            ("preInstalledSw", "NA"),
            ("capacitystatus", "Used"),
            ("marketoption", "OnDemand"),
        ];
        let of_type = name.map(|name| ("instanceType", name));
        let mut request = self.pricing.get_products().service_code(SERVICE);
        for (field, value) in always.into_iter().chain(kind).chain(of_type) {
            let filter = Filter::builder().r#type(FilterType::TermMatch).field(field).value(value);
            let filter = filter
                .build()
                .map_err(|error| super::cloud::refused("list prices", error.to_string()))?;
            request = request.filters(filter);
        }
        let mut pages = request.into_paginator().send();
        loop {
            self.limiter.take(Api::Other).await;
            let Some(page) = pages.next().await else { return Ok(()) };
            let page = page.map_err(|error| port_error("list prices", &error))?;
            into.extend(page.price_list().iter().filter_map(|product| price(product)));
        }
    }
}

fn is_bare(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, size)| size.starts_with("metal"))
}

/// Reads type and hourly price of a product; what cannot be read is no price.
fn price(product: &str) -> Option<(InstanceTypeName, MicroUsd)> {
    let product: Json = serde_json::from_str(product).ok()?;
    let name = product["product"]["attributes"]["instanceType"].as_str()?;
    let terms = product["terms"]["OnDemand"].as_object()?.values();
    let dimensions = terms.filter_map(|term| term["priceDimensions"].as_object());
    let hourly = dimensions.flat_map(serde_json::Map::values).filter(|d| d["unit"] == "Hrs");
    let prices =
        hourly.filter_map(|dimension| micro_usd(dimension["pricePerUnit"]["USD"].as_str()?));
    // Of several terms, which there are none of today, the dearest: a plan must not promise too little.
    Some((name.into(), prices.max()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn product(unit: &str, usd: &str) -> String {
        json!({
            "product": { "attributes": { "instanceType": "m5.large" } },
            "terms": { "OnDemand": { "A.B": { "priceDimensions": {
                "A.B.C": { "unit": unit, "pricePerUnit": { "USD": usd } }
            } } } }
        })
        .to_string()
    }

    #[test]
    fn a_product_has_the_price_of_an_hour_or_none() {
        let read = |text: &str| price(text).map(|(name, price)| (name.to_string(), price));
        let expected = Some(("m5.large".to_owned(), MicroUsd(107_000)));
        assert_eq!(read(&product("Hrs", "0.1070000000")), expected);
        for none in [product("Quantity", "0.1"), product("Hrs", "0.0000000000"), "{".to_owned()] {
            assert_eq!(read(&none), None, "{none}");
        }
    }

    #[test]
    fn a_region_is_asked_about_where_the_service_is() {
        for (region, expected) in [
            ("us-west-2", "us-east-1"),
            ("eu-west-1", "eu-central-1"),
            ("ap-southeast-2", "ap-south-1"),
            ("sa-east-1", "us-east-1"),
        ] {
            assert_eq!(served_by(region), expected);
        }
        assert!(is_bare("m5.metal-24xl") && !is_bare("m5.large"));
    }
}
