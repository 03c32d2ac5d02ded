//! The price file. `catalog prices` writes it, and plans read it.

use crate::model::desired::{
    Fleet, PRICE_CURRENCY, PRICE_FILE, PRICE_FILE_FORMAT, Problem, RegionPrices, Tree,
    is_price_list_version,
};
use crate::model::ids::Origin;

/// Reads the price file at the root of `tree`, if there is one.
///
/// An unreadable file, or one of another region than that of the settings, is an error: the plan
/// would not use the prices that were reviewed.
pub fn read_region_prices(tree: &Tree, fleet: &Fleet) -> (Option<RegionPrices>, Option<Problem>) {
    let Some(file) = tree.files.iter().find(|file| &*file.path == PRICE_FILE) else {
        return (None, None);
    };
    let error = |line, message| {
        let problem = Problem::error(Origin { file: file.path.clone(), line }, "Prices", message)
            .hint("restore it from Git, or run `fleetwright catalog prices`");
        (None, Some(problem))
    };
    let bytes = match &file.content {
        Ok(bytes) => bytes,
        Err(why) => return error(0, format!("cannot be read: {why}")),
    };
    let prices: RegionPrices = match serde_json::from_slice(bytes) {
        Ok(prices) => prices,
        Err(why) => {
            let line = u32::try_from(why.line()).unwrap_or(0);
            return error(line, format!("is not a file that `catalog prices` writes: {why}"));
        }
    };
    let RegionPrices { format_version, region, version, currency, .. } = &prices;
    let own = &fleet.cluster.region;
    if *format_version != PRICE_FILE_FORMAT {
        let message =
            format!("has format {format_version}, but this version reads {PRICE_FILE_FORMAT}");
        return error(0, message);
    }
    if !is_price_list_version(version) || currency != PRICE_CURRENCY {
        return error(0, format!("is not a list in {PRICE_CURRENCY} with a version in digits"));
    }
    if fleet.origin.is_some() && region != own {
        return error(0, format!("has the prices of {region}, and the cluster is in {own}"));
    }
    (Some(prices), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{Severity, TreeFile};
    use crate::model::units::MicroUsd;

    fn read_from(text: &str, fleet: &Fleet) -> (Option<RegionPrices>, Option<Problem>) {
        let content = Ok(text.as_bytes().into());
        let tree = Tree { files: vec![TreeFile { path: PRICE_FILE.into(), content }] };
        assert_eq!(crate::manifest::read(&tree, fleet).skipped, [], "it is no manifest");
        read_region_prices(&tree, fleet)
    }

    #[test]
    fn written_prices_are_read_and_wrong_ones_are_errors() {
        let prices = RegionPrices {
            format_version: PRICE_FILE_FORMAT,
            region: "eu-west-1".into(),
            version: "20260901120000".to_owned(),
            published: "2026-09-01T12:00:00Z".parse().expect("a time"),
            currency: PRICE_CURRENCY.to_owned(),
            hourly: [
                ("m5.large".into(), MicroUsd(107_000)),
                ("m5.xlarge".into(), MicroUsd(214_000)),
            ]
            .into(),
        };
        let text = crate::plan::canonical::pretty(&prices).expect("JSON");
        let nowhere = Fleet::default();
        assert_eq!(read_from(&text, &nowhere), (Some(prices), None));
        let line = 1 + u32::try_from(text.lines().take_while(|l| !l.contains("m5.large")).count())
            .expect("few lines");
        let price = |edit: &str| text.replace("0.107000", edit);
        let wrong = "is not a file that `catalog prices` writes";
        for (text, line, expected) in [
            (price("0"), Some(line), "m5.large is 0.000000, not above 0 and at most 10000"),
            (price("-0.1"), Some(line), "m5.large is -0.100000, not above 0"),
            (price("10000.1"), Some(line), "not above 0 and at most 10000"),
            (price("1e-1"), Some(line), wrong),
            (price("NaN"), Some(line), wrong),
            (text.replace("\"0.107000\"", "0.107"), Some(line), wrong),
            (text.replace("m5.xlarge", "m5.large"), None, "m5.large is listed twice"),
            (text.replace("m5.xlarge", "c5.large"), None, "c5.large is listed twice or out of"),
            (text.replace("m5.large", "m5/../large"), None, "is not the name of an instance type"),
            (text.replace("_version\": 1", "_version\": 2"), None, "has format 2"),
            (text.replace("USD", "CNY"), None, "is not a list in USD"),
            (text.replace("20260901120000", "../../x"), None, "with a version in digits"),
            ("{".to_owned(), Some(1), wrong),
        ] {
            let (prices, problem) = read_from(&text, &nowhere);
            let Problem { origin, severity, message, .. } = problem.expect("a problem");
            assert!(prices.is_none() && message.contains(expected), "{message}");
            assert_eq!(severity, Severity::Error);
            assert!(line.is_none_or(|line| origin.line == line), "{origin}: {message}");
        }
        let declared = Fleet { origin: Some(Origin::new("fleetwright.yaml", 1)), ..nowhere };
        let (prices, problem) = read_from(&text, &declared);
        let expected = "has the prices of eu-west-1, and the cluster is in us-east-1";
        assert!(prices.is_none() && problem.is_some_and(|found| found.message == expected));
    }
}
