//! `catalog prices`, with a server on 127.0.0.1 as a mirror of the price list of AWS, and plans with
//! the prices that it saves.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::binary::{CommandResult, Workspace};

const FILE: &str = "tree/fleetwright.prices.json";
const VERSION: &str = "20260901120000";
const INDEX: &str = "/offers/v1.0/aws/AmazonEC2/current/region_index.json";
const LIST: &str = "/offers/v1.0/aws/AmazonEC2/20260901120000/eu-west-1/index.csv";

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: eu-west-1, zones: [eu-west-1a] }
  delivery:
    privateHosts: [http://SERVER]
    mirrors: { https://pricing.us-east-1.amazonaws.com/: http://SERVER/ }
";

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large, r5.xlarge] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { x: z } }]
  securityGroupSelectorTerms: [{ tags: { x: z } }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: api, namespace: web }
spec:
  replicas: 3
  selector: { matchLabels: { app: api } }
  template:
    metadata: { labels: { app: api } }
    spec: { containers: [ { name: api, image: api, resources: { requests: { cpu: 500m, memory: 1Gi } } } ] }
";

/// Columns in the order of AWS, with the values of the row of an m5.large.
const COLUMNS: [(&str, &str); 17] = [
    ("SKU", "22222PRICEMADEUP"),
    ("TermType", "OnDemand"),
    ("PriceDescription", "$0.107 per \"\"On Demand\"\" Linux m5.large, an hour"),
    ("Unit", "Hrs"),
    ("PricePerUnit", "0.1070000000"),
    ("Currency", "USD"),
    ("LeaseContractLength", ""),
    ("Product Family", "Compute Instance"),
    ("Location Type", "AWS Region"),
    ("Instance Type", "m5.large"),
    ("Tenancy", "Shared"),
    ("Operating System", "Linux"),
    ("usageType", "EU-BoxUsage:m5.large"),
    ("CapacityStatus", "Used"),
    ("MarketOption", "OnDemand"),
    ("Pre Installed S/W", "NA"),
    ("Region Code", "eu-west-1"),
];

/// Returns a row: that of an m5.large, with other values.
fn row(changes: &[(&str, &str)]) -> String {
    let cell = |(name, value): &(&str, &str)| {
        let changed = changes.iter().find(|(other, _)| other == name);
        match changed.map_or(*value, |(_, value)| value) {
            "" => String::new(),
            value => format!("\"{value}\""),
        }
    };
    COLUMNS.iter().map(cell).collect::<Vec<_>>().join(",")
}

fn priced(name: &str, price: &str) -> String {
    row(&[("Instance Type", name), ("PricePerUnit", price)])
}

/// Returns a list with prices of all kinds.
fn list() -> String {
    let names = COLUMNS.map(|(name, _)| format!("\"{name}\"")).join(",");
    let mut rows = vec![
        "\"FormatVersion\",\"v1.0\"".to_owned(),
        "\"Disclaimer\",\"This list is made up, and has \"\"no\"\" real price.\"".to_owned(),
        "\"Publication Date\",\"2026-09-01T12:00:00Z\"".to_owned(),
        format!("\"Version\",\"{VERSION}\""),
        "\"OfferCode\",\"AmazonEC2\"".to_owned(),
        names,
        row(&[("Product Family", "Storage"), ("Instance Type", ""), ("Unit", "GB-Mo")]),
        priced("t3.nano", "0.0057123456"),
        priced("r5.large", "0.1410000000"),
        priced("r5.large", "0.1500000000"),
        priced("m5.2xlarge", "0.0000000000"),
        priced("u7in-32tb.224xlarge", "417"),
    ];
    for (tenancy, price) in [("Dedicated", "4.6080000000"), ("Shared", "4.5000000000")] {
        let family = ("Product Family", "Compute Instance (bare metal)");
        let name = ("Instance Type", "c5.metal");
        rows.push(row(&[family, name, ("Tenancy", tenancy), ("PricePerUnit", price)]));
    }
    // The price of an m5.large is between lower and higher ones that are not of its kind.
    for (column, value) in [
        ("TermType", "Reserved"),
        ("Unit", "Quantity"),
        ("Currency", "CNY"),
        ("Product Family", "Dedicated Host"),
        ("Location Type", "AWS Local Zone"),
        ("Tenancy", "Dedicated"),
        ("Tenancy", "Host"),
        ("Operating System", "Windows"),
        ("Operating System", "RHEL"),
        ("CapacityStatus", "UnusedCapacityReservation"),
        ("CapacityStatus", "AllocatedCapacityReservation"),
        ("MarketOption", "CapacityBlock"),
        ("Pre Installed S/W", "SQL Web"),
        ("Region Code", "eu-west-2"),
    ] {
        for price in ["0.0500000000", "0.9000000000"] {
            rows.push(row(&[(column, value), ("PricePerUnit", price)]));
            rows.push(row(&[
                (column, value),
                ("PricePerUnit", price),
                ("Instance Type", "m5.8xlarge"),
            ]));
        }
        rows.push(row(&[]));
    }
    rows.join("\n") + "\n"
}

/// Splits a line at the commas outside of quotes.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cells.last_mut().expect("one at least").push(letter),
        }
    }
    cells
}

/// Reads the prices of a list in millionths, with code of its own.
fn independent_reading(list: &str) -> BTreeMap<String, u64> {
    let lines: Vec<&str> = list.lines().collect();
    let names = cells(lines[5]);
    let mut found = BTreeMap::new();
    for line in &lines[6..] {
        let row: BTreeMap<String, String> = names.iter().cloned().zip(cells(line)).collect();
        let is_metal = row["Product Family"].ends_with("(bare metal)");
        let tenancy = if is_metal { "Dedicated" } else { "Shared" };
        let family = &row["Product Family"];
        let is_wanted = family.starts_with("Compute Instance")
            && row["Tenancy"] == tenancy
            && row["Region Code"] == "eu-west-1"
            && row["Location Type"] == "AWS Region"
            && row["Operating System"] == "Linux"
            && row["TermType"] == "OnDemand"
            && row["MarketOption"] == "OnDemand"
            && row["CapacityStatus"] == "Used"
            && row["Pre Installed S/W"] == "NA"
            && (row["Unit"].as_str(), row["Currency"].as_str()) == ("Hrs", "USD");
        let text = &row["PricePerUnit"];
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits: u64 = format!("{whole}{rest:0<10}").parse().expect("digits");
        if is_wanted && digits > 0 {
            let micros = digits.div_ceil(10_000);
            let highest = found.entry(row["Instance Type"].clone()).or_insert(micros);
            *highest = micros.max(*highest);
        }
    }
    found
}

fn response(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").as_bytes(), body].concat()
}

fn ok(body: &str) -> Vec<u8> {
    response(&format!("200 OK\r\ncontent-length: {}", body.len()), body.as_bytes())
}

fn index(url: &str) -> Vec<u8> {
    ok(&format!("{{\"regions\":{{\"eu-west-1\":{{\"currentVersionUrl\":\"{url}\"}}}}}}"))
}

/// A server of raw responses by path, and a repository that uses it as a mirror.
struct Mirror {
    workspace: Workspace,
    responses: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// Head lines of each request.
    requests: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Mirror {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let responses = [
            (INDEX.to_owned(), index(&LIST.replace("csv", "json"))),
            (LIST.to_owned(), ok(&list())),
        ];
        let responses = Arc::new(Mutex::new(BTreeMap::from(responses)));
        let requests = Arc::new(Mutex::new(Vec::<Vec<String>>::new()));
        let (served, seen) = (Arc::clone(&responses), Arc::clone(&requests));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let path = lines.first().and_then(|line| line.split(' ').nth(1));
                let path = path.unwrap_or_default().to_owned();
                seen.lock().expect("no panic").push(lines);
                let none = response("404 Not Found\r\ncontent-length: 0", b"");
                let response = served.lock().expect("no panic").get(&path).cloned();
                // A client may end a response early.
                let _ = stream.write_all(&response.unwrap_or(none));
            }
        });
        let workspace = Workspace::empty();
        workspace.write("tree/fleetwright.yaml", &FLEET.replace("SERVER", &address));
        workspace.write("tree/pool.yaml", POOL);
        let netrc = format!(
            "machine 127.0.0.1 login me password secret\nmachine {address} login me password secret\n"
        );
        workspace.write(".netrc", &netrc);
        Self { workspace, responses, requests }
    }

    fn serve(&self, path: &str, response: Vec<u8>) {
        self.responses.lock().expect("no panic").insert(path.to_owned(), response);
    }

    fn requests(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.requests.lock().expect("no panic"))
    }

    fn run(&self, arguments: &[&str]) -> CommandResult {
        self.workspace.run(arguments)
    }

    fn download(&self) -> CommandResult {
        let ran = self.run(&["catalog", "prices", "tree"]);
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        ran
    }

    fn plan(&self) -> Value {
        let at = ["--at", "2026-10-01T10:00:00Z", "--format", "json"];
        let ran = self.run(&[&["plan", "tree"][..], &at].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err))
    }
}

#[test]
fn saved_prices_equal_the_list_and_replace_the_stand_in() {
    let mirror = Mirror::start();
    let before = mirror.plan();
    let estimated =
        |plan: &Value| plan["capacity"]["diagnostics"].to_string().contains("price-estimated");
    assert!(estimated(&before) && before["capacity"]["cost"]["prices"]["stand_in"] == true);
    let checked = mirror.run(&["catalog", "prices", "--check", "tree"]);
    assert_eq!(checked.code, Some(1), "{}", checked.out);
    assert!(checked.err.contains("there is no fleetwright.prices.json"), "{}", checked.err);
    assert_eq!(mirror.requests().len(), 0, "a plan and a check without a file need no network");

    let updated = mirror.download();
    let summary =
        "fleetwright.prices.json: 5 instance types of eu-west-1, published 2026-09-01T12:00:00Z.\n";
    assert_eq!(updated.out, summary);
    for request in mirror.requests() {
        let secret = request.iter().any(|line| line.to_lowercase().starts_with("authorization"));
        assert!(!secret, "no credentials are sent: {request:?}");
    }
    let text = mirror.workspace.read(FILE);
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let micros = |(name, price): (&String, &Value)| {
        let price = price.as_str().expect("text").replace('.', "").parse().expect("digits");
        (name.clone(), price)
    };
    let saved: BTreeMap<String, u64> =
        file["hourly"].as_object().expect("prices").iter().map(micros).collect();
    assert_eq!(saved, independent_reading(&list()));
    assert_eq!(saved["m5.large"], 107_000);
    assert!(text.contains("\n    \"m5.large\": \"0.107000\",\n"), "one type a line: {text}");
    mirror.download();
    assert_eq!(mirror.workspace.read(FILE), text, "equal lists give equal bytes");

    mirror.requests();
    let after = mirror.plan();
    assert_eq!(mirror.requests().len(), 0, "a plan needs no network");
    let cost = &after["capacity"]["cost"];
    let expected = serde_json::json!({
        "source": "fleetwright.prices.json", "region": "eu-west-1", "date": "2026-09-01", "stand_in": false
    });
    assert_eq!((estimated(&after), &cost["prices"]), (false, &expected));
    assert_eq!(cost["hourly_after"], "0.107000");
    let base = |plan: &Value| plan["capacity"]["base"]["tree"].clone();
    assert_ne!(base(&before), base(&after), "the file is an input of the plan");
    let listed = ["catalog", "list", "--region", "eu-west-1", "--limit", "1", "--format", "json"];
    let listed = mirror.run(&[&listed[..], &["--path", "tree"]].concat());
    let listed: Value = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!((&listed["prices"], &listed["types"][0]["name"]), (&expected, &"t3.nano".into()));
    let pool = mirror.run(&["catalog", "explain", "m5.large", "--pool", "web", "--path", "tree"]);
    assert!(pool.out.contains("Prices: fleetwright.prices.json of eu-west-1"), "{}", pool.out);
}

#[test]
fn lowered_price_is_found_by_a_check() {
    let mirror = Mirror::start();
    mirror.download();
    // A newer list is no difference: the file names its version.
    mirror.serve(INDEX, index("/offers/v1.0/aws/AmazonEC2/20270101000000/eu-west-1/index.json"));
    let check = || mirror.run(&["catalog", "prices", "--check", "tree"]);
    let same = check();
    assert_eq!(same.code, Some(0), "{}{}", same.out, same.err);
    let text = mirror.workspace.read(FILE);
    let lowered =
        text.replace("0.107000", "0.000001").replace("    \"t3.nano\": \"0.005713\",\n", "");
    mirror.workspace.write(FILE, &lowered);
    let found = check();
    assert_eq!(found.code, Some(1), "{}{}", found.out, found.err);
    let expected = "~ m5.large 0.000001, and AWS says 0.107000\n+ t3.nano 0.005713 is missing\n";
    assert!(found.out.starts_with(expected), "{}", found.out);
    assert_eq!(mirror.workspace.read(FILE), lowered, "a check writes nothing");
}

#[test]
fn wrong_price_file_is_an_error_with_its_line() {
    let mirror = Mirror::start();
    mirror.download();
    let text = mirror.workspace.read(FILE);
    let line = 1 + text.lines().take_while(|line| !line.contains("m5.large")).count();
    mirror.workspace.write(FILE, &text.replace("0.107000", "0.000000"));
    let error = format!("fleetwright.prices.json:{line}: ");
    for command in [
        &["validate", "tree"][..],
        &["plan", "tree"],
        &["catalog", "prices", "--check", "tree"],
        &["catalog", "list", "--path", "tree"],
        &["catalog", "list", "--pool", "web", "--path", "tree"],
    ] {
        let ran = mirror.run(command);
        assert_eq!(ran.code, Some(1), "{command:?}");
        assert!(format!("{}{}", ran.out, ran.err).contains(&error), "{}{}", ran.out, ran.err);
    }
    mirror.download();
    let moved = mirror.workspace.read("tree/fleetwright.yaml").replace("eu-west-1", "eu-west-2");
    mirror.workspace.write("tree/fleetwright.yaml", &moved);
    let ran = mirror.run(&["plan", "tree"]);
    let expected = "has the prices of eu-west-1, and the cluster is in eu-west-2";
    assert!(ran.code == Some(1) && ran.out.contains(expected), "{}{}", ran.out, ran.err);
}

#[test]
fn list_that_is_not_whole_or_not_of_aws_changes_nothing() {
    let mirror = Mirror::start();
    mirror.download();
    let saved = mirror.workspace.read(FILE);
    let whole = list();
    let refused = |path: &str, response: Vec<u8>, expected: &str| {
        mirror.serve(INDEX, index(&LIST.replace("csv", "json")));
        mirror.serve(LIST, ok(&whole));
        mirror.serve(path, response);
        mirror.requests();
        let ran = mirror.run(&["catalog", "prices", "tree"]);
        assert_eq!(ran.code, Some(1), "{expected}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(expected), "{expected}: {}", ran.err);
        assert!(ran.err.contains("map it to a mirror (spec.delivery.mirrors)"), "{}", ran.err);
        assert_eq!(mirror.workspace.read(FILE), saved, "{expected}");
        mirror.requests().len()
    };
    let length = |length: usize| format!("200 OK\r\ncontent-length: {length}");
    let body = whole.as_bytes();
    let end = whole.rfind("\n\"").expect("rows") + 1;
    refused(LIST, response(&length(body.len()), &body[..end]), "the list: ");
    refused(LIST, response("200 OK", body), "states no length");
    let far =
        |to: &str| response(&format!("302 Found\r\ncontent-length: 0\r\nlocation: {to}"), b"");
    assert_eq!(refused(LIST, far("https://example.com/index.csv"), "redirects"), 2);
    assert_eq!(refused(INDEX, far(LIST), "redirects"), 1, "not even to the same host");
    refused(LIST, response(&length(5 << 30), b""), "bytes, more than");
    refused(INDEX, response(&length(2 << 20), b""), "bytes, more than");
    let packed = format!("{}\r\ncontent-encoding: gzip", length(body.len()));
    refused(LIST, response(&packed, body), "answers with the encoding gzip");
    refused(LIST, response("500 Oops\r\ncontent-length: 0", b""), "answers with status 500");
    for (from, to, expected) in [
        ("\"MarketOption\"", "\"Market\"", "the list has no column `MarketOption`"),
        ("\"v1.0\"", "\"v2.0\"", "the list has FormatVersion `v2.0`, not `v1.0`"),
        (VERSION, "20260901120001", "the list has Version `20260901120001`"),
        ("\"0.0057123456\"", "\"-0.1\"", "line 8 of the list: `-0.1` is not a price"),
        ("\"0.0057123456\"", "\"20000\"", "line 8 of the list: the price of t3.nano is 20000"),
        ("\"t3.nano\"", "\"../nano\"", "`../nano` is not the name of an instance type"),
        ("\"0.0057123456\"", "\"0\",\"0\"", "line 8 of the list has 18 columns, not 17"),
        ("\"Linux\"", "\"Unix\"", "the list has no Linux instance type"),
    ] {
        refused(LIST, ok(&whole.replace(from, to)), expected);
    }
    let endless = format!("{whole}\"{}", "x".repeat(200 << 10));
    refused(LIST, ok(&endless), "has a row of more than 65536 bytes");
    refused(
        INDEX,
        index("https://example.com/20260901120000/eu-west-1/index.json"),
        "names `https",
    );
    refused(INDEX, index("/offers/v1.0/aws/AmazonEC2/../x/eu-west-1/index.json"), "names `/offers");
    refused(INDEX, ok("{\"regions\":{}}"), "does not list it");
    refused(INDEX, ok("<html>"), "the index of regions cannot be read");
}
