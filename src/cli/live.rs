//! The live world: a real cluster and the account it runs in.

mod kept;
mod market;
mod notes;
mod record;
mod whose;

pub(super) use kept::Answers;
use market::market_for;
pub(super) use market::{market, market_of};
pub(super) use record::read_kept;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use notes::Notes;

use super::adopt::{still, tag_all};
use super::error::CliError;
use super::progress::Teller;
use super::replan::Again;
use super::repository::Repository;
use super::{Console, Exit, embedded, files, planning, settings};
use crate::adopt::Adoption;
use crate::apply::{ApplySettings, Event, Fenced, Ports, Receipt, Verdict, apply, verify};
use crate::aws::{Aws, AwsError, Machines, NodeRole, Preflight};
use crate::fleet::{ClusterIdentity, Observed};
use crate::ids::Namespace;
use crate::kube::{ConnectError, Held, Kubernetes, Lease, LeaseError, RENEW_EVERY};
use crate::manifest::Desired;
use crate::plan::Plan;
use crate::port::{Clock, Cluster as _, Requirement};
use crate::rival::{Rival, parted, rivals_among};

/// Where the lock of applies is kept.
pub(super) const LEASE_NAMESPACE: &str = "kube-system";
pub(super) const LEASE_NAME: &str = "fleetwright-apply";

/// By which an apply knows that it may ask a loop for the lock.
pub(super) use crate::reconcile::LOOP;

/// Instances that are tagged between two renewals of the lock.
const TAGGED_AT_ONCE: usize = 20;

/// Between two looks at a lock that somebody else holds.
pub(super) const LOCK_POLL: Duration = Duration::from_secs(2);

/// How long a loop has to give the lock back: as long as it takes to undo drains.
const HANDOVER_MAX: Duration = Duration::from_mins(2);

/// The clock on the wall.
#[derive(Debug)]
pub(super) struct Wall;

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, duration: SignedDuration) {
        tokio::time::sleep(duration.unsigned_abs()).await;
    }

    async fn breathe(&self) {
        tokio::task::yield_now().await;
    }
}

/// A cluster and its account, reached.
pub(super) struct Live {
    pub(super) kubernetes: Kubernetes,
    pub(super) aws: Aws,
    pub(super) identity: ClusterIdentity,
}

impl Live {
    pub(super) async fn connect(repository: &Repository) -> Result<Self, CliError> {
        let kubernetes = Kubernetes::connect().await.map_err(no_cluster)?;
        let uid = kubernetes.uid().await.map_err(no_cluster)?;
        let fleet = &repository.fleet;
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        let aws = aws.reserving(reserves(repository));
        let account = aws.account().await.map_err(no_account)?;
        let identity = ClusterIdentity { account, uid: uid.to_string(), ..fleet.identity() };
        Ok(Self { kubernetes, aws, identity })
    }

    /// Looks up what the node classes of pools come to, which the next look tells; so too what cannot be found out.
    async fn look_up_classes(&self, repository: &Repository) {
        let Desired { pools, node_classes, .. } = &repository.desired;
        let used: BTreeSet<_> =
            pools.values().filter_map(|pool| pool.node_class.as_ref()).collect();
        let classes: Vec<_> = used.into_iter().filter_map(|name| node_classes.get(name)).collect();
        if classes.is_empty() {
            return;
        }
        let joining = self.aws.joining().await.map_err(|error| error.to_string());
        let kubernetes = joining.as_ref().map(|joining| joining.kubernetes.as_str());
        self.aws.resolve(&classes, kubernetes.map_err(String::as_str)).await;
    }

    /// Reads what runs, and what was sold out lately.
    async fn look(&self) -> Observed {
        let Self { kubernetes, aws, identity } = self;
        let mut observed = crate::observe::observe(aws, kubernetes, &Wall, identity.clone()).await;
        match kubernetes.memory(LEASE_NAMESPACE, LEASE_NAME).await {
            Ok(memory) => observed.exclusions = memory.exclusions(observed.taken_at),
            // A hint alone: what is sold out is found out again.
            Err(error) => tracing::warn!(%error, "what was sold out lately is not known"),
        }
        observed.canonicalize();
        observed
    }
}

/// Returns whether a repository launches into capacity reservations.
pub(super) fn reserves(repository: &Repository) -> bool {
    let mut classes = repository.desired.node_classes.values();
    classes.any(|class| !class.reservations.is_empty())
}

/// Returns what really runs.
pub(super) fn observe(repository: &Repository) -> Result<Observed, CliError> {
    block_on(async {
        let live = Live::connect(repository).await?;
        live.look_up_classes(repository).await;
        Ok(live.look().await)
    })
}

/// Tags the instances of an approved adoption under the lock of applies, if it is by then what it was;
/// returns how many.
pub(super) fn tag(
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    block_on(async {
        let live = Live::connect(repository).await?;
        let holder = format!("adopt/{}/{}", std::process::id(), Wall.now().as_millisecond());
        let lease = Lease::new(&live.kubernetes, LEASE_NAMESPACE, LEASE_NAME, holder);
        let locked = |error: LeaseError| CliError::new(error).kind(Exit::Locked);
        let mut held = acquire(&lease, Duration::ZERO, console).await?;
        let mut done = still(adoption, &repository.desired, &live.look().await);
        // As many at a time as are tagged long before the lock runs out.
        for rows in adoption.rows.chunks(TAGGED_AT_ONCE) {
            if done.is_err() {
                break;
            }
            held = lease.renew(&held, Wall.now()).await.map_err(locked)?;
            done = tag_all(&live.aws, rows).await.map_err(CliError::new);
        }
        // It runs out by itself where it cannot be given back.
        drop(lease.release(&held, Wall.now()).await);
        done.map(|()| adoption.rows.len())
    })
}

/// Returns what must be in place, and whether it is.
pub(super) fn preflight(repository: &Repository) -> Result<Vec<Requirement>, CliError> {
    let fleet = &repository.fleet;
    block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        let queue = fleet.controller.queue.as_deref();
        let found = aws.preflight(&repository.desired, queue).await;
        let Preflight { mut requirements, node_roles, endpoint } = found;
        if endpoint.is_some() {
            requirements.push(offers(&aws, repository).await);
        }
        let kubernetes = match Kubernetes::connect().await {
            Ok(kubernetes) => kubernetes,
            Err(error) => {
                let remedy = "run `aws eks update-kubeconfig --name CLUSTER`";
                requirements.push(Requirement::of("kubeconfig", Err(error.to_string()), remedy));
                return Ok(requirements);
            }
        };
        let leads = endpoint.map(|url| whose::requirement(fleet, kubernetes.server(), &url));
        requirements.extend(leads);
        requirements.extend(kubernetes.preflight(|| Wall.now()).await);
        let homes = repository.desired.autoscaler_namespaces.as_ref();
        requirements.push(alone(&kubernetes, homes).await);
        for NodeRole { arn, has_entry } in node_roles {
            let mapped = if has_entry {
                Ok("by an access entry".to_owned())
            } else {
                match kubernetes.maps_role(&arn).await {
                    Ok(true) => Ok("by the map aws-auth".to_owned()),
                    Ok(false) => Err("neither an access entry nor aws-auth names it".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            };
            let remedy =
                format!("eksctl create accessentry --principal-arn {arn} --type EC2_LINUX");
            requirements.push(Requirement::of(&format!("{arn} may join"), mapped, &remedy));
        }
        Ok(requirements)
    })
}

/// Returns whether all that EC2 offers can be read: plans go on without, by what is embedded.
async fn offers(aws: &Aws, repository: &Repository) -> Requirement {
    // What was read before is no answer here.
    let found = match market_of(aws, repository, &Answers::default()).await {
        Ok(market) if market.unread.is_empty() => {
            Ok(format!("{} types in {} zones", market.offered.len(), market.zones.len()))
        }
        Ok(market) => Err(market.unread.join("; ")),
        Err(why) => Err(why),
    };
    let remedy = "attach deploy/aws/plan.json to whoever plans, and let it reach those services";
    Requirement::of("read what EC2 offers", found, remedy)
}

/// Returns whether nobody else makes and removes nodes, of those that are called so in any namespace, or in the
/// declared ones.
async fn alone(kubernetes: &Kubernetes, homes: Option<&BTreeSet<Namespace>>) -> Requirement {
    let found = match kubernetes.objects().await {
        Ok(objects) => {
            let all = rivals_among(&objects.workloads, &objects.pods, &objects.templates);
            // Where nobody has said who lives where, whoever is called so is worth a look.
            let (count, others) = match homes {
                Some(homes) => parted(all, &objects.nodes, Some(homes)),
                None => (all, Vec::new()),
            };
            match (in_words(&count), in_words(&others)) {
                (Some(count), _) => {
                    Err(format!("{count} would fight for nodes, if that is what it is"))
                }
                (None, None) => Ok("neither Karpenter nor Cluster Autoscaler runs".to_owned()),
                (None, Some(others)) => Ok(format!(
                    "none counts that runs; {others} is not where `spec.autoscalers.namespaces` says"
                )),
            }
        }
        Err(error) => Err(error.to_string()),
    };
    let remedy =
        "deploy/migrate says how to take over from it; groups that only it resizes may stay its";
    Requirement::of("no other autoscaler", found, remedy)
}

/// Returns the names of other autoscalers; `None` where there are none.
fn in_words(rivals: &[Rival]) -> Option<String> {
    let names: Vec<String> =
        rivals.iter().map(|rival| format!("{} ({})", rival.kind, rival.workload)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Carries an approved plan out, with progress on stderr and the receipt on stdout.
pub(super) fn carry_out(
    plan: &Plan,
    asked: &settings::ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let repository = embedded::same_tree(plan)?;
    let interrupted = embedded::interrupt_flag()?;
    // What cannot be written later must be known before anything is done.
    asked.receipt.as_deref().map(files::writable).transpose()?;
    let mut teller = Teller::new(plan, asked.form, console);
    let receipt = block_on(async {
        let live = Live::connect(&repository).await?;
        let fleet = &repository.fleet;
        // Kept under the account that really answers, whichever the plan was made for.
        let market = market_for(&live.aws, &repository, &live.identity.account).await;
        let catalog = planning::catalog(&fleet.region, &fleet.zones, Some(&market))?;
        let again = Again::of(&repository, &catalog);
        let settings = ApplySettings {
            approved: asked.approved_digest.clone(),
            catalog: Some(&catalog),
            interrupted: Some(&interrupted),
            ..ApplySettings::of(live.identity.clone(), &again)
        };
        let done = under_lock(plan, (live, &repository), (&settings, asked), &mut teller).await;
        done.inspect_err(|error| {
            teller.clear();
            if error.kind == Exit::Stale {
                again.show_beside(plan, teller.console);
            }
        })
    });
    let receipt = receipt.inspect_err(|_| teller.clear())?;
    embedded::conclude(&receipt, asked.receipt.as_deref(), &mut teller)
}

/// Checks that the plan may be applied here, takes the lock, and applies under it.
async fn under_lock(
    plan: &Plan,
    (live, repository): (Live, &Repository),
    (settings, asked): (&ApplySettings<'_>, &settings::ApplySettings),
    teller: &mut Teller<'_>,
) -> Result<Receipt, CliError> {
    verify(plan, settings, Wall.now()).map_err(embedded::refused)?;
    let Live { kubernetes, aws, .. } = live;
    let joining = aws.joining().await.map_err(no_account)?;
    // What is launched joins that cluster, wherever the kubeconfig leads.
    whose::same_cluster(&repository.fleet, kubernetes.server(), &joining.endpoint.url)?;
    let machines = Machines::of(&repository.desired, joining.endpoint, &joining.kubernetes);
    // Launches and the plan that is made again go by the same.
    aws.look_up(&machines).await;
    let aws = aws.launching(machines);
    let lease = Lease::new(&kubernetes, LEASE_NAMESPACE, LEASE_NAME, holder(plan));
    let held = acquire(&lease, asked.lock_timeout, teller.console).await?;
    let ports = (&kubernetes, &aws);
    Box::pin(under_lease(plan, ports, settings, (&lease, held), teller)).await
}

/// Applies while the lease is renewed; what is written stops as soon as holding it is not certain.
async fn under_lease(
    plan: &Plan,
    (kubernetes, aws): (&Kubernetes, &Aws),
    settings: &ApplySettings<'_>,
    (lease, held): (&Lease, Held),
    teller: &mut Teller<'_>,
) -> Result<Receipt, CliError> {
    let held = Rc::new(RefCell::new(held));
    let is_certain = || held.borrow().is_certain();
    let (cloud, cluster) = (Fenced::new(aws, &is_certain), Fenced::new(kubernetes, &is_certain));
    let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &Wall };
    let notes = Notes::new(plan, kubernetes);
    let (sender, events) = tokio::sync::mpsc::unbounded_channel();
    let mut report = |event: &Event| {
        teller.event(event);
        notes.remember(event);
        // Whoever writes events listens for as long as the apply goes on.
        let _ = sender.send(event.clone());
    };
    let noting = notes.write(events);
    tokio::pin!(noting);
    let receipt = {
        let tries = Cell::new(0);
        let renewal = renew(lease, &held, &tries);
        let beside = async { tokio::join!(renewal, noting.as_mut()) };
        let apply = apply(plan, &ports, settings, &mut report);
        Box::pin(while_held(apply, beside, &is_certain, &tries)).await
    };
    drop(sender);
    // The last ones are worth a moment, and no more.
    let _ = tokio::time::timeout(notes::LAST_MAX, noting).await;
    let mut last = held.borrow().clone();
    for sold_out in notes.sold_out() {
        last.memory.note(sold_out, Wall.now());
    }
    if let Ok(receipt) = &receipt {
        let whole = receipt.verdict == Verdict::Applied && plan.complete;
        last.record = Some(record::applied(last.record.as_deref(), plan, (Wall.now(), whole)));
    }
    // What is not given back runs out by itself.
    if let Err(error) = lease.release(&last, Wall.now()).await {
        tracing::warn!(%error, "the lock was not given back");
    }
    receipt.map_err(embedded::refused)
}

/// Carries `work` on while holding the lock is certain, and `beside` with it; where it has become
/// uncertain, as after a long computation, only after another of the `tries` to renew it. What the
/// work may still do after a try that failed, the fence decides.
async fn while_held<T>(
    work: impl Future<Output = T>,
    beside: impl Future,
    is_certain: &dyn Fn() -> bool,
    tries: &Cell<u32>,
) -> T {
    tokio::pin!(work, beside);
    let mut waits_since = None;
    let mut has_ended = false;
    std::future::poll_fn(|context| {
        let before = tries.get();
        // Neither of the others ends before: what counts is the receipt.
        has_ended = has_ended || beside.as_mut().poll(context).is_ready();
        if is_certain() || has_ended {
            waits_since = None;
        } else if *waits_since.get_or_insert(before) == tries.get() {
            return Poll::Pending;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Renews the lease for as long as it is polled, and counts how often it was tried.
async fn renew(lease: &Lease, held: &RefCell<Held>, tries: &Cell<u32>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let current = held.borrow().clone();
        let renewed = lease.renew(&current, Wall.now()).await;
        tries.set(tries.get().wrapping_add(1));
        match renewed {
            Ok(renewed) => *held.borrow_mut() = renewed,
            // Nobody may take it over yet, and somebody did: what is written from now on is theirs.
            Err(error @ LeaseError::Lost { .. }) => {
                tracing::error!(%error, "the lock is lost; nothing more is written");
                *held.borrow_mut() = current.lost();
                return std::future::pending().await;
            }
            Err(error) => tracing::warn!(%error, "the lock was not renewed"),
        }
    }
}

/// Takes the lock, waiting for as long as `patience` while another apply holds it.
async fn acquire(
    lease: &Lease,
    patience: Duration,
    console: &mut Console,
) -> Result<Held, CliError> {
    let begun = tokio::time::Instant::now();
    let mut until = begun + patience;
    let mut said = false;
    loop {
        let error = match lease.acquire(Wall.now()).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        let taken = matches!(error, LeaseError::Taken { .. } | LeaseError::Lost { .. });
        if !taken {
            return Err(CliError::new(error)
                .hint("whoever changes something needs to read and write leases"));
        }
        if let LeaseError::Taken { holder, .. } = &error
            && holder.starts_with(LOOP)
        {
            // No other apply, and not to be waited for but asked.
            until = until.max(begun + HANDOVER_MAX);
            if let Err(error) = lease.ask().await {
                tracing::warn!(%error, "the loop was not asked for the lock");
            }
        }
        if tokio::time::Instant::now() >= until {
            return Err(CliError::new(error)
                .kind(Exit::Locked)
                .hint("wait for the other apply, or pass a longer --lock-timeout"));
        }
        if !said {
            console.say(&format!("{error}; waiting"));
            said = true;
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Returns a name that no other apply has: the plan, and this process.
fn holder(plan: &Plan) -> String {
    let id: String = plan.capacity.plan_id.as_str().chars().take(19).collect();
    format!("{id}/{}/{}", std::process::id(), Timestamp::now().as_nanosecond())
}

/// Notes that a plan that changes nothing was applied, for a loop that waits for that.
pub(super) fn nothing_to_apply(plan: &Plan, console: &mut Console) -> Result<(), CliError> {
    let repository = embedded::same_tree(plan)?;
    block_on(async {
        let Live { kubernetes, .. } = Live::connect(&repository).await?;
        let lease = Lease::new(&kubernetes, LEASE_NAMESPACE, LEASE_NAME, holder(plan));
        let mut held = acquire(&lease, Duration::ZERO, console).await?;
        let end = (Wall.now(), plan.complete);
        held.record = Some(record::applied(held.record.as_deref(), plan, end));
        lease.release(&held, Wall.now()).await.map_err(CliError::new)
    })
}

pub(super) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?
        .block_on(work)
}

pub(super) fn no_cluster(error: ConnectError) -> CliError {
    let hint = match error {
        ConnectError::NoConfig(_) => "run `aws eks update-kubeconfig --name CLUSTER`",
        ConnectError::NoContext(_) => {
            "run `kubectl config get-contexts`, or `aws eks update-kubeconfig --name CLUSTER`"
        }
        ConnectError::Client(_) | ConnectError::Refused(_) => {
            "try `kubectl get nodes` with the same kubeconfig and context"
        }
    };
    CliError::new(error).context("cannot use the cluster".to_owned()).hint(hint)
}

pub(super) fn no_account(error: AwsError) -> CliError {
    CliError::new(error)
        .context("cannot use the AWS account".to_owned())
        .hint("try `aws sts get-caller-identity` with the same environment")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs work that computes for longer than the lock is certain; returns what it found of it.
    fn after_a_long_computation(renews: bool) -> bool {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            certain.set(false);
            Wall.breathe().await;
            is_certain()
        };
        let beside = async {
            // Renewing takes a moment, and the work may not go on before.
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            certain.set(renews);
            tries.set(1);
            std::future::pending::<()>().await;
        };
        block_on(async { Ok(while_held(work, beside, &is_certain, &tries).await) }).expect("ends")
    }

    #[test]
    fn a_lock_that_a_try_to_renew_found_lost_leaves_the_rest_to_the_fence() {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            while is_certain() {
                Wall.breathe().await;
            }
        };
        let beside = async {
            tokio::task::yield_now().await;
            tries.set(1);
            certain.set(false);
            std::future::pending::<()>().await;
        };
        let ends = async {
            let held = while_held(work, beside, &is_certain, &tries);
            Ok(tokio::time::timeout(Duration::from_secs(10), held).await)
        };
        assert!(block_on(ends).expect("runs").is_ok());
    }

    #[test]
    fn what_takes_longer_than_the_lock_is_certain_goes_on_once_renewing_was_tried() {
        assert!(after_a_long_computation(true), "renewed");
        assert!(!after_a_long_computation(false), "the fence has the last word");
    }
}
