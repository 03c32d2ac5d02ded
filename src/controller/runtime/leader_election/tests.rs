//! Leader election over an API server with one lease.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::*;
use crate::model::observed::Exclusion;
use crate::model::unavailable_offerings::UnavailableOfferings;

/// A fault of the API server on a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerFault {
    /// Answers with an error.
    Refuse,
    /// Never answers.
    Hang,
    /// Lets another replica take the lease first.
    StealLease,
    /// Writes, and drops the response.
    DropResponse,
}

/// An API server with one lease.
#[derive(Default)]
struct FakeApiServer {
    lease: Mutex<Option<Json>>,
    faults: Mutex<VecDeque<ServerFault>>,
    writes: Mutex<u32>,
}

impl FakeApiServer {
    fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(state_keys: Option<StateKeys>) -> (Arc<Self>, LeaderElector) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Arc::<Self>::default();
        let serving = Arc::clone(&server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A client may disconnect at any time.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        let config = kube::Config::new(url.parse().expect("a URL"));
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let timing = LeaseTiming {
            renew_every: Duration::from_millis(40),
            renew_within: Duration::from_millis(400),
            poll: Duration::from_millis(20),
            hand_over_within: Duration::from_millis(600),
        };
        (server, LeaderElector { timing, ..LeaderElector::new(&kubernetes, "run/a", state_keys) })
    }

    fn faults(&self, faults: &[ServerFault]) {
        Self::lock(&self.faults).extend(faults);
    }

    /// Changes the lease as another client does.
    fn change(&self, change: impl FnOnce(&mut Json)) {
        let mut lease = Self::lock(&self.lease);
        let lease = lease.as_mut().expect("a lease");
        change(lease);
        *Self::lock(&self.writes) += 1;
        lease["metadata"]["resourceVersion"] = Self::lock(&self.writes).to_string().into();
    }

    fn holder(&self) -> String {
        let lease = Self::lock(&self.lease);
        let holder = lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].clone());
        holder.and_then(|holder| holder.as_str().map(str::to_owned)).unwrap_or_default()
    }

    fn steal_lease(&self) {
        self.change(|lease| {
            lease["spec"]["holderIdentity"] = "run/b".into();
            lease["spec"]["leaseTransitions"] = 77.into();
        });
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
                if let Some(of) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = of.trim().parse().unwrap_or(0);
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let fault =
                if first.starts_with("GET") { None } else { Self::lock(&self.faults).pop_front() };
            if fault == Some(ServerFault::StealLease) {
                self.steal_lease();
            }
            let (code, answer) = match fault {
                Some(ServerFault::Refuse) => (503, refusal(503)),
                Some(ServerFault::Hang) => {
                    std::thread::sleep(Duration::from_secs(3));
                    return Ok(());
                }
                Some(ServerFault::StealLease | ServerFault::DropResponse) | None => {
                    self.answer(&first, &body)
                }
            };
            if fault == Some(ServerFault::DropResponse) {
                return Ok(());
            }
            let text = answer.to_string();
            // Several small writes would wait for a delayed acknowledgement of the client.
            let response = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
            stream.write_all(response.as_bytes())?;
        }
    }

    fn answer(&self, first: &str, body: &[u8]) -> (u16, Json) {
        let mut lease = Self::lock(&self.lease);
        if first.starts_with("GET") {
            return lease.clone().map_or((404, refusal(404)), |lease| (200, lease));
        }
        let mut new: Json = serde_json::from_slice(body).expect("JSON");
        let version = |lease: &Json| lease["metadata"]["resourceVersion"].clone();
        let known = lease.as_ref().map(version);
        if known.as_ref().is_some_and(|known| *known != version(&new)) {
            return (409, refusal(409));
        }
        let mut writes = Self::lock(&self.writes);
        *writes += 1;
        new["metadata"]["resourceVersion"] = writes.to_string().into();
        *lease = Some(new.clone());
        (200, new)
    }
}

fn refusal(code: u16) -> Json {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "ServiceUnavailable",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no",
        "reason": reason, "code": code
    })
}

/// Runs `work` against an API server during leader election; it receives the signals.
fn run(work: impl AsyncFnOnce(&FakeApiServer, &LeaderElector, mpsc::Receiver<Signal>)) {
    run_with(None, work);
}

fn run_with(
    state_keys: Option<StateKeys>,
    work: impl AsyncFnOnce(&FakeApiServer, &LeaderElector, mpsc::Receiver<Signal>),
) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(async {
        let (server, elector) = FakeApiServer::start(state_keys);
        let (signals, received) = mpsc::channel(8);
        let work = work(&server, &elector, received);
        tokio::select! {
            () = elector.run(signals) => unreachable!("it never ends"),
            end = tokio::time::timeout(Duration::from_mins(5), work) => {
                end.expect("it ends");
            }
        }
    });
}

async fn next(received: &mut mpsc::Receiver<Signal>) -> Signal {
    let signal = tokio::time::timeout(Duration::from_mins(1), received.recv()).await;
    signal.expect("a signal within a minute").expect("the election runs")
}

fn lost_to(holder: &str, to_apply: bool) -> Signal {
    Signal::LeaseLost { holder: Some(holder.to_owned()), to_apply }
}

#[test]
fn failed_renewals_are_retried_while_the_lease_is_certain() {
    run(async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        for fault in [
            ServerFault::Refuse,
            ServerFault::Refuse,
            ServerFault::Hang,
            ServerFault::Refuse,
            ServerFault::DropResponse,
        ] {
            server.faults(&[fault]);
            let before = *FakeApiServer::lock(&server.writes);
            // Waits for a later write that succeeds.
            while *FakeApiServer::lock(&server.writes) < before + 3
                || !FakeApiServer::lock(&server.faults).is_empty()
            {
                assert!(elector.is_certain(), "{fault:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(received.try_recv().is_err(), "it has held the lease all the time");
        assert_eq!(server.holder(), "run/a");
    });
}

#[test]
fn stolen_lease_is_lost_and_state_is_not_saved() {
    run(async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        server.faults(&[ServerFault::StealLease]);
        assert_eq!(next(&mut received).await, lost_to("run/b", false));
        assert!(!elector.is_certain());
        let saved = elector.save(&PersistedState::default()).await;
        assert!(saved.is_err_and(|error| error.reason.contains("not held")));
        assert_eq!(server.holder(), "run/b", "the lease is not touched");
        // A released lease is taken again.
        server.change(|lease| lease["spec"]["holderIdentity"] = "".into());
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
    });
}

#[test]
fn only_the_lease_holder_saves_state() {
    run(async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        let state =
            PersistedState { served_commit: Some("a".repeat(40)), ..PersistedState::default() };
        elector.save(&state).await.expect("saved");
        assert_eq!(elector.load().await, Ok(state.clone()));
        // A renewal that waits for the same lock may consume the first fault.
        server.faults(&[ServerFault::Refuse; 2]);
        let other =
            PersistedState { served_commit: Some("b".repeat(40)), ..PersistedState::default() };
        assert!(elector.save(&other).await.is_err(), "it is refused");
        FakeApiServer::lock(&server.faults).clear();
        assert!(elector.is_certain(), "one refusal does not lose the lease");
        server.steal_lease();
        assert!(elector.save(&state).await.is_err());
        assert!(!elector.is_certain());
        // The save may notice it before a renewal does, which reports the holder.
        let lost = next(&mut received).await;
        if lost != lost_to("run/b", false) {
            assert_eq!(lost, Signal::LeaseLost { holder: None, to_apply: false });
            // A renewal that was on its way may have read the holder already; it reports it once.
            let holder = tokio::time::timeout(Duration::from_secs(10), received.recv()).await;
            assert!(holder.is_err() || holder == Ok(Some(lost_to("run/b", false))), "{holder:?}");
        }
    });
}

#[test]
fn exclusions_of_applies_keep_their_end() {
    run(async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        let offering = Exclusion {
            instance_type: Some("m5.large".into()),
            zone: Some("us-east-1a".into()),
            capacity_type: None,
            until: Timestamp::UNIX_EPOCH,
        };
        let now = SystemClock.now();
        let mut offerings = UnavailableOfferings::default();
        offerings.record(offering, now, ExclusionLimits::APPLY);
        let text = serde_json::to_string(&offerings).expect("JSON");
        server.change(|lease| {
            let annotations = json!({ "fleetwright.dev/insufficient-capacity": text });
            lease["metadata"]["annotations"] = annotations;
        });
        let state = elector.load().await.expect("loaded");
        assert_eq!(state.unavailable_offerings.exclusions(now), offerings.exclusions(now));
    });
}

#[test]
fn unreadable_state_is_reported_as_a_failed_read() {
    run(async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        server.change(|lease| lease["metadata"]["annotations"] = json!({ RECORD: "{" }));
        let error = elector.load().await.expect_err("it is no JSON");
        assert_eq!(error.verb, "read persisted state", "{error}");
    });
}

#[test]
fn requested_lease_is_released_when_idle_or_after_timeout() {
    for busy_for in [Some(Duration::from_millis(200)), None] {
        run(async |server, elector, mut received| {
            assert_eq!(next(&mut received).await, Signal::LeaseGained);
            elector.set_busy(true);
            server.change(|lease| {
                lease["metadata"]["annotations"] =
                    json!({ "fleetwright.dev/requested-by": "ci/7" });
            });
            assert_eq!(next(&mut received).await, lost_to("ci/7", true), "nothing new starts");
            let since = Instant::now();
            assert!(elector.is_certain(), "work in progress may end");
            if let Some(busy_for) = busy_for {
                tokio::time::sleep(busy_for).await;
                assert_eq!(server.holder(), "run/a");
                elector.set_busy(false);
            }
            while !server.holder().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let least = busy_for.unwrap_or(Duration::from_millis(600));
            assert!(since.elapsed() >= least && !elector.is_certain());
            assert_eq!(next(&mut received).await, lost_to("ci/7", true));
            // Only the apply may take the lease for a while.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(server.holder(), "");
        });
    }
}

/// The record in the lease.
fn record(server: &FakeApiServer) -> String {
    let lease = FakeApiServer::lock(&server.lease);
    let record = &lease.as_ref().expect("a lease")["metadata"]["annotations"][RECORD];
    record.as_str().unwrap_or_default().to_owned()
}

const RECORD: &str = "fleetwright.dev/controller";

/// Takes the lease from the controller, puts `record` into it, and frees it.
async fn replace_record(
    server: &FakeApiServer,
    received: &mut mpsc::Receiver<Signal>,
    record: Option<&str>,
) {
    server.steal_lease();
    assert_eq!(next(received).await, lost_to("run/b", false));
    server.change(|lease| {
        lease["metadata"]["annotations"] = json!({});
        if let Some(record) = record {
            lease["metadata"]["annotations"][RECORD] = record.into();
        }
        lease["spec"]["holderIdentity"] = "".into();
    });
    assert_eq!(next(received).await, Signal::LeaseGained);
}

#[test]
fn older_sealed_record_in_the_lease_is_replaced() {
    let keys = StateKeys::parse(&"k".repeat(32)).expect("a key");
    run_with(Some(keys.clone()), async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        elector.load().await.expect("loaded");
        let commit = |name: &str| PersistedState {
            served_commit: Some(name.to_owned()),
            ..PersistedState::default()
        };
        elector.save(&commit("old")).await.expect("saved");
        let old = record(server);
        elector.save(&commit("new")).await.expect("saved");
        for replayed in [Some(old.as_str()), None, Some("{")] {
            replace_record(server, &mut received, replayed).await;
            assert_eq!(elector.load().await, Ok(commit("new")), "{replayed:?}");
            // The next renewal replaces the record, for processes that do not know it.
            while record(server) == replayed.unwrap_or_default() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let written = keys.open(&record(server), "").expect("a state");
            assert!(written.0 == commit("new") && written.1.is_some(), "{written:?}");
        }
    });
}

#[test]
fn standby_remembers_the_state_of_the_leader() {
    let keys = StateKeys::parse(&"k".repeat(32)).expect("a key");
    run_with(Some(keys.clone()), async |server, elector, mut received| {
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        let commit = |name: &str| PersistedState {
            served_commit: Some(name.to_owned()),
            ..PersistedState::default()
        };
        let earlier = SystemClock.now();
        let seal = |name: &str, at| keys.seal(&commit(name), at, "").expect("sealed");
        let old = seal("old", earlier);
        let newer = seal("new", earlier + Duration::from_secs(1));
        server.change(|lease| {
            lease["metadata"]["annotations"] = json!({ RECORD: newer });
            lease["spec"]["holderIdentity"] = "run/b".into();
            lease["spec"]["leaseTransitions"] = 77.into();
        });
        assert_eq!(next(&mut received).await, lost_to("run/b", false));
        while elector.memory().next_seal(earlier) < earlier + Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.change(|lease| {
            lease["metadata"]["annotations"][RECORD] = old.into();
            lease["spec"]["holderIdentity"] = "".into();
        });
        assert_eq!(next(&mut received).await, Signal::LeaseGained);
        assert_eq!(elector.load().await, Ok(commit("new")));
    });
}
