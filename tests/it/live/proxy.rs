//! Stands between the program and the outside: keeps a ledger of what was asked for and answered, adds
//! what moto lacks (client tokens that count, capacity that runs out, throttling), loses replies, and
//! says when the process is to die. What it answers by itself is in `added.rs`.
//!
//! It speaks HTTP/1.1 and knows no more of a request than its method, path and form or operation. Behind it may be
//! moto, or `kubectl proxy` in front of a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tokio::sync::Notify;

use super::proxy_additions::ProxyAdditions;

/// Actions of AWS that change something.
const CHANGES: [&str; 5] = [
    "CreateFleet",
    "CreateLaunchTemplate",
    "SetDesiredCapacity",
    "TerminateInstanceInAutoScalingGroup",
    "TerminateInstances",
];

/// A request, as far as anybody needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    /// Fields of the form, signatures left out; empty where the body is none.
    pub(super) form: BTreeMap<String, String>,
    /// The operation that a header names, without its service; empty where none does.
    pub(super) target: String,
    /// The body of such an operation.
    pub(super) body: Json,
}

impl Call {
    /// Returns the action of AWS, or method and path.
    pub(super) fn name(&self) -> String {
        if !self.target.is_empty() {
            return self.target.clone();
        }
        self.form.get("Action").cloned().unwrap_or_else(|| format!("{} {}", self.method, self.path))
    }

    /// Returns whether the call changes something.
    pub(super) fn is_effect(&self) -> bool {
        match self.form.get("Action") {
            Some(action) => CHANGES.contains(&action.as_str()),
            // The lock is no effect of a plan.
            None => {
                ["POST", "PATCH", "PUT", "DELETE"].contains(&self.method.as_str())
                    && self.path.starts_with("/api/v1/")
            }
        }
    }
}

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is passed on.
    None,
    /// It never arrives, and this is answered: a status and a body.
    Answer(u16, String),
    /// It arrives, and nobody hears of it.
    LoseReply,
    /// It never arrives: the process dies before.
    DieBefore,
    /// It arrives, and the process dies.
    DieAfter,
}

/// Decides about each call, in order.
pub(super) type FaultRule = Box<dyn FnMut(&Call) -> Fault + Send>;

/// A call.
#[derive(Debug, Clone)]
pub(super) struct LoggedCall {
    pub(super) call: Call,
    /// Whether it arrived.
    pub(super) arrived: bool,
}

struct ProxyState {
    upstream: String,
    judge: Mutex<FaultRule>,
    ledger: Mutex<Vec<LoggedCall>>,
    /// What launches of a token asked for, and what was answered.
    tokens: Mutex<BTreeMap<String, (Call, Answer)>>,
    /// For how long no list shows what was launched, and when each instance was.
    lag: Mutex<Duration>,
    young: Mutex<BTreeMap<String, Instant>>,
    added: Mutex<ProxyAdditions>,
    death: Notify,
}

/// A running proxy; it ends with the process of the tests.
#[derive(Clone)]
pub(super) struct Proxy {
    pub(super) url: String,
    inner: Arc<ProxyState>,
}

/// An answer, head and body.
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
            judge: Mutex::new(Box::new(|_| Fault::None)),
            ledger: Mutex::default(),
            tokens: Mutex::default(),
            lag: Mutex::default(),
            young: Mutex::default(),
            added: Mutex::default(),
            death: Notify::new(),
        });
        let serving = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A client that goes away in the middle is no failure of anybody here.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        Self { url, inner }
    }

    /// Has `judge` decide about each call from now on.
    pub(super) fn judge(&self, judge: impl FnMut(&Call) -> Fault + Send + 'static) {
        *lock(&self.inner.judge) = Box::new(judge);
    }

    /// Has lists show instances only so long after their launch, as EC2 does under load.
    pub(super) fn lag(&self, lag: Duration) {
        *lock(&self.inner.lag) = lag;
    }

    /// Changes what is added to the other side.
    pub(super) fn add(&self, change: impl FnOnce(&mut ProxyAdditions)) {
        change(&mut lock(&self.inner.added));
    }

    /// Returns what was asked for so far.
    pub(super) fn ledger(&self) -> Vec<LoggedCall> {
        lock(&self.inner.ledger).clone()
    }

    /// Waits until a call was one at which the process is to die.
    pub(super) async fn death(&self) {
        self.inner.death.notified().await;
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
            let fault = (lock(&self.judge))(&call);
            let (arrived, answer) = match &fault {
                Fault::Answer(status, body) => (false, Some(answer(*status, body))),
                Fault::DieBefore => (false, None),
                Fault::None => (true, Some(self.pass(&call, &raw)?)),
                Fault::LoseReply | Fault::DieAfter => {
                    self.pass(&call, &raw)?;
                    (true, None)
                }
            };
            lock(&self.ledger).push(LoggedCall { call, arrived });
            if matches!(fault, Fault::DieBefore | Fault::DieAfter) {
                self.death.notify_one();
            }
            match answer {
                Some(answer) => (&*stream).write_all(&answer.bytes)?,
                // Whoever waits for an answer sees the connection close.
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Passes a request on; launches of one token are one launch.
    fn pass(&self, call: &Call, raw: &[u8]) -> io::Result<Answer> {
        if let Some(answered) = lock(&self.added).answer(call) {
            return Ok(answered);
        }
        let answered = self.pass_on(call, raw)?;
        Ok(lock(&self.added).amend(call, answered))
    }

    /// Passes a request on as it is.
    fn pass_on(&self, call: &Call, raw: &[u8]) -> io::Result<Answer> {
        if call.name() == "DescribeInstances" {
            return Ok(self.without_young(self.forward(raw)?));
        }
        let token = call.form.get("ClientToken").filter(|_| call.name() == "CreateFleet");
        let Some(token) = token else { return self.forward(raw) };
        // Held for as long as the launch takes, so that two of one token cannot both be the first.
        let mut tokens = lock(&self.tokens);
        if let Some((asked, answered)) = tokens.get(token) {
            if asked.form != call.form {
                let message = "Client token was used before with other parameters";
                return Ok(refusal(400, "IdempotentParameterMismatch", message));
            }
            return Ok(answered.clone());
        }
        let answered = self.forward(raw)?;
        if answered.status == 200 {
            let text = answered.text();
            let ids = text.split(['<', '>']).filter(|word| word.starts_with("i-"));
            let now = Instant::now();
            lock(&self.young).extend(ids.map(|id| (id.to_owned(), now)));
            tokens.insert(token.clone(), (call.clone(), answered.clone()));
        }
        Ok(answered)
    }

    /// Leaves instances out of a list that were launched just now.
    fn without_young(&self, answered: Answer) -> Answer {
        let lag = *lock(&self.lag);
        let young = lock(&self.young).clone();
        let young: Vec<String> = young
            .into_iter()
            .filter(|(_, at)| at.elapsed() < lag)
            .map(|(id, _)| format!("<item><instanceId>{id}</instanceId>"))
            .collect();
        let text = String::from_utf8_lossy(&answered.bytes).into_owned();
        let Some((_, body)) = text.split_once("\r\n\r\n").filter(|_| !young.is_empty()) else {
            return answered;
        };
        let mut body = body.to_owned();
        for begin in young
            .iter()
            .filter_map(|item| body.find(item.as_str()))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .rev()
        {
            let end = end_of_item(&body, begin);
            body.replace_range(begin..end, "");
        }
        answer(answered.status, &body)
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

/// Returns where the item ends that begins at `begin`, with the items in it.
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

/// Returns an error as EC2 writes it.
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

/// Reads a request; `None` at the end of the connection. What is passed on asks for a connection of
/// its own, so that its end is the end of the answer.
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
        return Err(io::Error::other("nobody here sends chunks"));
    }
    let form = if body.starts_with(b"Action=") { form(&body) } else { BTreeMap::new() };
    let json = if target.is_empty() { None } else { serde_json::from_slice(&body).ok() };
    let json = json.unwrap_or_default();
    head.push_str("connection: close\r\n\r\n");
    let raw = [head.as_bytes(), &body].concat();
    Ok(Some((Call { method, path, form, target, body: json }, raw)))
}

/// Reads a form.
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
