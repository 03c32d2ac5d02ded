//! Responses for features that moto and the sandbox lack: new instance types, list prices, quotas,
//! public AWS parameters and capacity reservations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::proxy::{Answer, Call, answer};

/// The added features.
#[derive(Debug, Default)]
pub(super) struct ProxyAdditions {
    /// Instance types, by name.
    pub(super) types: BTreeMap<String, NewType>,
    /// List prices in USD per hour by type, in the format of the Price List service.
    pub(super) list_prices: BTreeMap<String, String>,
    /// Spot prices in USD per hour, by type and zone.
    pub(super) spot: BTreeMap<(String, String), String>,
    /// Service quotas in vCPUs, by code.
    pub(super) quotas: BTreeMap<String, f64>,
    /// Values of Systems Manager parameters, by path.
    pub(super) parameters: BTreeMap<String, String>,
    /// Capacity reservations, by id.
    pub(super) reservations: BTreeMap<String, Reserved>,
    /// True if a reply to `CreateFleet` has an error beside its instance.
    pub(super) partial_fleets: bool,
    /// Number of the offering of each fleet that EC2 launches; `None` for the first. It has one
    /// digit.
    pub(super) fleet_choice: Option<u8>,
    /// Nodes that the API server lists; `None` for all.
    pub(super) visible_nodes: Option<BTreeSet<String>>,
    /// Ids of the targeted reservations, by launch template name.
    template_reservations: BTreeMap<String, String>,
    /// Ids of the reservations that instances run in, by instance id.
    instance_reservations: BTreeMap<String, String>,
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
    pub(super) instance_type: &'static str,
    pub(super) zone: &'static str,
    pub(super) total: u32,
}

impl ProxyAdditions {
    /// Returns the response to a call that is not forwarded.
    pub(super) fn answer(&self, call: &Call) -> Option<Answer> {
        match call.name().as_str() {
            "DescribeSpotPriceHistory" => Some(answer(200, &self.spot_prices())),
            "DescribeInstanceTypes" => {
                let requested = numbered_items(&call.form, "InstanceType");
                let requested: Vec<_> = requested
                    .into_iter()
                    .filter_map(|name| Some((name, self.types.get(name)?)))
                    .collect();
                (!requested.is_empty()).then(|| answer(200, &instance_types_response(&requested)))
            }
            "DescribeCapacityReservations" => Some(answer(200, &self.reservations_response())),
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
                let id = self.template_reservations.get(template_of(call))?;
                let refusal = fleet_refused("ReservationCapacityExceeded");
                (self.free_count(id) == 0).then(|| answer(200, &refusal))
            }
            _ => None,
        }
    }

    /// Returns the request with the chosen offering in the first place. The upstream server launches
    /// the first offering, EC2 any of them.
    pub(super) fn with_fleet_choice(&self, call: &Call, raw: &[u8]) -> Vec<u8> {
        let config = |n: u8| format!("LaunchTemplateConfigs.{n}.");
        let chosen = self.fleet_choice.filter(|n| {
            call.name() == "CreateFleet" && call.form.keys().any(|key| key.starts_with(&config(*n)))
        });
        let Some(chosen) = chosen.filter(|n| *n != 1) else { return raw.to_vec() };
        let text = String::from_utf8_lossy(raw).replace(&config(1), &config(0));
        text.replace(&config(chosen), &config(1)).replace(&config(0), &config(chosen)).into_bytes()
    }

    /// Adds to the response of the upstream server, and records the reservations of launches.
    pub(super) fn extend_response(&mut self, call: &Call, reply: Answer) -> Answer {
        match call.name().as_str() {
            "CreateLaunchTemplate" => {
                let target = "LaunchTemplateData.CapacityReservationSpecification.\
                              CapacityReservationTarget.CapacityReservationId";
                let name = call.form.get("LaunchTemplateName");
                if let Some((name, id)) = name.zip(call.form.get(target)) {
                    self.template_reservations.insert(name.clone(), id.clone());
                }
                reply
            }
            "CreateFleet" => {
                if let Some(id) = self.template_reservations.get(template_of(call)) {
                    let text = reply.text();
                    let instances = text.split(['<', '>']).filter(|word| word.starts_with("i-"));
                    self.instance_reservations
                        .extend(instances.map(|instance| (instance.to_owned(), id.clone())));
                }
                if self.partial_fleets {
                    return answer(reply.status, &with_errors(&reply.body()));
                }
                reply
            }
            "DescribeInstances" if !self.instance_reservations.is_empty() => {
                let mut body = reply.body();
                for (instance, id) in &self.instance_reservations {
                    let named = format!("<instanceId>{instance}</instanceId>");
                    let additional =
                        format!("{named}<capacityReservationId>{id}</capacityReservationId>");
                    body = body.replace(&named, &additional);
                }
                answer(reply.status, &body)
            }
            name if name.starts_with("GET /api/v1/nodes") => match &self.visible_nodes {
                Some(visible) => answer(reply.status, &only_nodes(&reply.body(), visible)),
                None => reply,
            },
            // Only the last page is changed, so that each offering is listed once.
            "DescribeInstanceTypeOfferings" if !reply.body().contains("<nextToken>") => {
                let places = self.types.iter().flat_map(|(name, instance_type)| {
                    instance_type.zones.iter().map(move |zone| {
                        format!(
                            "<item><instanceType>{name}</instanceType><locationType>\
                             availability-zone</locationType><location>{zone}</location></item>"
                        )
                    })
                });
                let additional: String = places.collect();
                let end = "</instanceTypeOfferingSet>";
                answer(reply.status, &reply.body().replace(end, &format!("{additional}{end}")))
            }
            _ => reply,
        }
    }

    /// Returns the free instance count of a reservation.
    fn free_count(&self, id: &str) -> usize {
        let used =
            self.instance_reservations.values().filter(|reservation| *reservation == id).count();
        let total = self.reservations.get(id).map_or(0, |reservation| reservation.total);
        usize::try_from(total).expect("a count").saturating_sub(used)
    }

    /// Returns the current spot prices. moto has the same outdated price for all types.
    fn spot_prices(&self) -> String {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let regular = [("us-east-1a", "0.034500"), ("us-east-1b", "0.036100")];
        let regular = regular.map(|(zone, price)| (("m5.large", zone), price));
        let additional = self.spot.iter().map(|((instance_type, zone), price)| {
            ((instance_type.as_str(), zone.as_str()), price.as_str())
        });
        let item = |((instance_type, zone), price): ((&str, &str), &str)| {
            format!(
                "<item><instanceType>{instance_type}</instanceType>\
                 <productDescription>Linux/UNIX</productDescription><spotPrice>{price}</spotPrice>\
                 <timestamp>{now}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
            )
        };
        let items: String = regular.into_iter().chain(additional).map(item).collect();
        xml_response(
            "DescribeSpotPriceHistory",
            &format!("<spotPriceHistorySet>{items}</spotPriceHistorySet>"),
        )
    }

    /// Returns the products that match the filters of a request.
    fn products(&self, requested: &Json) -> Json {
        let filters = requested["Filters"].as_array().expect("filters").iter();
        let filters: BTreeSet<(&str, &str)> =
            filters.filter_map(|f| Some((f["Field"].as_str()?, f["Value"].as_str()?))).collect();
        let of_type = filters.iter().find(|(field, _)| *field == "instanceType");
        let list_prices = self.list_prices.iter().filter(|(name, _)| {
            of_type.is_none_or(|(_, requested)| requested == name)
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
        json!({ "FormatVersion": "aws_v1", "PriceList": list_prices.map(product).collect::<Vec<_>>() })
    }

    fn reservations_response(&self) -> String {
        let item = |(id, reservation): (&String, &Reserved)| {
            let Reserved { instance_type, zone, total } = reservation;
            let free_count = self.free_count(id);
            format!(
                "<item><capacityReservationId>{id}</capacityReservationId><ownerId>123456789012</ownerId>\
                 <instanceType>{instance_type}</instanceType><availabilityZone>{zone}</availabilityZone>\
                 <instancePlatform>Linux/UNIX</instancePlatform><tenancy>default</tenancy>\
                 <totalInstanceCount>{total}</totalInstanceCount>\
                 <availableInstanceCount>{free_count}</availableInstanceCount>\
                 <instanceMatchCriteria>targeted</instanceMatchCriteria><state>active</state>\
                 <reservationType>default</reservationType></item>"
            )
        };
        let items: String = self.reservations.iter().map(item).collect();
        xml_response(
            "DescribeCapacityReservations",
            &format!("<capacityReservationSet>{items}</capacityReservationSet>"),
        )
    }
}

fn template_of(call: &Call) -> &str {
    let field = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
    call.form.get(field).map_or("", String::as_str)
}

/// Returns the items of a numbered list in a form.
fn numbered_items<'f>(form: &'f BTreeMap<String, String>, name: &str) -> Vec<&'f str> {
    (1..).map_while(|n| form.get(&format!("{name}.{n}"))).map(String::as_str).collect()
}

fn xml_response(action: &str, inner: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>r</requestId>{inner}</{action}Response>"
    )
}

/// Returns a node list with only the nodes in `visible`.
fn only_nodes(body: &str, visible: &BTreeSet<String>) -> String {
    let mut list: Json = serde_json::from_str(body).expect("a list");
    let items = list["items"].as_array_mut().expect("items");
    items.retain(|node| {
        node["metadata"]["name"].as_str().is_some_and(|name| visible.contains(name))
    });
    list.to_string()
}

/// Adds an error to a `CreateFleet` response, as EC2 does after a first offering without capacity.
fn with_errors(body: &str) -> String {
    let refused = fleet_refused("InsufficientInstanceCapacity");
    let (begin, end) = ("<errorSet>", "</errorSet>");
    let from = refused.find(begin).expect("errors");
    let until = refused.find(end).expect("their end") + end.len();
    let body = body.replace("<errorSet></errorSet>", "").replace("<errorSet/>", "");
    body.replacen("<fleetInstanceSet", &format!("{}<fleetInstanceSet", &refused[from..until]), 1)
}

/// Returns the response of EC2 to a fleet that it does not launch. The call succeeds, and its only
/// item is an error.
pub(super) fn fleet_refused(code: &str) -> String {
    let inner = format!(
        "<fleetId>fleet-1</fleetId><errorSet><item><lifecycle>on-demand</lifecycle>\
         <errorCode>{code}</errorCode><errorMessage>We currently do not have sufficient capacity\
         </errorMessage></item></errorSet><fleetInstanceSet/>"
    );
    xml_response("CreateFleet", &inner)
}

fn instance_types_response(types: &[(&str, &NewType)]) -> String {
    let item = |(name, instance_type): &(&str, &NewType)| {
        let NewType { vcpus, memory_mib, zones: _ } = instance_type;
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
    xml_response("DescribeInstanceTypes", &format!("<instanceTypeSet>{items}</instanceTypeSet>"))
}
