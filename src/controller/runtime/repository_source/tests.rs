//! Polls of a branch, and which of them read its files.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::super::{ReadPools, Steering};
use super::*;
use crate::adapters::aws::ClusterEndpoint;
use crate::adapters::git::read_tree;
use crate::adapters::kube::Kubernetes;
use crate::model::desired::{ControllerSettings, Desired};
use crate::model::observed::ClusterPools;
use crate::plan::forecast::Forecast;
use crate::testing::controller::revision;

/// A branch that records how it is read, planned and logged. Its clones share the record.
#[derive(Clone)]
struct FakeBranch(Arc<Mutex<BranchState>>);

struct BranchState {
    tree: RepositoryTree,
    steps: Vec<&'static str>,
}

impl FakeBranch {
    fn at(commit: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("a.yaml"), "kind: A").expect("written");
        let tree = read_tree(directory.path()).expect("a tree");
        let branch = Self(Arc::new(Mutex::new(BranchState { tree, steps: Vec::new() })));
        branch.move_to(commit);
        branch
    }

    fn lock(&self) -> MutexGuard<'_, BranchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn move_to(&self, commit: &str) {
        self.lock().tree.base.commit = Some(commit.to_owned());
    }

    /// Returns the steps since the last call.
    fn take_steps(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.lock().steps)
    }
}

impl RepositoryReader for FakeBranch {
    type Planner = FakePlanner;

    fn with_steering(self, _: Steering) -> Self {
        self
    }

    fn read_branch(&self) -> Result<RepositoryTree, String> {
        let mut state = self.lock();
        state.steps.push("read");
        Ok(state.tree.clone())
    }

    fn read_changed_branch(&self, known: &TreeBase) -> Result<Option<RepositoryTree>, String> {
        let mut state = self.lock();
        if state.tree.base == *known {
            state.steps.push("unchanged");
            return Ok(None);
        }
        state.steps.push("changed");
        Ok(Some(state.tree.clone()))
    }

    fn read_commit(&self, _: &str) -> Result<RepositoryTree, RevisionError> {
        unreachable!("only the branch is read")
    }

    fn planner(
        &self,
        tree: &RepositoryTree,
        _: &TrustedCommit,
        _: Option<ReadMarket<'_>>,
        _: ReadPools<'_>,
    ) -> Result<FakePlanner, String> {
        self.lock().steps.push("planned");
        // Without a poll interval, no read is delayed.
        let poll = SignedDuration::ZERO;
        let controller = ControllerSettings { poll, ..ControllerSettings::default() };
        let commit = tree.base.commit.as_deref().unwrap_or_default();
        let revision = Revision { controller, ..revision(commit) };
        Ok(FakePlanner { revision, desired: Desired::default() })
    }
}

/// Records logged trees.
impl<S: Subscriber> Layer<S> for FakeBranch {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().fields().field("files").is_some() {
            self.lock().steps.push("logged");
        }
    }
}

struct FakePlanner {
    revision: Revision,
    desired: Desired,
}

impl BlockingPlanner for FakePlanner {
    fn revision(&self) -> Revision {
        self.revision.clone()
    }

    fn cluster(&self) -> ClusterIdentity {
        ClusterIdentity::default()
    }

    fn base(&self) -> &TreeBase {
        unreachable!("only an embedded world is delivered to")
    }

    fn desired(&self) -> &Desired {
        &self.desired
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is planned")
    }

    fn has_current_market(&self) -> bool {
        true
    }

    fn plan(&self, _: &Observed, _: PlanScope) -> Plan {
        unreachable!("nothing is planned")
    }

    fn reproduce(&self, _: &Plan, _: &Observed, _: PodScope) -> Option<RevalidatedPlan> {
        unreachable!("nothing is planned")
    }

    fn revalidate(&self, _: &Plan, _: &Observed, _: PodScope) -> RevalidatedPlan {
        unreachable!("nothing is planned")
    }

    fn forecast(&self, _: &Observed, _: Timestamp) -> Forecast {
        unreachable!("nothing is planned")
    }
}

/// Starts an API server and an EC2 without any object, and returns their URL.
fn empty_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client may disconnect at any time.
            std::thread::spawn(move || answer_not_found(&stream).ok());
        }
    });
    url
}

fn answer_not_found(mut stream: &TcpStream) -> io::Result<()> {
    let mut request = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        request.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    io::copy(&mut request.take(length), &mut io::sink())?;
    let body =
        r#"{"apiVersion":"v1","kind":"Status","status":"Failure","message":"none","code":404}"#;
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Returns the source of a controller that knows the data of its cluster.
fn source_of(branch: &FakeBranch) -> RepositorySource<FakeBranch> {
    let url = empty_server();
    let start = StartOptions {
        started_at: Timestamp::UNIX_EPOCH,
        identity: "a".to_owned(),
        cluster: ClusterIdentity::default(),
        mode: None,
        once: false,
    };
    let aws = Arc::new(Aws::connect_to("c", "eu-west-1", &url));
    let kubernetes = Kubernetes::connect_to(&url).expect("a client");
    let watched = Arc::new(WatchedCluster::start(kubernetes, mpsc::channel(1).0));
    let (queue, forecast_task) = (watch::channel(None).0, ForecastTask::new().0);
    let source = RepositorySource::new(branch.clone(), &start, aws, watched, queue, forecast_task);
    let endpoint = ClusterEndpoint {
        cluster: "c".to_owned(),
        url,
        authority: String::new(),
        service_cidr: "10.100.0.0/16".to_owned(),
        dns: "10.100.0.10".to_owned(),
    };
    let kubernetes_version = "1.33".to_owned();
    let joining = ClusterBootstrap { endpoint, kubernetes_version, auto_mode: None };
    source.joining.replace(Some((Instant::now(), joining)));
    source
}

async fn poll(source: &RepositorySource<FakeBranch>) -> PlannedRevision<FakeBranch> {
    source.read_branch(None).await.expect("read")
}

/// Runs `work` while logged trees of the branch are recorded.
fn run(branch: &FakeBranch, work: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let subscriber = tracing_subscriber::registry().with(branch.clone());
    tracing::subscriber::with_default(subscriber, || runtime.block_on(work));
}

#[test]
fn unchanged_branch_is_neither_read_nor_logged() {
    let branch = FakeBranch::at("a");
    run(&branch, async {
        let source = source_of(&branch);
        let (_, first) = poll(&source).await;
        assert_eq!(branch.take_steps(), ["read", "logged", "planned"]);
        let (_, second) = poll(&source).await;
        assert_eq!(branch.take_steps(), ["unchanged"]);
        assert!(Arc::ptr_eq(&first, &second));
        // The branch moves on, and back to the older commit.
        for commit in ["b", "a"] {
            branch.move_to(commit);
            assert_eq!(poll(&source).await.0.commit, commit);
            assert_eq!(branch.take_steps(), ["changed", "logged", "planned"]);
        }
    });
}

#[test]
fn unchanged_branch_is_read_if_more_than_its_commit_counts() {
    type Change = fn(&mut LastRevision<FakePlanner>);
    let cases: [(Change, &[&str]); 4] = [
        (|last| last.valid_for = Duration::ZERO, &["read", "planned"]),
        (|last| last.trusted = TrustedCommit::Itself, &["read", "planned"]),
        (
            |last| last.revision.cluster_pools = Some("sha256:0".to_owned()),
            &["unchanged", "read", "planned"],
        ),
        (
            |last| last.revision.cluster_pools = Some(ClusterPools::default().digest()),
            &["unchanged"],
        ),
    ];
    for (case, (change, expected)) in cases.into_iter().enumerate() {
        let branch = FakeBranch::at("a");
        run(&branch, async {
            let source = source_of(&branch);
            poll(&source).await;
            branch.take_steps();
            change(source.last.borrow_mut().as_mut().expect("a revision"));
            poll(&source).await;
            assert_eq!(branch.take_steps(), expected, "case {case}");
        });
    }
}

#[test]
fn commit_with_unread_objects_is_read_in_each_poll() {
    let branch = FakeBranch::at("a");
    branch.lock().tree.has_unread_objects = true;
    run(&branch, async {
        let source = source_of(&branch);
        let (_, first) = poll(&source).await;
        branch.take_steps();
        let (_, second) = poll(&source).await;
        assert_eq!(branch.take_steps(), ["read"]);
        assert!(Arc::ptr_eq(&first, &second), "its files are the same");
    });
}
