//! Lists the node pools and node classes of the cluster.
//!
//! They are Karpenter's custom resources, which a cluster may not serve. A kind that is not served
//! has no objects. A kind that may not be listed is unread, and never empty.

use std::collections::BTreeMap;

use ::kube::Error;
use serde_json::Value as Json;

use super::cached_object::ObjectContent;
use super::client::Kubernetes;
use super::cluster_objects::ObjectCache;
use super::list::ApiResource;
use super::port_error;
use crate::model::observed::{ClusterPools, PoolObject};

const fn resource(
    api_version: &'static str,
    kind: &'static str,
    path: &'static str,
) -> ApiResource {
    ApiResource { api_version, kind, path, name: None }
}

/// Resource types of pools. Of a kind, the first served version counts: each version that is served
/// has all objects.
pub(super) const POOL_RESOURCES: [ApiResource; 7] = [
    resource("karpenter.sh/v1", "NodePool", "/apis/karpenter.sh/v1/nodepools"),
    resource("karpenter.sh/v1beta1", "NodePool", "/apis/karpenter.sh/v1beta1/nodepools"),
    resource("karpenter.k8s.aws/v1", "EC2NodeClass", "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"),
    resource(
        "karpenter.k8s.aws/v1beta1",
        "EC2NodeClass",
        "/apis/karpenter.k8s.aws/v1beta1/ec2nodeclasses",
    ),
    resource("karpenter.sh/v1alpha1", "NodeOverlay", "/apis/karpenter.sh/v1alpha1/nodeoverlays"),
    resource("karpenter.sh/v1alpha5", "Provisioner", "/apis/karpenter.sh/v1alpha5/provisioners"),
    resource(
        "karpenter.k8s.aws/v1alpha1",
        "AWSNodeTemplate",
        "/apis/karpenter.k8s.aws/v1alpha1/awsnodetemplates",
    ),
];

/// Returns whether the objects of a resource type are pools.
pub(super) fn is_pool_resource(resource: ApiResource) -> bool {
    POOL_RESOURCES.iter().any(|pool| pool.path == resource.path)
}

/// Why the objects of a resource type are not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// The API server does not serve it.
    NotServed,
    /// The user may not list it, with the message of the API server.
    Forbidden(String),
}

/// Returns the part of an object of a resource type that its author decides. An object without it
/// stays as it is.
pub(super) fn stable_part(object: Json) -> Json {
    PoolObject::from_json(&object).map_or(object, |stable| stable.to_manifest())
}

/// Combines the caches of all [`POOL_RESOURCES`], in their order.
pub(super) fn assemble_pools<'c>(
    caches: impl IntoIterator<Item = (ApiResource, Result<&'c ObjectCache, &'c LeftOut>)>,
) -> ClusterPools {
    let mut kinds = PoolKinds::default();
    for (resource, cache) in caches {
        if kinds.is_known(resource) {
            continue;
        }
        match cache {
            Ok(cache) => {
                let raw = cache.values().filter_map(|cached| match &cached.content {
                    ObjectContent::Raw(object) => Some(object),
                    ObjectContent::Pod(_)
                    | ObjectContent::OwnerLink(_)
                    | ObjectContent::Workload(..)
                    | ObjectContent::Node(_)
                    | ObjectContent::Ignored => None,
                });
                kinds.add(resource, raw);
            }
            Err(LeftOut::NotServed) => {}
            Err(LeftOut::Forbidden(why)) => kinds.add_unread(resource, why.clone()),
        }
    }
    kinds.into_pools()
}

/// The objects so far, by kind.
#[derive(Default)]
struct PoolKinds {
    served: BTreeMap<&'static str, Vec<PoolObject>>,
    unread: BTreeMap<String, String>,
}

impl PoolKinds {
    /// Returns whether an earlier version of the kind was served, or could not be read.
    fn is_known(&self, resource: ApiResource) -> bool {
        self.served.contains_key(resource.kind) || self.unread.contains_key(resource.kind)
    }

    fn add<'j>(&mut self, resource: ApiResource, objects: impl Iterator<Item = &'j Json>) {
        let read: Result<Vec<PoolObject>, String> = objects.map(PoolObject::from_json).collect();
        match read {
            Ok(objects) => drop(self.served.insert(resource.kind, objects)),
            Err(why) => self.add_unread(resource, why),
        }
    }

    fn add_unread(&mut self, resource: ApiResource, why: String) {
        self.unread.insert(resource.kind.to_owned(), why);
    }

    fn into_pools(self) -> ClusterPools {
        ClusterPools::new(self.served.into_values().flatten().collect(), self.unread)
    }
}

impl Kubernetes {
    /// Lists the pools of the cluster. A kind whose list fails is unread.
    pub async fn pools(&self) -> ClusterPools {
        let mut kinds = PoolKinds::default();
        for resource in POOL_RESOURCES {
            if kinds.is_known(resource) {
                continue;
            }
            let mut read: Vec<Json> = Vec::new();
            let mut receive = |page: Option<Vec<Json>>| match page {
                Some(page) => read.extend(page.into_iter().map(stable_part)),
                None => read.clear(),
            };
            match self.list_pages(resource, None, &mut receive).await {
                Ok(_) => kinds.add(resource, read.iter()),
                Err(Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let error = port_error(&format!("list {}", resource.path), &error);
                    kinds.add_unread(resource, error.to_string());
                }
            }
        }
        kinds.into_pools()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cached_object::CachedObject;
    use super::*;

    fn cache(resource: ApiResource, name: &str) -> ObjectCache {
        let object = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": { "name": name, "uid": "u", "managedFields": [{}] },
            "spec": { "weight": 1 }, "status": { "x": 1 }
        });
        [(format!("/{name}"), CachedObject::from_json(resource, object))].into()
    }

    fn assembled(of: impl Fn(ApiResource) -> Result<ObjectCache, LeftOut>) -> ClusterPools {
        let caches: Vec<_> = POOL_RESOURCES.map(|resource| (resource, of(resource))).into();
        assemble_pools(caches.iter().map(|(resource, cache)| (*resource, cache.as_ref())))
    }

    fn named(pools: &ClusterPools) -> Vec<String> {
        let object = |o: &PoolObject| format!("{} {} {}", o.api_version, o.kind, o.metadata.name);
        pools.objects.iter().map(object).collect()
    }

    #[test]
    fn first_served_version_of_a_kind_counts() {
        let all = assembled(|resource| Ok(cache(resource, "a")));
        assert_eq!(
            named(&all),
            [
                "karpenter.k8s.aws/v1alpha1 AWSNodeTemplate a",
                "karpenter.k8s.aws/v1 EC2NodeClass a",
                "karpenter.sh/v1alpha1 NodeOverlay a",
                "karpenter.sh/v1 NodePool a",
                "karpenter.sh/v1alpha5 Provisioner a",
            ]
        );
        let old = assembled(|resource| {
            let is_old = resource.api_version.ends_with("/v1beta1");
            if is_old { Ok(cache(resource, "a")) } else { Err(LeftOut::NotServed) }
        });
        assert_eq!(
            named(&old),
            ["karpenter.k8s.aws/v1beta1 EC2NodeClass a", "karpenter.sh/v1beta1 NodePool a"]
        );
        assert_eq!(old.unread_reason(), None, "a kind that is not served has no objects");
    }

    #[test]
    fn forbidden_kind_is_unread_and_not_empty() {
        let forbidden = || LeftOut::Forbidden("nodepools is forbidden".to_owned());
        let pools = assembled(|resource| match resource.kind {
            "NodePool" => Err(forbidden()),
            "EC2NodeClass" => Ok(cache(resource, "a")),
            _ => Err(LeftOut::NotServed),
        });
        assert_eq!(named(&pools), ["karpenter.k8s.aws/v1 EC2NodeClass a"]);
        let reason = pools.unread_reason().expect("a kind is unread");
        assert_eq!(reason, "NodePool: nodepools is forbidden");
    }

    #[test]
    fn status_and_server_metadata_are_not_cached() {
        let pool = POOL_RESOURCES[0];
        let cached = cache(pool, "a").remove("/a").expect("cached");
        let ObjectContent::Raw(object) = cached.content else { panic!("an object") };
        let expected = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "a" }, "spec": { "weight": 1 }
        });
        assert_eq!(object, expected);
    }
}
