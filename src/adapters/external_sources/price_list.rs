//! List prices of a region, from the files that AWS publishes for everyone.
//!
//! No credentials are sent, and no redirect is followed. The file of a region has hundreds of MB:
//! it is read row by row. Invariant: a file that ends early, is too long or has another form gives
//! no prices at all.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::time::Duration;

use csv::{Reader, ReaderBuilder, StringRecord};
use serde::Deserialize;
use ureq::BodyReader;

use super::download::{SourceDownloader, host};
use crate::model::desired::{
    PRICE_CURRENCY, PRICE_FILE_FORMAT, RegionPrices, check_price, is_price_list_version,
};
use crate::model::ids::{InstanceTypeName, Region};
use crate::model::units::MicroUsd;

/// Host and path of the lists of EC2. The host has those of all commercial regions.
const HOST: &str = "https://pricing.us-east-1.amazonaws.com";
const LISTS: &str = "/offers/v1.0/aws/AmazonEC2/";

/// Maximum bytes of the index of regions, of a list, and of a row of it.
const INDEX_BYTES_MAX: u64 = 1 << 20;
const LIST_BYTES_MAX: u64 = 4 << 30;
const ROW_BYTES_MAX: u64 = 64 << 10;

/// Maximum time of the download of a list.
const DOWNLOAD_MAX: Duration = Duration::from_mins(30);

/// Rows before the names of the columns.
const HEAD_ROWS: usize = 5;

/// Columns with their values in the rows of on-demand prices of Linux, as in the live price list.
const FILTERS: [(&str, &str); 8] = [
    ("TermType", "OnDemand"),
    ("Unit", "Hrs"),
    ("Currency", PRICE_CURRENCY),
    ("Location Type", "AWS Region"),
    ("Operating System", "Linux"),
    ("CapacityStatus", "Used"),
    ("MarketOption", "OnDemand"),
    ("Pre Installed S/W", "NA"),
];

/// Product families with the tenancy in which they are listed.
const FAMILIES: [(&str, &str); 2] =
    [("Compute Instance", "Shared"), ("Compute Instance (bare metal)", "Dedicated")];

/// The index of regions.
#[derive(Deserialize)]
struct RegionIndex {
    regions: BTreeMap<String, IndexedRegion>,
}

#[derive(Deserialize)]
struct IndexedRegion {
    #[serde(rename = "currentVersionUrl")]
    current_version_url: String,
}

impl SourceDownloader {
    /// Downloads the list prices of `region`: those of `version`, or else the newest ones.
    ///
    /// # Errors
    /// Returns the reason.
    pub fn list_prices(
        &self,
        region: &Region,
        version: Option<&str>,
    ) -> Result<RegionPrices, String> {
        let version = version.map_or_else(|| self.newest_version(region), |v| Ok(v.to_owned()));
        let found = version.and_then(|version| {
            let list = self.open(&format!("{version}/{region}/index.csv"), LIST_BYTES_MAX)?;
            read_prices(list, region, version)
        });
        found.map_err(|why| format!("the prices of {region} cannot be downloaded: {why}"))
    }

    fn newest_version(&self, region: &Region) -> Result<String, String> {
        let mut text = Vec::new();
        let mut index = self.open("current/region_index.json", INDEX_BYTES_MAX)?;
        index.read_whole(&mut text).map_err(|error| format!("the index of regions {error}"))?;
        let index: RegionIndex = serde_json::from_slice(&text)
            .map_err(|error| format!("the index of regions cannot be read: {error}"))?;
        let Some(IndexedRegion { current_version_url: url }) = index.regions.get(region.as_str())
        else {
            return Err("the index of regions does not list it".to_owned());
        };
        let version = url
            .strip_prefix(LISTS)
            .and_then(|rest| rest.strip_suffix(&format!("/{region}/index.json")))
            .filter(|version| is_price_list_version(version));
        version.map(str::to_owned).ok_or_else(|| format!("the index of regions names `{url}`"))
    }

    /// Opens a file of the lists, or of their mirror.
    fn open(&self, path: &str, limit: u64) -> Result<Download, String> {
        let url = self.mirror(&format!("{HOST}{LISTS}{path}"));
        self.rules.check_url(&url)?;
        let place = host(&url);
        let request = self.agent.get(&url).config().timeout_global(Some(DOWNLOAD_MAX)).build();
        let response = request.call().map_err(|error| format!("{place}: {error}"))?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        match response.status().as_u16() {
            200 => {}
            300..400 => return Err(format!("{place} redirects, which is not followed")),
            status => return Err(format!("{place} answers with status {status}")),
        }
        if let Some(encoding) = header("content-encoding").filter(|name| *name != "identity") {
            return Err(format!("{place} answers with the encoding {encoding}"));
        }
        let length = header("content-length").and_then(|length| length.parse().ok());
        let length: u64 = length.ok_or_else(|| format!("{place} states no length"))?;
        if length > limit {
            return Err(format!("{place} has {length} bytes, more than {limit}"));
        }
        Ok(Download { body: response.into_body().into_reader(), left: length, in_row: 0 })
    }
}

/// A body that is read to its stated length, with rows of bounded length.
struct Download {
    body: BodyReader<'static>,
    left: u64,
    /// Bytes since the begin of the row. The reader of rows resets it.
    in_row: u64,
}

impl Download {
    fn read_whole(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = [0; 8 << 10];
        loop {
            let count = self.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            into.extend_from_slice(&buffer[..count]);
            self.in_row = 0;
        }
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.in_row > ROW_BYTES_MAX {
            return Err(io::Error::other(format!("has a row of more than {ROW_BYTES_MAX} bytes")));
        }
        let count = self.body.read(buffer)?;
        if count == 0 && self.left > 0 {
            return Err(io::Error::other(format!("ends {} bytes early", self.left)));
        }
        let read = u64::try_from(count).unwrap_or(u64::MAX);
        self.left = self.left.saturating_sub(read);
        self.in_row = self.in_row.saturating_add(read);
        Ok(count)
    }
}

/// Reads rows of a list.
struct Rows {
    reader: Reader<Download>,
    row: StringRecord,
}

impl Rows {
    /// Reads the next row into `row`; false at the end.
    fn advance(&mut self) -> Result<bool, String> {
        self.reader.get_mut().in_row = 0;
        self.reader.read_record(&mut self.row).map_err(|error| format!("the list: {error}"))
    }

    fn cell(&self, column: usize) -> &str {
        self.row.get(column).unwrap_or_default()
    }

    fn line(&self) -> u64 {
        self.row.position().map_or(0, csv::Position::line)
    }
}

/// Reads the prices of a list.
fn read_prices(list: Download, region: &Region, version: String) -> Result<RegionPrices, String> {
    let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(list);
    let mut rows = Rows { reader, row: StringRecord::new() };
    let mut head = BTreeMap::new();
    for _ in 0..HEAD_ROWS {
        rows.advance()?;
        head.insert(rows.cell(0).to_owned(), rows.cell(1).to_owned());
    }
    for (name, expected) in
        [("FormatVersion", "v1.0"), ("OfferCode", "AmazonEC2"), ("Version", version.as_str())]
    {
        let found = head.get(name).map_or("", String::as_str);
        if found != expected {
            return Err(format!("the list has {name} `{found}`, not `{expected}`"));
        }
    }
    let published = head.get("Publication Date").and_then(|date| date.parse().ok());
    let published = published.ok_or("the list has no publication date")?;
    rows.advance()?;
    let columns = Columns::find(&rows.row)?;
    let mut hourly = BTreeMap::new();
    while rows.advance()? {
        let line = rows.line();
        if rows.row.len() != columns.count {
            let (found, expected) = (rows.row.len(), columns.count);
            return Err(format!("line {line} of the list has {found} columns, not {expected}"));
        }
        if !columns.match_row(&rows, region) {
            continue;
        }
        let (name, text) = (rows.cell(columns.name), rows.cell(columns.price));
        let wrong = |why: String| format!("line {line} of the list: {why}");
        let price = MicroUsd::from_price_list(text);
        let price = price.ok_or_else(|| wrong(format!("`{text}` is not a price")))?;
        // A price of zero is an unknown price.
        if price > MicroUsd::ZERO {
            let name = InstanceTypeName::from(name);
            check_price(&name, price).map_err(wrong)?;
            // Today there is only one price. With several, the highest one is safe: a plan must not
            // understate costs.
            let highest = hourly.entry(name).or_insert(price);
            *highest = price.max(*highest);
        }
    }
    if hourly.is_empty() {
        return Err("the list has no Linux instance type".to_owned());
    }
    Ok(RegionPrices {
        format_version: PRICE_FILE_FORMAT,
        region: region.clone(),
        version,
        published,
        currency: PRICE_CURRENCY.to_owned(),
        hourly,
    })
}

/// The columns that are read.
struct Columns {
    count: usize,
    filters: [(usize, &'static str); FILTERS.len()],
    region: usize,
    family: usize,
    tenancy: usize,
    name: usize,
    price: usize,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, String> {
        let find = |name: &str| {
            let found = header.iter().position(|column| column == name);
            found.ok_or_else(|| format!("the list has no column `{name}`"))
        };
        let mut filters = FILTERS.map(|(_, value)| (0, value));
        for (filter, (name, _)) in filters.iter_mut().zip(FILTERS) {
            filter.0 = find(name)?;
        }
        Ok(Self {
            count: header.len(),
            filters,
            region: find("Region Code")?,
            family: find("Product Family")?,
            tenancy: find("Tenancy")?,
            name: find("Instance Type")?,
            price: find("PricePerUnit")?,
        })
    }

    /// Returns whether a row has the price of an instance type.
    fn match_row(&self, rows: &Rows, region: &Region) -> bool {
        let kind = (rows.cell(self.family), rows.cell(self.tenancy));
        FAMILIES.contains(&kind)
            && rows.cell(self.region) == region.as_str()
            && self.filters.iter().all(|(column, value)| rows.cell(*column) == *value)
    }
}
