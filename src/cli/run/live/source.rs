//! The branch that is followed, and plans of its commits over what EC2 offers now.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::aws::{Aws, Joining, Machines};
use crate::catalog::Catalog;
use crate::cli::error::CliError;
use crate::cli::live::{Answers, market_of, reserves};
use crate::cli::planning;
use crate::cli::repository::Repository;
use crate::cli::run::foresight::Foresight;
use crate::cli::run::plans::{Plans, unread};
use crate::cli::settings::SourceSettings;
use crate::cli::world::WorldChoice;
use crate::fleet::{ClusterIdentity, Observed};
use crate::git::{TreeBase, TreeRead};
use crate::manifest::Severity;
use crate::plan::{Pinned, Plan};
use crate::reconcile::{Head, Limits, NoCommit, Planner, Source};
use crate::render::escape;

/// How long counts what EC2 offers, what machines need to join, and what was looked up for launches.
const COUNTS_FOR: Duration = Duration::from_mins(5);

/// How long it counts that EC2 could not be asked.
const UNKNOWN_COUNTS_FOR: Duration = Duration::from_secs(30);

/// Between two looks whether what node classes come to is to be asked for again.
const LOOKED_UP_EVERY: Duration = Duration::from_secs(30);

/// The longest that a commit waits for what its node classes come to.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(5);

/// The most by which a read is put off, so that clusters do not all ask at once.
const JITTER_MAX: Duration = Duration::from_secs(5);
const JITTER_SHARE: u32 = 10;

/// Most errors of a commit that are logged; `fleetwright validate` lists them all.
const ERRORS_MAX: usize = 10;

/// The repository of one cluster.
pub(super) struct Followed {
    pub(super) settings: SourceSettings,
    pub(super) identity: ClusterIdentity,
    pub(super) aws: Arc<Aws>,
    /// Told the queue that the repository names.
    pub(super) queue: watch::Sender<Option<String>>,
    pub(super) foresight: Arc<Foresight>,
    pub(super) last: RefCell<Option<Last>>,
    pub(super) joining: RefCell<Option<(Instant, Joining)>>,
    /// What EC2 answered lately that changes seldom, and stands in where it cannot be asked.
    pub(super) answers: Arc<Answers>,
    /// Where in the spread of reads this process stands, and counts on.
    pub(super) dice: Cell<u32>,
}

/// What was read last.
pub(super) struct Last {
    base: TreeBase,
    at: Instant,
    counts_for: Duration,
    head: Head,
    plans: LivePlans,
}

/// Plans of one commit, and what launches of it need.
#[derive(Clone)]
pub(super) struct LivePlans {
    plans: Arc<Plans>,
    machines: Arc<Machines>,
    aws: Arc<Aws>,
    foresight: Arc<Foresight>,
}

impl Followed {
    /// Waits for a part of the time between two reads, of another length each time.
    async fn put_off(&self) {
        let poll = self.last.borrow().as_ref().map(|last| last.head.controller.poll);
        let Some(poll) = poll else { return };
        let most = (poll.unsigned_abs() / JITTER_SHARE).min(JITTER_MAX);
        let next = self.dice.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.dice.set(next);
        tokio::time::sleep(most * (next >> 24) / 256).await;
    }

    /// Looks up again what node classes come to, of the newest commit and of the one that plans are made from, for as long
    /// as it is polled: whether or not Git can be read.
    pub(super) async fn keep_looked_up(&self) {
        loop {
            tokio::time::sleep(LOOKED_UP_EVERY).await;
            let newest = self.last.borrow().as_ref().map(|last| Arc::clone(&last.plans.machines));
            for machines in newest.into_iter().chain(self.aws.machines()) {
                self.aws.look_up(&machines).await;
            }
        }
    }

    /// Reads the branch.
    async fn newest(&self) -> Result<(Head, LivePlans), CliError> {
        self.put_off().await;
        let settings = self.settings.clone();
        let tree = blocking(move || planning::read(&settings)).await?;
        if let Some(last) = &*self.last.borrow()
            && last.base == tree.base
            && last.at.elapsed() < last.counts_for
        {
            return Ok((last.head.clone(), last.plans.clone()));
        }
        let (base, at) = (tree.base.clone(), Instant::now());
        let (head, plans) = self.made(tree).await?;
        self.queue.send_if_modified(|queue| {
            let changed = *queue != head.controller.queue;
            queue.clone_from(&head.controller.queue);
            changed
        });
        let knows = plans.plans.knows_market();
        let counts_for = if knows { COUNTS_FOR } else { UNKNOWN_COUNTS_FOR };
        let last = Last { base, at, counts_for, head: head.clone(), plans: plans.clone() };
        self.last.replace(Some(last));
        Ok((head, plans))
    }

    /// Reads one commit, wherever the branch is by now.
    async fn one(&self, commit: &str) -> Result<(Head, LivePlans), NoCommit> {
        // Files that are not committed are there only as long as they are what they were.
        let revision = (!commit.starts_with("sha256:")).then(|| commit.to_owned());
        let settings = SourceSettings { revision, ..self.settings.clone() };
        let tree = blocking(move || planning::read(&settings)).await.map_err(unread)?;
        self.made(tree).await.map_err(|error| NoCommit::Failed(error.to_string()))
    }

    /// Returns what plans are made from, and what launches of them need.
    async fn made(&self, tree: TreeRead) -> Result<(Head, LivePlans), CliError> {
        let plans = self.plans(tree).await?;
        let repository = plans.repository();
        self.same_cluster(repository)?;
        let joining = self.joining().await?;
        let head = Head { auto_mode: joining.has_auto_mode(), ..plans.head() };
        let machines = Machines::of(&repository.desired, joining.endpoint, &joining.kubernetes);
        self.aws.reserve(reserves(repository));
        let problems = repository.desired.problems.iter();
        let errors = problems.filter(|problem| problem.severity == Severity::Error);
        for error in errors.take(ERRORS_MAX) {
            let (at, said) = (&error.origin, escape(&error.message));
            tracing::warn!(%at, object = %escape(&error.object), "{said}");
        }
        let (machines, aws) = (Arc::new(machines), Arc::clone(&self.aws));
        let (ahead, of) = (Arc::clone(&aws), Arc::clone(&machines));
        let looked_up = tokio::spawn(async move { ahead.warm(&of).await });
        // Where it takes longer it goes on, and the plans after the next know of it.
        let _ = tokio::time::timeout(LOOKED_UP_WITHIN, looked_up).await;
        Ok((
            head,
            LivePlans {
                plans: Arc::new(plans),
                machines,
                aws,
                foresight: Arc::clone(&self.foresight),
            },
        ))
    }

    /// Reads what the tree asks for, and what EC2 offers for that.
    async fn plans(&self, tree: TreeRead) -> Result<Plans, CliError> {
        let (settings, aws) = (self.settings.clone(), Arc::clone(&self.aws));
        let answers = Arc::clone(&self.answers);
        let runtime = tokio::runtime::Handle::current();
        blocking(move || {
            let market = |repository: &Repository| {
                let asked = runtime.block_on(market_of(&aws, repository, &answers));
                // What is embedded, or what was read before, stands in, and every plan that it decides
                // says so.
                match &asked {
                    Ok(market) => {
                        for why in &market.unread {
                            tracing::warn!(why, "not all that EC2 offers now is known");
                        }
                    }
                    Err(why) => tracing::warn!(why, "what EC2 offers now is not known"),
                }
                Some(asked)
            };
            Plans::of(&settings, &WorldChoice::Live, &tree, market)
        })
        .await
    }

    /// Refuses a commit that names another cluster: its nodes would be strangers here.
    fn same_cluster(&self, repository: &Repository) -> Result<(), CliError> {
        let ClusterIdentity { name, region, .. } = repository.fleet.identity();
        if (&name, &region) == (&self.identity.name, &self.identity.region) {
            return Ok(());
        }
        let now = &self.identity.name;
        Err(CliError::text(format!(
            "it names the cluster `{name}` in `{region}`, and this loop keeps `{now}`; start it anew \
             for another cluster"
        )))
    }

    async fn joining(&self) -> Result<Joining, CliError> {
        let known = self.joining.borrow().clone();
        if let Some((_, joining)) = known.filter(|(at, _)| at.elapsed() < COUNTS_FOR) {
            return Ok(joining);
        }
        let joining = self.aws.joining().await.map_err(CliError::new)?;
        self.joining.replace(Some((Instant::now(), joining.clone())));
        Ok(joining)
    }
}

impl Source for Followed {
    type Planner = LivePlans;

    async fn head(&self) -> Result<(Head, LivePlans), String> {
        self.newest().await.map_err(|error| error.to_string())
    }

    async fn commit(&self, commit: &str) -> Result<(Head, LivePlans), NoCommit> {
        self.one(commit).await
    }
}

impl Planner for LivePlans {
    async fn plan(&self, world: Arc<Observed>, limits: Limits) -> Plan {
        // What is launched next is launched for this plan.
        self.aws.set_up(Arc::clone(&self.machines));
        let plans = Arc::clone(&self.plans);
        let (of, over) = (Arc::clone(&plans), Arc::clone(&world));
        let plan = blocking(move || of.made(&over, limits)).await;
        if let Some(turn) = self.foresight.is_due(&plan, &world) {
            // Nobody waits for it.
            tokio::spawn(foreseen(spawn_blocking(move || turn.look_ahead(&plans, &world))));
        }
        plan
    }

    async fn pinned(&self, plan: Arc<Plan>, world: Arc<Observed>, running: bool) -> Pinned {
        let plans = Arc::clone(&self.plans);
        blocking(move || plans.made_again(&plan, &world, running)).await
    }

    fn catalog(&self) -> &Catalog {
        self.plans.catalog()
    }
}

/// Waits for a forecast, and logs how it ended: its failure keeps nobody from anything else.
async fn foreseen(forecast: JoinHandle<Duration>) {
    match forecast.await {
        Ok(took) => tracing::debug!(took_ms = took.as_millis(), "the forecast was made"),
        Err(error) => tracing::warn!(%error, "no forecast was made; it is made again in a while"),
    }
}

/// Does work that takes long on a thread of its own, so that leases are renewed meanwhile.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        // A fault of ours goes on where it would have without the thread.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
