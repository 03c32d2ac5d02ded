//! Manifests of a small fleet.

/// Settings of a cluster with one zone.
pub(in crate::cli) const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: test }
spec:
  cluster: { name: test, region: us-east-1, zones: [us-east-1a] }
";

/// A pool of one instance type.
pub(in crate::cli) const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
";

/// The node class of the pool.
pub(in crate::cli) const CLASS: &str = "\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { x: z } }]
  securityGroupSelectorTerms: [{ tags: { x: z } }]
";

/// Three pods that fit one node of the pool.
pub(in crate::cli) const WORKLOAD: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: api, namespace: web }
spec:
  replicas: 3
  selector: { matchLabels: { app: api } }
  template:
    metadata: { labels: { app: api } }
    spec:
      containers:
      - name: api
        image: api
        resources: { requests: { cpu: 500m, memory: 1Gi } }
";
