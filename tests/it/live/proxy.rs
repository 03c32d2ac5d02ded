//! A proxy between the program and its servers. It records all calls, adds features that moto lacks
//! (idempotency by client token, insufficient capacity, throttling), drops replies, and signals
//! crashes of the process. `proxy_additions.rs` holds the responses that the proxy makes itself.
//!
//! It speaks HTTP/1.1 and reads the method, path, form and operation of a request. The upstream
//! server is moto, the sandbox, or `kubectl proxy` in front of a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tokio::sync::Notify;

use super::proxy_additions::ProxyAdditions;

/// AWS actions with effects.
const CHANGES: [&str; 5] = [
    "CreateFleet",
    "CreateLaunchTemplate",
    "SetDesiredCapacity",
    "TerminateInstanceInAutoScalingGroup",
    "TerminateInstances",
];

/// The parts of a request that tests need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    /// Fields of the form, or empty if the body is no form.
    pub(super) form: BTreeMap<String, String>,
    /// Operation in the header `x-amz-target`, without its service; empty without this header.
    pub(super) target: String,
    /// JSON body of a call with an operation header.
    pub(super) body: Json,
}

impl Call {
    /// Returns the AWS action, or the method and path.
    pub(super) fn name(&self) -> String {
        if !self.target.is_empty() {
            return self.target.clone();
        }
        self.form.get("Action").cloned().unwrap_or_else(|| format!("{} {}", self.method, self.path))
    }

    /// Returns true if the call has an effect.
    pub(super) fn is_effect(&self) -> bool {
        match self.form.get("Action") {
            Some(action) => CHANGES.contains(&action.as_str()),
            // A lease is no effect of a plan.
            None => {
                ["POST", "PATCH", "PUT", "DELETE"].contains(&self.method.as_str())
                    && self.path.starts_with("/api/v1/")
            }
        }
    }
}

/// The fault that is injected into a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call is forwarded.
    None,
    /// The call is not forwarded. The proxy responds with this status and body.
    Answer(u16, String),
    /// The call is forwarded and its reply is dropped.
    LoseReply,
    /// The process crashes before the call is forwarded.
    CrashBefore,
    /// The process crashes after the call is forwarded.
    CrashAfter,
}

/// Returns the fault of each call, in the order of the calls.
pub(super) type FaultRule = Box<dyn FnMut(&Call) -> Fault + Send>;

/// A recorded call.
#[derive(Debug, Clone)]
pub(super) struct LoggedCall {
    pub(super) call: Call,
    /// True if the upstream server received the call.
    pub(super) arrived: bool,
}

struct ProxyState {
    upstream: String,
    fault_rule: Mutex<FaultRule>,
    calls: Mutex<Vec<LoggedCall>>,
    /// First launch of each client token, and its response.
    tokens: Mutex<BTreeMap<String, (Call, Answer)>>,
    /// Time after a launch during which lists omit the instance.
    list_lag: Mutex<Duration>,
    launched_at: Mutex<BTreeMap<String, Instant>>,
    additions: Mutex<ProxyAdditions>,
    crash: Notify,
}

/// A running proxy. It ends with the test process.
#[derive(Clone)]
pub(super) struct Proxy {
    pub(super) url: String,
    inner: Arc<ProxyState>,
}

/// An HTTP response.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    bytes: Vec<u8>,
}

impl Answer {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(super) fn body(&self) -> String {
        self.text().split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
    }
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, a URL without a path.
    pub(super) fn start(upstream: &str) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let inner = Arc::new(ProxyState {
            upstream,
            fault_rule: Mutex::new(Box::new(|_| Fault::None)),
            calls: Mutex::default(),
            tokens: Mutex::default(),
            list_lag: Mutex::default(),
            launched_at: Mutex::default(),
            additions: Mutex::default(),
            crash: Notify::new(),
        });
        let serving = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A client may close its connection at any time.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        Self { url, inner }
    }

    /// Sets the rule that injects faults into all further calls.
    pub(super) fn set_fault_rule(&self, rule: impl FnMut(&Call) -> Fault + Send + 'static) {
        *lock(&self.inner.fault_rule) = Box::new(rule);
    }

    /// Hides instances from lists for `list_lag` after their launch, as EC2 does under load.
    pub(super) fn set_list_lag(&self, lag: Duration) {
        *lock(&self.inner.list_lag) = lag;
    }

    /// Edits the features that the proxy adds.
    pub(super) fn edit_additions(&self, change: impl FnOnce(&mut ProxyAdditions)) {
        change(&mut lock(&self.inner.additions));
    }

    /// Returns the calls so far, in order.
    pub(super) fn calls(&self) -> Vec<LoggedCall> {
        lock(&self.inner.calls).clone()
    }

    /// Waits for a call with the fault `CrashBefore` or `CrashAfter`.
    pub(super) async fn wait_for_crash(&self) {
        self.inner.crash.notified().await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProxyState {
    /// Serves the requests of one connection.
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some((call, raw)) = read_request(&mut reader)? {
            let fault = (lock(&self.fault_rule))(&call);
            let (arrived, answer) = match &fault {
                Fault::Answer(status, body) => (false, Some(answer(*status, body))),
                Fault::CrashBefore => (false, None),
                Fault::None => (true, Some(self.respond(&call, &raw)?)),
                Fault::LoseReply | Fault::CrashAfter => {
                    self.respond(&call, &raw)?;
                    (true, None)
                }
            };
            lock(&self.calls).push(LoggedCall { call, arrived });
            if matches!(fault, Fault::CrashBefore | Fault::CrashAfter) {
                self.crash.notify_one();
            }
            match answer {
                Some(answer) => (&*stream).write_all(&answer.bytes)?,
                // The client sees a closed connection.
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Responds to a request from the additions or the upstream server.
    fn respond(&self, call: &Call, raw: &[u8]) -> io::Result<Answer> {
        if let Some(reply) = lock(&self.additions).answer(call) {
            return Ok(reply);
        }
        let raw = lock(&self.additions).with_fleet_choice(call, raw);
        let reply = self.forward_once(call, &raw)?;
        Ok(lock(&self.additions).extend_response(call, reply))
    }

    /// Forwards a request. All launches with the same client token are one launch.
    fn forward_once(&self, call: &Call, raw: &[u8]) -> io::Result<Answer> {
        if call.name() == "DescribeInstances" {
            return Ok(self.without_recent_launches(self.forward(raw)?));
        }
        let token = call.form.get("ClientToken").filter(|_| call.name() == "CreateFleet");
        let Some(token) = token else { return self.forward(raw) };
        // The lock is held during the launch, so that only one launch of a token is forwarded.
        let mut tokens = lock(&self.tokens);
        if let Some((asked, reply)) = tokens.get(token) {
            if asked.form != call.form {
                let message = "Client token was used before with other parameters";
                return Ok(refusal(400, "IdempotentParameterMismatch", message));
            }
            return Ok(reply.clone());
        }
        let reply = self.forward(raw)?;
        if reply.status == 200 {
            let text = reply.text();
            let ids = text.split(['<', '>']).filter(|word| word.starts_with("i-"));
            let now = Instant::now();
            lock(&self.launched_at).extend(ids.map(|id| (id.to_owned(), now)));
            tokens.insert(token.clone(), (call.clone(), reply.clone()));
        }
        Ok(reply)
    }

    /// Removes recently launched instances from a list.
    fn without_recent_launches(&self, reply: Answer) -> Answer {
        let lag = *lock(&self.list_lag);
        let launches = lock(&self.launched_at).clone();
        let hidden: Vec<String> = launches
            .into_iter()
            .filter(|(_, at)| at.elapsed() < lag)
            .map(|(id, _)| format!("<item><instanceId>{id}</instanceId>"))
            .collect();
        let text = String::from_utf8_lossy(&reply.bytes).into_owned();
        let Some((_, body)) = text.split_once("\r\n\r\n").filter(|_| !hidden.is_empty()) else {
            return reply;
        };
        let mut body = body.to_owned();
        for begin in hidden
            .iter()
            .filter_map(|item| body.find(item.as_str()))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .rev()
        {
            let end = end_of_item(&body, begin);
            body.replace_range(begin..end, "");
        }
        answer(reply.status, &body)
    }

    fn forward(&self, raw: &[u8]) -> io::Result<Answer> {
        let mut stream = TcpStream::connect(&self.upstream)?;
        stream.write_all(raw)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no answer: {line}")))?;
        Ok(Answer { status, bytes })
    }
}

/// Returns the end of the item that begins at `begin`, with its nested items.
fn end_of_item(body: &str, begin: usize) -> usize {
    let (mut depth, mut at) = (0_usize, begin);
    loop {
        let open = body[at..].find("<item>").map_or(usize::MAX, |n| at + n);
        let close = body[at..].find("</item>").map_or(body.len(), |n| at + n + "</item>".len());
        if open < close {
            (depth, at) = (depth + 1, open + "<item>".len());
        } else {
            (depth, at) = (depth.saturating_sub(1), close);
        }
        if depth == 0 || at == body.len() {
            return at;
        }
    }
}

/// Returns an error response of EC2.
pub(super) fn refusal_body(code: &str, message: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Response><Errors><Error><Code>{code}</Code>\
         <Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
    )
}

fn refusal(status: u16, code: &str, message: &str) -> Answer {
    answer(status, &refusal_body(code, message))
}

pub(super) fn answer(status: u16, body: &str) -> Answer {
    let kind = if body.starts_with('{') { "application/json" } else { "text/xml" };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    Answer { status, bytes: [head.as_bytes(), body.as_bytes()].concat() }
}

/// Reads a request. Returns `None` at the end of the connection. Forwarded requests close their
/// connection, so that its end is the end of the response.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(Call, Vec<u8>)>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (method, path) = (method.to_owned(), path.to_owned());
    let (mut head, mut length, mut chunked) = (first.clone(), 0, false);
    let mut target = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "x-amz-target" => {
                value.trim().rsplit('.').next().unwrap_or_default().clone_into(&mut target);
            }
            "transfer-encoding" => chunked = value.contains("chunked"),
            "connection" | "expect" | "accept-encoding" => continue,
            _ => {}
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if chunked {
        return Err(io::Error::other("chunked requests are not supported"));
    }
    let form = if body.starts_with(b"Action=") { form(&body) } else { BTreeMap::new() };
    let json = if target.is_empty() { None } else { serde_json::from_slice(&body).ok() };
    let json = json.unwrap_or_default();
    head.push_str("connection: close\r\n\r\n");
    let raw = [head.as_bytes(), &body].concat();
    Ok(Some((Call { method, path, form, target, body: json }, raw)))
}

fn form(body: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(body);
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (unescape(key), unescape(value))).collect()
}

fn unescape(text: &str) -> String {
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16)).unwrap_or(0);
        match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
            }
            b'+' => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
