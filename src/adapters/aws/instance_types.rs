//! Instance types described by EC2. Only types that are missing from the embedded catalog are
//! requested.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::{
    EbsInfo, GpuDeviceInfo, InstanceStorageInfo, InstanceType, InstanceTypeInfo, NetworkCardInfo,
    NetworkInfo, ProcessorInfo,
};

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::InstanceTypeName;
use crate::model::market::{DeviceFacts, TypeFacts};

/// Maximum number of types per call. Source: EC2 API reference, `DescribeInstanceTypes`.
const TYPES_MAX: usize = 100;

impl Aws {
    /// Returns the EC2 descriptions of types.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn describe_instance_types(
        &self,
        names: &BTreeSet<InstanceTypeName>,
    ) -> Result<BTreeMap<InstanceTypeName, TypeFacts>, PortError> {
        let names: Vec<InstanceType> =
            names.iter().map(|name| InstanceType::from(name.as_str())).collect();
        let mut described = BTreeMap::new();
        for chunk in names.chunks(TYPES_MAX) {
            let request = self.ec2.describe_instance_types().set_instance_types(Some(chunk.into()));
            let mut pages = request.into_paginator().send();
            loop {
                self.limiter.acquire(ApiBucket::Describe).await;
                let Some(page) = pages.next().await else { break };
                let page = page.map_err(|error| port_error("describe instance types", &error))?;
                let found = page.instance_types.unwrap_or_default().into_iter();
                described.extend(found.filter_map(facts));
            }
        }
        Ok(described)
    }
}

/// Converts a description. Missing attributes become 0 or absent, which makes the catalog reject
/// the type.
fn facts(info: InstanceTypeInfo) -> Option<(InstanceTypeName, TypeFacts)> {
    let name = InstanceTypeName::from(info.instance_type?.as_str());
    let processor = info.processor_info.unwrap_or_else(|| ProcessorInfo::builder().build());
    let architectures = processor.supported_architectures.unwrap_or_default();
    let network = info.network_info.unwrap_or_else(|| NetworkInfo::builder().build());
    let ebs = info.ebs_info.unwrap_or_else(|| EbsInfo::builder().build());
    let most = ebs.ebs_optimized_info.and_then(|way| way.maximum_bandwidth_in_mbps);
    let usage = info.supported_usage_classes.unwrap_or_default();
    let gpus = info.gpu_info.and_then(|own| own.gpus).unwrap_or_default();
    let neuron = info.neuron_info.map(neuron).unwrap_or_default();
    let accelerators = info.inference_accelerator_info.filter(|_| neuron.is_empty());
    let facts = TypeFacts {
        architectures: architectures.iter().map(|arch| arch.as_str().to_owned()).collect(),
        vcpus: number(info.v_cpu_info.and_then(|cpus| cpus.default_v_cpus)),
        memory_mib: info.memory_info.and_then(|memory| memory.size_in_mib).unwrap_or(0),
        cpu_manufacturer: processor.manufacturer.unwrap_or_default(),
        clock_mhz: thousandths(processor.sustained_clock_speed_in_ghz).unwrap_or(0),
        hypervisor: info.hypervisor.map(|own| own.as_str().to_owned()).unwrap_or_default(),
        bare_metal: info.bare_metal.unwrap_or(false),
        enclaves: info.nitro_enclaves_support.is_some_and(|own| own.as_str() == "supported"),
        encrypts_in_transit: network.encryption_in_transit_supported.unwrap_or(false),
        usage: usage.iter().map(|class| class.as_str().to_owned()).collect(),
        enis: interfaces(&network),
        cards: i64::try_from(cards(&network).len()).unwrap_or(0),
        enis_per_card: least_interfaces(&network),
        ips_per_eni: number(network.ipv4_addresses_per_interface),
        efas: number(network.efa_info.as_ref().and_then(|efa| efa.maximum_efa_interfaces)),
        network_mbps: baseline(&network),
        ebs_mbps: most.map(i64::from),
        ebs_optimized: ebs.ebs_optimized_support.is_some_and(|own| own.as_str() == "default"),
        ebs_attachments: ebs.maximum_ebs_attachments.map(i64::from),
        ebs_shared: ebs.attachment_limit_type.is_some_and(|own| own.as_str() == "shared"),
        nvme_gb: info.instance_storage_info.as_ref().map_or(0, nvme),
        gpus: gpus.into_iter().map(gpu).collect(),
        neuron,
        accelerators: accelerators.map(inference).unwrap_or_default(),
        fpgas: info
            .fpga_info
            .and_then(|own| own.fpgas)
            .unwrap_or_default()
            .into_iter()
            .map(|own| device(own.name, own.manufacturer, own.count))
            .collect(),
        media: info
            .media_accelerator_info
            .and_then(|own| own.accelerators)
            .unwrap_or_default()
            .into_iter()
            .map(|own| device(own.name, own.manufacturer, own.count))
            .collect(),
    };
    Some((name, facts))
}

fn number(stated: Option<i32>) -> i64 {
    stated.map_or(0, i64::from)
}

fn device(name: Option<String>, manufacturer: Option<String>, count: Option<i32>) -> DeviceFacts {
    DeviceFacts {
        name: name.unwrap_or_default(),
        manufacturer: manufacturer.unwrap_or_default(),
        count: number(count),
        ..DeviceFacts::default()
    }
}

fn gpu(own: GpuDeviceInfo) -> DeviceFacts {
    let memory_mib = number(own.memory_info.and_then(|memory| memory.size_in_mib));
    DeviceFacts { memory_mib, ..device(own.name, own.manufacturer, own.count) }
}

fn neuron(info: aws_sdk_ec2::types::NeuronInfo) -> Vec<DeviceFacts> {
    let own = info.neuron_devices.unwrap_or_default().into_iter().map(|own| DeviceFacts {
        cores: number(own.core_info.and_then(|cores| cores.count)),
        memory_mib: number(own.memory_info.and_then(|memory| memory.size_in_mib)),
        ..device(own.name, Some("AWS".to_owned()), own.count)
    });
    own.collect()
}

fn inference(info: aws_sdk_ec2::types::InferenceAcceleratorInfo) -> Vec<DeviceFacts> {
    let own = info.accelerators.unwrap_or_default().into_iter().map(|own| DeviceFacts {
        memory_mib: number(own.memory_info.and_then(|memory| memory.size_in_mib)),
        ..device(own.name, own.manufacturer, own.count)
    });
    own.collect()
}

/// Returns the interface count of the default network card. Pod addresses come from these
/// interfaces.
fn interfaces(network: &NetworkInfo) -> i64 {
    let default = network.default_network_card_index.unwrap_or(0);
    let card = cards(network).iter().find(|card| card.network_card_index.unwrap_or(0) == default);
    number(
        card.and_then(|card| card.maximum_network_interfaces)
            .or(network.maximum_network_interfaces),
    )
}

fn cards(network: &NetworkInfo) -> &[NetworkCardInfo] {
    network.network_cards.as_deref().unwrap_or_default()
}

/// Returns the interface count of the network card with the fewest interfaces.
fn least_interfaces(network: &NetworkInfo) -> i64 {
    let counts = cards(network).iter().map(|card| number(card.maximum_network_interfaces));
    counts.min().unwrap_or(0)
}

/// Returns the total baseline bandwidth of all cards in Mbps.
fn baseline(network: &NetworkInfo) -> Option<i64> {
    let cards = network.network_cards.as_deref()?.iter();
    let all: Option<Vec<i64>> =
        cards.map(|card| thousandths(card.baseline_bandwidth_in_gbps)).collect();
    all.map(|all| all.into_iter().sum()).filter(|mbps| *mbps > 0)
}

/// Converts GHz or Gbps to a whole number of MHz or Mbps, exactly by decimal digits.
fn thousandths(stated: Option<f64>) -> Option<i64> {
    format!("{:.0}", stated? * 1000.0).parse().ok()
}

/// Returns the NVMe storage in GB.
fn nvme(storage: &InstanceStorageInfo) -> i64 {
    let is_nvme = storage.nvme_support.as_ref().is_some_and(|own| own.as_str() != "unsupported");
    storage.total_size_in_gb.filter(|_| is_nvme).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{
        ArchitectureType, MemoryInfo, ProcessorInfo, UsageClassType, VCpuInfo,
    };

    use super::*;

    #[test]
    fn instance_type_is_parsed() {
        let card = |index: i32, interfaces: i32| {
            NetworkCardInfo::builder()
                .network_card_index(index)
                .maximum_network_interfaces(interfaces)
                .baseline_bandwidth_in_gbps(12.5)
                .build()
        };
        let network = NetworkInfo::builder()
            .maximum_network_interfaces(12)
            .default_network_card_index(1)
            .network_cards(card(0, 8))
            .network_cards(card(1, 4))
            .ipv4_addresses_per_interface(15);
        let info = InstanceTypeInfo::builder()
            .instance_type(InstanceType::from("z9.big"))
            .supported_usage_classes(UsageClassType::Spot)
            .v_cpu_info(VCpuInfo::builder().default_v_cpus(8).build())
            .memory_info(MemoryInfo::builder().size_in_mib(32_768).build())
            .processor_info(
                ProcessorInfo::builder()
                    .supported_architectures(ArchitectureType::Arm64)
                    .sustained_clock_speed_in_ghz(2.8)
                    .manufacturer("AWS")
                    .build(),
            )
            .network_info(network.build());
        let (name, facts) = facts(info.build()).expect("it has a name");
        assert_eq!(name.as_str(), "z9.big");
        let expected = TypeFacts {
            architectures: vec!["arm64".to_owned()],
            vcpus: 8,
            memory_mib: 32_768,
            cpu_manufacturer: "AWS".to_owned(),
            clock_mhz: 2800,
            usage: vec!["spot".to_owned()],
            enis: 4,
            cards: 2,
            enis_per_card: 4,
            ips_per_eni: 15,
            network_mbps: Some(25_000),
            ..TypeFacts::default()
        };
        assert_eq!(facts, expected);
        assert!(super::facts(InstanceTypeInfo::builder().build()).is_none(), "without a name");
    }
}
