//! Kinds of custom resources by what their controllers do: make pods, or none.
//!
//! The fields of such objects are not read. A kind that is missing here is named in plans. Only the
//! kinds of [`POD_MAKERS`] make a plan incomplete.

use super::yaml::YamlNode;

/// What the controller of a custom resource does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CustomKind {
    /// It makes pods.
    MakesPods,
    /// It makes none.
    WithoutPods,
    /// It is not known.
    Unknown,
}

/// Groups with the kinds that become pods. No other kind of such a group makes pods. Without
/// kinds, every kind of the group does.
const POD_MAKERS: &[(&str, &[&str])] = &[
    ("acid.zalan.do", &["postgresql"]),
    ("actions.github.com", &["AutoscalingRunnerSet", "EphemeralRunnerSet"]),
    ("actions.summerwind.dev", &["Runner", "RunnerDeployment", "RunnerReplicaSet", "RunnerSet"]),
    ("agent.k8s.elastic.co", &["Agent"]),
    ("apm.k8s.elastic.co", &["ApmServer"]),
    ("app.redislabs.com", &["RedisEnterpriseCluster"]),
    ("app.terraform.io", &["AgentPool"]),
    ("apps.emqx.io", &["EMQX"]),
    ("apps.foundationdb.org", &["FoundationDBCluster"]),
    ("apps.gitlab.com", &["GitLab", "Runner"]),
    ("apps.kubeblocks.io", &["Cluster"]),
    (
        "argoproj.io",
        &["ArgoCD", "CronWorkflow", "EventBus", "EventSource", "Experiment", "Sensor", "Workflow"],
    ),
    ("asdb.aerospike.com", &["AerospikeCluster"]),
    ("batch.volcano.sh", &["CronJob", "Job"]),
    ("beat.k8s.elastic.co", &["Beat"]),
    ("broker.amq.io", &["ActiveMQArtemis"]),
    ("camel.apache.org", &["Integration", "Pipe"]),
    ("cassandra.datastax.com", &["CassandraDatacenter"]),
    ("ceph.rook.io", &["CephCluster", "CephFilesystem", "CephNFS", "CephObjectStore"]),
    ("clickhouse-keeper.altinity.com", &["ClickHouseKeeperInstallation"]),
    ("clickhouse.altinity.com", &["ClickHouseInstallation"]),
    ("cluster.redpanda.com", &["Console", "Redpanda"]),
    ("couchbase.com", &["CouchbaseCluster"]),
    ("crdb.cockroachlabs.com", &["CrdbCluster"]),
    ("database.arangodb.com", &["ArangoDeployment"]),
    ("databases.spotahome.com", &["RedisFailover"]),
    ("datadoghq.com", &["DatadogAgent"]),
    ("dragonflydb.io", &["Dragonfly"]),
    ("druid.apache.org", &["Druid"]),
    ("dynatrace.com", &["DynaKube"]),
    ("elasticsearch.k8s.elastic.co", &["Elasticsearch"]),
    ("enterprisesearch.k8s.elastic.co", &["EnterpriseSearch"]),
    ("flink.apache.org", &["FlinkDeployment", "FlinkSessionJob"]),
    ("fluentbit.fluent.io", &["FluentBit"]),
    ("fluentd.fluent.io", &["Fluentd"]),
    ("grafana.integreatly.org", &["Grafana"]),
    ("hazelcast.com", &["Hazelcast", "ManagementCenter"]),
    ("hyperspike.io", &["Valkey"]),
    ("infinispan.org", &["Infinispan"]),
    ("install.istio.io", &["IstioOperator"]),
    ("jaegertracing.io", &["Jaeger"]),
    ("jenkins.io", &["Jenkins"]),
    ("k6.io", &["PrivateLoadZone", "TestRun"]),
    ("k8s.keycloak.org", &["Keycloak"]),
    ("k8s.mariadb.com", &["MariaDB", "MaxScale"]),
    ("k8ssandra.io", &["K8ssandraCluster"]),
    (
        "kafka.strimzi.io",
        &["Kafka", "KafkaBridge", "KafkaConnect", "KafkaMirrorMaker2", "KafkaNodePool"],
    ),
    ("kibana.k8s.elastic.co", &["Kibana"]),
    ("kubedb.com", &[]),
    (
        "kubeflow.org",
        &["JAXJob", "MPIJob", "Notebook", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"],
    ),
    (
        "kubevirt.io",
        &["VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet"],
    ),
    ("logging.banzaicloud.io", &["FluentbitAgent", "Logging"]),
    ("logstash.k8s.elastic.co", &["Logstash"]),
    ("loki.grafana.com", &["LokiStack"]),
    ("machinelearning.seldon.io", &["SeldonDeployment"]),
    ("maps.k8s.elastic.co", &["ElasticMapsServer"]),
    ("milvus.io", &["Milvus"]),
    ("minio.min.io", &["Tenant"]),
    ("mongodb.com", &["MongoDB", "MongoDBMultiCluster", "MongoDBOpsManager", "MongoDBSearch"]),
    ("mongodbcommunity.mongodb.com", &["MongoDBCommunity"]),
    ("monitoring.coreos.com", &["Alertmanager", "Prometheus", "PrometheusAgent", "ThanosRuler"]),
    ("mysql.oracle.com", &["InnoDBCluster"]),
    ("nvidia.com", &["ClusterPolicy", "DynamoGraphDeployment", "NIMService", "NVIDIADriver"]),
    ("opensearch.opster.io", &["OpenSearchCluster"]),
    ("opensearch.org", &["OpenSearchCluster"]),
    ("opentelemetry.io", &["OpAMPBridge", "OpenTelemetryCollector", "TargetAllocator"]),
    ("operator.knative.dev", &["KnativeEventing", "KnativeServing"]),
    ("operator.tekton.dev", &["TektonConfig"]),
    ("operator.tigera.io", &["APIServer", "Goldmane", "Installation", "Whisker"]),
    (
        "operator.victoriametrics.com",
        &[
            "VLAgent",
            "VLCluster",
            "VLSingle",
            "VLogs",
            "VMAgent",
            "VMAlert",
            "VMAlertmanager",
            "VMAnomaly",
            "VMAuth",
            "VMCluster",
            "VMSingle",
            "VTCluster",
            "VTSingle",
        ],
    ),
    ("pgv2.percona.com", &["PerconaPGCluster"]),
    ("pingcap.com", &["DMCluster", "TidbCluster", "TidbDashboard", "TidbMonitor"]),
    ("planetscale.com", &["VitessCluster"]),
    (
        "platform.confluent.io",
        &[
            "Connect",
            "ControlCenter",
            "KRaftController",
            "Kafka",
            "KafkaRestProxy",
            "KsqlDB",
            "SchemaRegistry",
            "Zookeeper",
        ],
    ),
    ("postgres-operator.crunchydata.com", &["PGAdmin", "PostgresCluster"]),
    ("postgresql.cnpg.io", &["Cluster", "Pooler"]),
    ("ps.percona.com", &["PerconaServerMySQL"]),
    ("psmdb.percona.com", &["PerconaServerMongoDB"]),
    ("pxc.percona.com", &["PerconaXtraDBCluster"]),
    ("rabbitmq.com", &["RabbitmqCluster"]),
    ("ray.io", &["RayCluster", "RayCronJob", "RayJob", "RayService"]),
    ("redis.redis.opstreelabs.in", REDIS),
    ("redis.opstreelabs.in", REDIS),
    ("risingwave.risingwavelabs.com", &["RisingWave"]),
    ("sailoperator.io", &["Istio", "IstioCNI", "ZTunnel"]),
    ("scylla.scylladb.com", &["ScyllaCluster", "ScyllaDBDatacenter", "ScyllaDBMonitoring"]),
    ("serving.kserve.io", &["InferenceGraph", "InferenceService", "LLMInferenceService"]),
    ("serving.knative.dev", &["Service"]),
    ("solr.apache.org", &["SolrCloud", "SolrPrometheusExporter"]),
    ("sparkoperator.k8s.io", &["ScheduledSparkApplication", "SparkApplication", "SparkConnect"]),
    ("stackgres.io", &["SGCluster", "SGDistributedLogs", "SGShardedCluster"]),
    ("starrocks.com", &["StarRocksCluster"]),
    ("tekton.dev", &["PipelineRun", "TaskRun"]),
    ("tempo.grafana.com", &["TempoMonolithic", "TempoStack"]),
    ("temporal.io", &["TemporalCluster"]),
    ("trainer.kubeflow.org", &["TrainJob"]),
    ("triggers.tekton.dev", &["EventListener"]),
    ("vault.banzaicloud.com", &["Vault"]),
    ("wildfly.org", &["WildFlyServer"]),
    ("zookeeper.pravega.io", &["ZookeeperCluster"]),
];

const REDIS: &[&str] = &["Redis", "RedisCluster", "RedisReplication", "RedisSentinel"];

/// Groups whose objects make no pods in this cluster, with the groups below them.
const WITHOUT_PODS: &[&str] = &[
    "amazonaws.com",
    "aquasecurity.github.io",
    "bitnami.com",
    "cert-manager.io",
    "chaos-mesh.org",
    "cilium.io",
    "cluster.x-k8s.io",
    "config.kubernetes.io",
    "containo.us",
    "crossplane.io",
    "dapr.io",
    "eksctl.io",
    "external-secrets.io",
    "fleetwright.dev",
    "fluxcd.controlplane.io",
    "fluxcd.io",
    "gatekeeper.sh",
    "gateway.envoyproxy.io",
    "getambassador.io",
    "istio.io",
    "k8s.aws",
    "k8s.io",
    "karpenter.sh",
    "keda.sh",
    "kueue.x-k8s.io",
    "kyverno.io",
    "linkerd.io",
    "metallb.io",
    "openreports.io",
    "openshift.io",
    "projectcalico.org",
    "projectcontour.io",
    "secrets-store.csi.x-k8s.io",
    "solo.io",
    "toolkit.fluxcd.io",
    "traefik.io",
    "upbound.io",
    "velero.io",
    "wgpolicyk8s.io",
];

/// What to do about an object whose pods are not counted.
pub(super) const ASSUME: &str = "state their number with `assume` under spec.sources";

/// Returns what the controller of this object does, if the object is a custom resource.
pub(super) fn custom_kind(root: &YamlNode<'_>, group: &str, kind: &str) -> CustomKind {
    if let Some((_, kinds)) = POD_MAKERS.iter().find(|(known, _)| *known == group) {
        let is_maker = kinds.is_empty() || kinds.contains(&kind);
        return if is_maker && !is_sidecar(root, kind) {
            CustomKind::MakesPods
        } else {
            CustomKind::WithoutPods
        };
    }
    let is_below = |parent: &&str| {
        group.strip_suffix(*parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if !group.contains('.') || WITHOUT_PODS.iter().any(is_below) {
        CustomKind::WithoutPods
    } else {
        CustomKind::Unknown
    }
}

/// Returns whether a collector runs in the pods of workloads only.
fn is_sidecar(root: &YamlNode<'_>, kind: &str) -> bool {
    let mode = root.get("spec").and_then(|spec| spec.get("mode")).and_then(YamlNode::text);
    kind == "OpenTelemetryCollector" && mode == Some("sidecar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_sorted_into_one_list() {
        let is_listed_twice =
            |(group, _): &(&str, &[&str])| WITHOUT_PODS.iter().any(|other| other == group);
        assert!(!POD_MAKERS.iter().any(is_listed_twice));
        let mut groups: Vec<&str> = POD_MAKERS.iter().map(|(group, _)| *group).collect();
        let all = groups.len();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), all, "a group is listed once");
        for (_, kinds) in POD_MAKERS {
            assert!(kinds.is_sorted(), "{kinds:?}");
        }
    }
}
