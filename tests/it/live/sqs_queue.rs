//! A minimal SQS queue for load tests. moto takes most of a second of processor time for each
//! receive call, so that a large number of messages would measure moto.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

/// A served queue. It ends with the test process.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) url: String,
    inner: Arc<Mutex<QueueState>>,
}

#[derive(Default)]
pub(super) struct QueueState {
    bodies: BTreeMap<usize, String>,
    visible: VecDeque<usize>,
    /// Received messages, by the time at which they become visible again.
    hidden: VecDeque<(Instant, usize)>,
    /// Number of calls, by action.
    pub(super) calls: BTreeMap<String, usize>,
    /// Number of deliveries of messages that were delivered before.
    pub(super) redelivered: usize,
    delivered: Vec<bool>,
}

impl QueueState {
    pub(super) fn remaining(&self) -> usize {
        self.bodies.len()
    }

    fn receive(&mut self, max_messages: usize, visibility_timeout: Duration) -> Vec<Json> {
        let now = Instant::now();
        while self.hidden.front().is_some_and(|(until, _)| *until <= now) {
            let visible_again = self.hidden.pop_front().map(|(_, id)| id);
            self.visible.extend(visible_again.filter(|id| self.bodies.contains_key(id)));
        }
        let mut found = Vec::new();
        while found.len() < max_messages {
            let Some(id) = self.visible.pop_front() else { break };
            let Some(body) = self.bodies.get(&id) else { continue };
            let id_text = id.to_string();
            found.push(json!({ "MessageId": id_text, "ReceiptHandle": id_text, "Body": body }));
            self.hidden.push_back((now + visibility_timeout, id));
            self.redelivered += usize::from(std::mem::replace(&mut self.delivered[id], true));
        }
        found
    }
}

impl Queue {
    /// Serves a queue that holds `messages`.
    pub(super) fn start(messages: impl Iterator<Item = String>) -> Self {
        let bodies: BTreeMap<usize, String> = messages.enumerate().collect();
        let (visible, delivered) = (bodies.keys().copied().collect(), vec![false; bodies.len()]);
        let inner = Arc::new(Mutex::new(QueueState {
            bodies,
            visible,
            delivered,
            ..QueueState::default()
        }));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let queue = Self { url, inner };
        let serving = queue.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // A client may close its connection at any time.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        queue
    }

    pub(super) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut action, mut length, mut line) = (String::new(), 0, String::new());
            while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
                let (name, value) = line.split_once(':').unwrap_or((&line, ""));
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.trim().parse().unwrap_or(0),
                    "x-amz-target" => value.trim().clone_into(&mut action),
                    _ => {}
                }
                line.clear();
            }
            if action.is_empty() {
                return Ok(());
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let request: Json = serde_json::from_slice(&body)?;
            let answer = self.answer(action.trim_start_matches("AmazonSQS."), &request).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\n";
            write!(stream, "{head}content-length: {}\r\n\r\n{answer}", answer.len())?;
        }
    }

    fn answer(&self, action: &str, request: &Json) -> Json {
        *self.state().calls.entry(action.to_owned()).or_default() += 1;
        let number = |name: &str| request[name].as_u64().unwrap_or(0);
        match action {
            "GetQueueUrl" => json!({ "QueueUrl": format!("{}/1/prod", self.url) }),
            "ReceiveMessage" => {
                let until = Instant::now() + Duration::from_secs(number("WaitTimeSeconds"));
                let visibility_timeout = Duration::from_secs(number("VisibilityTimeout"));
                let max_messages = usize::try_from(number("MaxNumberOfMessages")).unwrap_or(1);
                loop {
                    let found = self.state().receive(max_messages, visibility_timeout);
                    if !found.is_empty() || Instant::now() >= until {
                        return json!({ "Messages": found });
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            "DeleteMessageBatch" => {
                let entries = request["Entries"].as_array().into_iter().flatten();
                let mut deleted = Vec::new();
                for entry in entries {
                    let id = entry["ReceiptHandle"].as_str().and_then(|text| text.parse().ok());
                    self.state().bodies.remove(&id.unwrap_or(usize::MAX));
                    deleted.push(json!({ "Id": entry["Id"] }));
                }
                json!({ "Successful": deleted, "Failed": [] })
            }
            other => panic!("unknown action {other}"),
        }
    }
}
