//! On-demand prices from the Price List service.

use std::collections::BTreeMap;

use aws_sdk_pricing::types::{Filter, FilterType};
use serde_json::Value as Json;

use super::client::Aws;
use super::errors::{port_error, refused};
use super::offerings::parse_price;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::InstanceTypeName;
use crate::model::market::ListPrices;
use crate::model::units::MicroUsd;

/// EC2 in the Price List service.
const SERVICE: &str = "AmazonEC2";

/// Price List filters of virtualized Linux instances, and of bare-metal instances.
const SHARED_FILTERS: [(&str, &str); 2] =
    [("tenancy", "Shared"), ("productFamily", "Compute Instance")];
const BARE_METAL_FILTERS: [(&str, &str); 2] =
    [("tenancy", "Dedicated"), ("productFamily", "Compute Instance (bare metal)")];

impl Aws {
    /// Reads the on-demand price of one type in `region`, or `None` if it has none.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn list_price(
        &self,
        region: &str,
        name: &InstanceTypeName,
    ) -> Result<Option<MicroUsd>, PortError> {
        let filters =
            if is_bare_metal(name.as_str()) { BARE_METAL_FILTERS } else { SHARED_FILTERS };
        let mut hourly = BTreeMap::new();
        self.collect_prices(region, filters, Some(name.as_str()), &mut hourly).await?;
        Ok(hourly.remove(name))
    }

    /// Reads the on-demand prices of `region`, about a dozen pages.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn list_prices(&self, region: &str) -> Result<ListPrices, PortError> {
        let mut prices = ListPrices { whole: true, ..ListPrices::default() };
        for filters in [SHARED_FILTERS, BARE_METAL_FILTERS] {
            self.collect_prices(region, filters, None, &mut prices.hourly).await?;
        }
        if prices.hourly.is_empty() {
            // An empty result means that the service misunderstood the query.
            let reason = format!("it lists no instance type of {region}");
            return Err(refused("list prices", reason));
        }
        Ok(prices)
    }

    async fn collect_prices(
        &self,
        region: &str,
        filters: [(&str, &str); 2],
        name: Option<&str>,
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
        for (field, value) in always.into_iter().chain(filters).chain(of_type) {
            let filter = Filter::builder().r#type(FilterType::TermMatch).field(field).value(value);
            let filter =
                filter.build().map_err(|error| refused("list prices", error.to_string()))?;
            request = request.filters(filter);
        }
        let mut pages = request.into_paginator().send();
        loop {
            self.limiter.acquire(ApiBucket::Other).await;
            let Some(page) = pages.next().await else { return Ok(()) };
            let page = page.map_err(|error| port_error("list prices", &error))?;
            into.extend(page.price_list().iter().filter_map(|product| parse_product(product)));
        }
    }
}

fn is_bare_metal(name: &str) -> bool {
    name.split_once('.').is_some_and(|(_, size)| size.starts_with("metal"))
}

/// Parses type and hourly price of a product. Returns `None` if it cannot be read.
fn parse_product(product: &str) -> Option<(InstanceTypeName, MicroUsd)> {
    let product: Json = serde_json::from_str(product).ok()?;
    let name = product["product"]["attributes"]["instanceType"].as_str()?;
    let terms = product["terms"]["OnDemand"].as_object()?.values();
    let dimensions = terms.filter_map(|term| term["priceDimensions"].as_object());
    let hourly = dimensions.flat_map(serde_json::Map::values).filter(|d| d["unit"] == "Hrs");
    let prices =
        hourly.filter_map(|dimension| parse_price(dimension["pricePerUnit"]["USD"].as_str()?));
    // Today there is only one term. With several, the highest price is safe: a plan must not
    // understate costs.
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
    fn only_hourly_prices_are_parsed() {
        let read = |text: &str| parse_product(text).map(|(name, price)| (name.to_string(), price));
        let expected = Some(("m5.large".to_owned(), MicroUsd(107_000)));
        assert_eq!(read(&product("Hrs", "0.1070000000")), expected);
        for none in [product("Quantity", "0.1"), product("Hrs", "0.0000000000"), "{".to_owned()] {
            assert_eq!(read(&none), None, "{none}");
        }
    }

    #[test]
    fn bare_metal_is_read_from_the_size() {
        assert!(is_bare_metal("m5.metal-24xl") && !is_bare_metal("m5.large"));
    }
}
