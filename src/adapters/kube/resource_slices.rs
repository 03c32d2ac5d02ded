//! Devices that DRA drivers publish for nodes, as extended resources of the nodes.
//!
//! Source: <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/>.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::demand::device_resource;
use crate::model::ids::NodeName;
use crate::model::observed::Node;
use crate::model::units::ResourceName;

#[derive(Debug, Deserialize)]
struct ResourceSlice {
    spec: SliceSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceSpec {
    driver: String,
    pool: SlicePool,
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlicePool {
    name: String,
    generation: i64,
    resource_slice_count: usize,
}

#[derive(Debug, Deserialize)]
struct Device {
    #[serde(default)]
    attributes: BTreeMap<String, Json>,
    #[serde(default)]
    taints: Vec<DeviceTaint>,
}

#[derive(Debug, Deserialize)]
struct DeviceTaint {
    effect: String,
}

impl Device {
    /// Returns true if pods without tolerations of device taints can get the device.
    fn is_usable(&self) -> bool {
        !self.taints.iter().any(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"))
    }

    fn device_type(&self) -> Option<&str> {
        self.attributes.get("type")?.get("string")?.as_str()
    }
}

/// Slices of the latest generation of one pool.
#[derive(Debug, Default)]
struct Pool {
    generation: i64,
    expected: usize,
    slices: usize,
    devices: BTreeMap<(NodeName, ResourceName), i64>,
}

/// Slices by driver and pool.
#[derive(Debug, Default)]
pub(super) struct SlicePools(BTreeMap<(String, String), Pool>);

impl SlicePools {
    /// Adds a slice. Only the latest generation of its pool counts.
    ///
    /// # Errors
    /// Returns the reason if the slice cannot be parsed, with the node that it names.
    pub(super) fn add(&mut self, object: &Json) -> Result<(), (String, Option<NodeName>)> {
        let ResourceSlice { spec } = ResourceSlice::deserialize(object).map_err(|error| {
            let node = object.pointer("/spec/nodeName").and_then(Json::as_str);
            (error.to_string(), node.map(NodeName::from))
        })?;
        let SliceSpec { driver, pool: of, node_name, devices } = spec;
        let pool = self.0.entry((driver.clone(), of.name)).or_default();
        if of.generation < pool.generation {
            return Ok(());
        }
        if of.generation > pool.generation {
            *pool = Pool { generation: of.generation, ..Pool::default() };
        }
        pool.expected = of.resource_slice_count;
        pool.slices += 1;
        for device in devices.iter().filter(|device| device.is_usable()) {
            if let Some(resource) = device_resource(&driver, device.device_type()) {
                *pool.devices.entry((node_name.as_str().into(), resource)).or_insert(0) += 1;
            }
        }
        Ok(())
    }

    /// Adds the devices of complete pools to the nodes. What a device plugin reports stays: a node
    /// has one or the other.
    pub(super) fn add_to(&self, nodes: &mut [Node]) {
        let complete = self.0.values().filter(|pool| pool.slices == pool.expected);
        let mut devices: BTreeMap<&NodeName, BTreeMap<&ResourceName, i64>> = BTreeMap::new();
        for ((node, resource), count) in complete.flat_map(|pool| &pool.devices) {
            *devices.entry(node).or_default().entry(resource).or_insert(0) += count;
        }
        for node in nodes {
            for (resource, count) in devices.get(&node.name).into_iter().flatten() {
                for amounts in [&mut node.capacity, &mut node.allocatable] {
                    // A device plugin that stopped reports zero.
                    let reported = amounts.extended.entry((*resource).clone()).or_insert(0);
                    if *reported == 0 {
                        *reported = *count;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::world::node;

    fn slice(node: &str, generation: i64, count: usize, types: &[Option<&str>]) -> Json {
        let device = |kind: Option<&str>| {
            let attributes =
                kind.map_or_else(|| json!({}), |kind| json!({ "type": { "string": kind } }));
            json!({ "name": "d", "attributes": attributes })
        };
        json!({
            "metadata": { "name": "s" },
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": node,
                "pool": { "name": node, "generation": generation, "resourceSliceCount": count },
                "devices": types.iter().copied().map(device).collect::<Vec<_>>()
            }
        })
    }

    /// Returns the allocatable GPUs of node `n` after `slices` were read.
    fn gpus(slices: &[Json], reported: Option<i64>) -> Option<i64> {
        let mut pools = SlicePools::default();
        for slice in slices {
            pools.add(slice).expect("readable");
        }
        let mut nodes = [node("n")];
        nodes[0]
            .allocatable
            .extended
            .extend(reported.map(|count| ("nvidia.com/gpu".into(), count)));
        pools.add_to(&mut nodes);
        nodes[0].allocatable.extended.get("nvidia.com/gpu").copied()
    }

    #[test]
    fn whole_devices_of_complete_pools_count() {
        let gpu = Some("gpu");
        let mut tainted = slice("n", 1, 1, &[gpu, gpu]);
        tainted["spec"]["devices"][0]["taints"] = json!([{ "key": "bad", "effect": "NoExecute" }]);
        let mut foreign = slice("n", 1, 1, &[gpu]);
        foreign["spec"]["driver"] = json!("compute-domain.nvidia.com");
        for (rule, slices, expected) in [
            ("two whole GPUs", vec![slice("n", 1, 1, &[gpu, gpu])], Some(2)),
            ("MIG devices are no whole GPUs", vec![slice("n", 1, 1, &[Some("mig"), None])], None),
            ("two slices", vec![slice("n", 1, 2, &[gpu]), slice("n", 1, 2, &[gpu])], Some(2)),
            ("a pool with a missing slice", vec![slice("n", 1, 2, &[gpu])], None),
            (
                "an old generation",
                vec![slice("n", 2, 1, &[gpu]), slice("n", 1, 1, &[gpu])],
                Some(1),
            ),
            ("a tainted device", vec![tainted], Some(1)),
            ("an unknown driver", vec![foreign], None),
            ("another node", vec![slice("m", 1, 1, &[gpu])], None),
        ] {
            assert_eq!(gpus(&slices, None), expected, "{rule}");
        }
    }

    #[test]
    fn amounts_of_a_device_plugin_stay() {
        let slices = [slice("n", 1, 1, &[Some("gpu")])];
        assert_eq!(gpus(&slices, Some(4)), Some(4));
        assert_eq!(gpus(&slices, Some(0)), Some(1), "the plugin stopped");
        assert!(SlicePools::default().add(&json!({ "spec": { "nodeName": "n" } })).is_err());
    }
}
