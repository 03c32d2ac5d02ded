//! What moto and the sandbox lack, answered by the proxy in their place: instance types that nobody knows,
//! list prices, quotas, parameters of AWS, capacity reservations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::proxy::{Answer, Call, answer};

/// Everything that is added.
#[derive(Debug, Default)]
pub(super) struct ProxyAdditions {
    /// Instance types, by name.
    pub(super) types: BTreeMap<String, NewType>,
    /// List prices, in USD an hour as the Price List service writes them, by type.
    pub(super) listed: BTreeMap<String, String>,
    /// Spot prices, by type and zone.
    pub(super) spot: BTreeMap<(String, String), String>,
    /// Service quotas, by code.
    pub(super) quotas: BTreeMap<String, f64>,
    /// Parameters of the Systems Manager, by path.
    pub(super) parameters: BTreeMap<String, String>,
    /// Capacity reservations, by id.
    pub(super) reservations: BTreeMap<String, Reserved>,
    /// Whether fleets come with an error beside their instance.
    pub(super) partly: bool,
    /// The only nodes that an API server shows, where it hides some.
    pub(super) nodes: Option<BTreeSet<String>>,
    /// Launch templates that lead into a reservation.
    into: BTreeMap<String, String>,
    /// Machines that run in a reservation.
    within: BTreeMap<String, String>,
}

/// An instance type.
#[derive(Debug, Clone)]
pub(super) struct NewType {
    pub(super) vcpus: u32,
    pub(super) memory_mib: u32,
    pub(super) zones: &'static [&'static str],
}

/// A capacity reservation.
#[derive(Debug, Clone)]
pub(super) struct Reserved {
    pub(super) kind: &'static str,
    pub(super) zone: &'static str,
    pub(super) total: u32,
}

impl ProxyAdditions {
    /// Returns the answer to what is asked of additions alone.
    pub(super) fn answer(&self, call: &Call) -> Option<Answer> {
        match call.name().as_str() {
            "DescribeSpotPriceHistory" => Some(answer(200, &self.spot_prices())),
            "DescribeInstanceTypes" => {
                let asked = listed(&call.form, "InstanceType");
                let asked: Vec<_> = asked
                    .into_iter()
                    .filter_map(|name| Some((name, self.types.get(name)?)))
                    .collect();
                (!asked.is_empty()).then(|| answer(200, &described(&asked)))
            }
            "DescribeCapacityReservations" => Some(answer(200, &self.reserved())),
            "GetProducts" => Some(answer(200, &self.products(&call.body).to_string())),
            "ListServiceQuotas" => {
                let quota = |(code, value): (&String, &f64)| json!({ "ServiceCode": "ec2", "QuotaCode": code, "Value": value });
                let quotas: Vec<Json> = self.quotas.iter().map(quota).collect();
                Some(answer(200, &json!({ "Quotas": quotas }).to_string()))
            }
            "GetParameter" => {
                let name = call.body["Name"].as_str().unwrap_or_default();
                let value = self.parameters.get(name)?;
                let parameter = json!({ "Name": name, "Type": "String", "Value": value });
                Some(answer(200, &json!({ "Parameter": parameter }).to_string()))
            }
            "CreateFleet" => {
                let id = self.into.get(template_of(call))?;
                let refusal = fleet_refused("ReservationCapacityExceeded");
                (self.free(id) == 0).then(|| answer(200, &refusal))
            }
            _ => None,
        }
    }

    /// Adds to an answer of the other side, and notes what follows from it.
    pub(super) fn amend(&mut self, call: &Call, answered: Answer) -> Answer {
        match call.name().as_str() {
            "CreateLaunchTemplate" => {
                let target = "LaunchTemplateData.CapacityReservationSpecification.\
                              CapacityReservationTarget.CapacityReservationId";
                let name = call.form.get("LaunchTemplateName");
                if let Some((name, id)) = name.zip(call.form.get(target)) {
                    self.into.insert(name.clone(), id.clone());
                }
                answered
            }
            "CreateFleet" => {
                if let Some(id) = self.into.get(template_of(call)) {
                    let text = answered.text();
                    let machines = text.split(['<', '>']).filter(|word| word.starts_with("i-"));
                    self.within.extend(machines.map(|machine| (machine.to_owned(), id.clone())));
                }
                if self.partly {
                    return answer(answered.status, &with_errors(&answered.body()));
                }
                answered
            }
            "DescribeInstances" if !self.within.is_empty() => {
                let mut body = answered.body();
                for (machine, id) in &self.within {
                    let named = format!("<instanceId>{machine}</instanceId>");
                    let more =
                        format!("{named}<capacityReservationId>{id}</capacityReservationId>");
                    body = body.replace(&named, &more);
                }
                answer(answered.status, &body)
            }
            name if name.starts_with("GET /api/v1/nodes") => match &self.nodes {
                Some(shown) => answer(answered.status, &with_nodes(&answered.body(), shown)),
                None => answered,
            },
            // On the last page alone, so that each is there once.
            "DescribeInstanceTypeOfferings" if !answered.body().contains("<nextToken>") => {
                let places = self.types.iter().flat_map(|(name, kind)| {
                    kind.zones.iter().map(move |zone| {
                        format!(
                            "<item><instanceType>{name}</instanceType><locationType>\
                             availability-zone</locationType><location>{zone}</location></item>"
                        )
                    })
                });
                let more: String = places.collect();
                let end = "</instanceTypeOfferingSet>";
                answer(answered.status, &answered.body().replace(end, &format!("{more}{end}")))
            }
            _ => answered,
        }
    }

    /// Returns how much of a reservation is free.
    fn free(&self, id: &str) -> usize {
        let used = self.within.values().filter(|own| *own == id).count();
        let total = self.reservations.get(id).map_or(0, |own| own.total);
        usize::try_from(total).expect("a count").saturating_sub(used)
    }

    /// Returns what spot costs now: moto says the same of every type, and since years.
    fn spot_prices(&self) -> String {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let usual = [("us-east-1a", "0.034500"), ("us-east-1b", "0.036100")];
        let usual = usual.map(|(zone, price)| (("m5.large", zone), price));
        let more = self
            .spot
            .iter()
            .map(|((kind, zone), price)| ((kind.as_str(), zone.as_str()), price.as_str()));
        let item = |((kind, zone), price): ((&str, &str), &str)| {
            format!(
                "<item><instanceType>{kind}</instanceType>\
                 <productDescription>Linux/UNIX</productDescription><spotPrice>{price}</spotPrice>\
                 <timestamp>{now}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
            )
        };
        let items: String = usual.into_iter().chain(more).map(item).collect();
        response(
            "DescribeSpotPriceHistory",
            &format!("<spotPriceHistorySet>{items}</spotPriceHistorySet>"),
        )
    }

    /// Returns the products that the filters of a request leave over.
    fn products(&self, asked: &Json) -> Json {
        let filters = asked["Filters"].as_array().expect("filters").iter();
        let filters: BTreeSet<(&str, &str)> =
            filters.filter_map(|f| Some((f["Field"].as_str()?, f["Value"].as_str()?))).collect();
        let of_type = filters.iter().find(|(field, _)| *field == "instanceType");
        let listed = self.listed.iter().filter(|(name, _)| {
            of_type.is_none_or(|(_, asked)| asked == name)
                && filters.contains(&("tenancy", "Shared"))
        });
        let product = |(name, usd): (&String, &String)| {
            let dimension = json!({ "unit": "Hrs", "pricePerUnit": { "USD": usd } });
            json!({
                "product": { "attributes": { "instanceType": name } },
                "terms": { "OnDemand": { "S.T": { "priceDimensions": { "S.T.D": dimension } } } }
            })
            .to_string()
        };
        json!({ "FormatVersion": "aws_v1", "PriceList": listed.map(product).collect::<Vec<_>>() })
    }

    fn reserved(&self) -> String {
        let item = |(id, own): (&String, &Reserved)| {
            let Reserved { kind, zone, total } = own;
            let free = self.free(id);
            format!(
                "<item><capacityReservationId>{id}</capacityReservationId><ownerId>123456789012</ownerId>\
                 <instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>\
                 <instancePlatform>Linux/UNIX</instancePlatform><tenancy>default</tenancy>\
                 <totalInstanceCount>{total}</totalInstanceCount>\
                 <availableInstanceCount>{free}</availableInstanceCount>\
                 <instanceMatchCriteria>targeted</instanceMatchCriteria><state>active</state>\
                 <reservationType>default</reservationType></item>"
            )
        };
        let items: String = self.reservations.iter().map(item).collect();
        response(
            "DescribeCapacityReservations",
            &format!("<capacityReservationSet>{items}</capacityReservationSet>"),
        )
    }
}

fn template_of(call: &Call) -> &str {
    let field = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
    call.form.get(field).map_or("", String::as_str)
}

/// Returns the items of a list as forms number them.
fn listed<'f>(form: &'f BTreeMap<String, String>, name: &str) -> Vec<&'f str> {
    (1..).map_while(|n| form.get(&format!("{name}.{n}"))).map(String::as_str).collect()
}

fn response(action: &str, inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>r</requestId>{inner}</{action}Response>"
    )
}

/// Returns a list with these nodes alone.
fn with_nodes(body: &str, shown: &BTreeSet<String>) -> String {
    let mut list: Json = serde_json::from_str(body).expect("a list");
    let items = list["items"].as_array_mut().expect("items");
    items.retain(|node| node["metadata"]["name"].as_str().is_some_and(|name| shown.contains(name)));
    list.to_string()
}

/// Adds an error to the answer to a fleet, as EC2 does where it found no capacity at first.
fn with_errors(body: &str) -> String {
    let refused = fleet_refused("InsufficientInstanceCapacity");
    let (begin, end) = ("<errorSet>", "</errorSet>");
    let from = refused.find(begin).expect("errors");
    let until = refused.find(end).expect("their end") + end.len();
    let body = body.replace("<errorSet></errorSet>", "").replace("<errorSet/>", "");
    body.replacen("<fleetInstanceSet", &format!("{}<fleetInstanceSet", &refused[from..until]), 1)
}

/// Returns the answer of EC2 to a fleet that it does not launch: no error of the call, but of its item.
pub(super) fn fleet_refused(code: &str) -> String {
    let inner = format!(
        "<fleetId>fleet-1</fleetId><errorSet><item><lifecycle>on-demand</lifecycle>\
         <errorCode>{code}</errorCode><errorMessage>We currently do not have sufficient capacity\
         </errorMessage></item></errorSet><fleetInstanceSet/>"
    );
    response("CreateFleet", &inner)
}

fn described(types: &[(&str, &NewType)]) -> String {
    let item = |(name, kind): &(&str, &NewType)| {
        let NewType { vcpus, memory_mib, zones: _ } = kind;
        format!(
            "<item><instanceType>{name}</instanceType><supportedUsageClasses><item>on-demand</item>\
             <item>spot</item></supportedUsageClasses><hypervisor>nitro</hypervisor><processorInfo>\
             <supportedArchitectures><item>x86_64</item></supportedArchitectures>\
             <sustainedClockSpeedInGhz>3.9</sustainedClockSpeedInGhz><manufacturer>Intel</manufacturer>\
             </processorInfo><vCpuInfo><defaultVCpus>{vcpus}</defaultVCpus></vCpuInfo><memoryInfo>\
             <sizeInMiB>{memory_mib}</sizeInMiB></memoryInfo><networkInfo>\
             <maximumNetworkInterfaces>4</maximumNetworkInterfaces>\
             <ipv4AddressesPerInterface>15</ipv4AddressesPerInterface></networkInfo></item>"
        )
    };
    let items: String = types.iter().map(item).collect();
    response("DescribeInstanceTypes", &format!("<instanceTypeSet>{items}</instanceTypeSet>"))
}
