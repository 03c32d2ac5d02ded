//! Clients that send nothing, or send slowly, and the probes beside them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fleetwright::controller::StatusPublisher;
use fleetwright::server::http::{HttpServer, PageSource, RouteSet, ServerConfig, listen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;

use super::statuses::busy;

/// Clients of each kind, if the limit of open files allows it.
const CLIENTS_MAX: u64 = 2_000;
/// A probe that waits for its turn behind the clients has no answer within this time.
const NO_ANSWER_AFTER: Duration = Duration::from_secs(10);

fn serve(routes: RouteSet) -> (StatusPublisher, HttpServer) {
    let (publisher, reader) = StatusPublisher::new(busy());
    let config = ServerConfig { routes, ..ServerConfig::new(reader, PageSource::Controller(None)) };
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    (publisher, listen(any_port, config).expect("a port"))
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(NO_ANSWER_AFTER))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Raises the limit of open files, and returns how many clients of each kind it allows.
///
/// Both ends of a connection are files of this process. The tests beside this one open files too.
fn clients() -> u64 {
    const OF_OTHER_TESTS: u64 = 2_000;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = 4 * CLIENTS_MAX + OF_OTHER_TESTS;
    let allowed = match current {
        Some(current) if current < wanted => {
            let raised = maximum.map_or(wanted, |most| most.min(wanted));
            let limit = Rlimit { current: Some(raised), maximum };
            setrlimit(Resource::Nofile, limit).map_or(current, |()| raised)
        }
        _ => wanted,
    };
    (allowed.saturating_sub(OF_OTHER_TESTS) / 4).clamp(100, CLIENTS_MAX)
}

/// Connects to the server again and again, from one of 50 addresses. A slow client sends the head
/// of a request byte by byte.
async fn occupy(server: SocketAddr, n: u64, is_slow: bool, stop: Arc<AtomicBool>) {
    let source = Ipv4Addr::new(127, 0, 1, u8::try_from(n % 50).expect("small") + 1);
    while !stop.load(Ordering::Relaxed) {
        let Ok(socket) = TcpSocket::new_v4() else { return };
        let connected = match socket.bind((source, 0).into()) {
            Ok(()) => socket.connect(server).await,
            Err(error) => Err(error),
        };
        if let Ok(mut stream) = connected {
            let mut head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaa".iter();
            while is_slow && !stop.load(Ordering::Relaxed) {
                let Some(byte) = head.next() else { break };
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let mut end = [0];
            let read = tokio::io::AsyncReadExt::read(&mut stream, &mut end);
            // An ended connection is made again.
            let _ = tokio::time::timeout(Duration::from_secs(2), read).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn probes_answer_beside_thousands_of_silent_and_slow_clients() {
    let (_publisher, server) = serve(RouteSet::All);
    let (address, clients) = (server.address(), clients());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let crowd = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for n in 0..clients {
                all.spawn(occupy(address, n, false, Arc::clone(&stopped)));
                all.spawn(occupy(address, n, true, Arc::clone(&stopped)));
            }
            while !stopped.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    });
    std::thread::sleep(Duration::from_secs(2));
    let seconds = std::env::var("FLEETWRIGHT_OCCUPY_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(4);
    let (began, mut probes) = (Instant::now(), 0_u32);
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(seconds) {
        // The kernel may reset one connection among thousands of new ones. The kubelet restarts a
        // container only after three failures.
        let asked = Instant::now();
        let answer = get(address, "/healthz").or_else(|_| get(address, "/healthz"));
        assert!(
            answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")),
            "probe {probes} beside {clients} clients of each kind: {answer:?}"
        );
        probes += 1;
        slowest = slowest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    eprintln!(
        "measured: {probes} probes beside {clients} clients of each kind, slowest {slowest:?}"
    );
    stop.store(true, Ordering::Relaxed);
    crowd.join().expect("the clients end");
}

#[test]
fn metrics_port_serves_no_page_and_page_port_no_metrics() {
    let (_publisher, metrics) = serve(RouteSet::Metrics);
    let (_other, page) = serve(RouteSet::Page);
    for (path, on_metrics, on_page) in [
        ("/healthz", "200", "404"),
        ("/metrics", "200", "404"),
        ("/readyz", "200", "404"),
        ("/", "404", "200"),
        ("/plan.json", "404", "200"),
        ("/events", "404", "200"),
    ] {
        for (server, expected) in [(&metrics, on_metrics), (&page, on_page)] {
            let address = server.address();
            let mut stream = TcpStream::connect(address).expect("it listens");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
            let mut code = [0; 12];
            stream.read_exact(&mut code).expect("an answer");
            assert_eq!(code, *format!("HTTP/1.1 {expected}").as_bytes(), "{path}");
        }
    }
}
