//! A queue as SQS serves it, and nothing more: moto takes most of a second of processor time for each call that
//! receives, so that a flood would measure moto.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

/// A served queue; it ends with the process of the tests.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) url: String,
    inner: Arc<Mutex<QueueState>>,
}

#[derive(Default)]
pub(super) struct QueueState {
    bodies: BTreeMap<usize, String>,
    visible: VecDeque<usize>,
    /// When what was handed out is handed out again.
    hidden: VecDeque<(Instant, usize)>,
    /// How often each action was asked for.
    pub(super) calls: BTreeMap<String, usize>,
    /// How often a message was handed out that had been before.
    pub(super) again: usize,
    seen: Vec<bool>,
}

impl QueueState {
    pub(super) fn left(&self) -> usize {
        self.bodies.len()
    }

    fn receive(&mut self, most: usize, hides: Duration) -> Vec<Json> {
        let now = Instant::now();
        while self.hidden.front().is_some_and(|(until, _)| *until <= now) {
            let back = self.hidden.pop_front().map(|(_, id)| id);
            self.visible.extend(back.filter(|id| self.bodies.contains_key(id)));
        }
        let mut found = Vec::new();
        while found.len() < most {
            let Some(id) = self.visible.pop_front() else { break };
            let Some(body) = self.bodies.get(&id) else { continue };
            let id_text = id.to_string();
            found.push(json!({ "MessageId": id_text, "ReceiptHandle": id_text, "Body": body }));
            self.hidden.push_back((now + hides, id));
            self.again += usize::from(std::mem::replace(&mut self.seen[id], true));
        }
        found
    }
}

impl Queue {
    /// Serves a queue with these messages.
    pub(super) fn start(messages: impl Iterator<Item = String>) -> Self {
        let bodies: BTreeMap<usize, String> = messages.enumerate().collect();
        let (visible, seen) = (bodies.keys().copied().collect(), vec![false; bodies.len()]);
        let inner =
            Arc::new(Mutex::new(QueueState { bodies, visible, seen, ..QueueState::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let queue = Self { url, inner };
        let serving = queue.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // A client that goes away in the middle is no failure of anybody here.
                std::thread::spawn(move || serving.serve(&stream).ok());
            }
        });
        queue
    }

    pub(super) fn look(&self) -> MutexGuard<'_, QueueState> {
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
            let asked: Json = serde_json::from_slice(&body)?;
            let answer = self.answer(action.trim_start_matches("AmazonSQS."), &asked).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\n";
            write!(stream, "{head}content-length: {}\r\n\r\n{answer}", answer.len())?;
        }
    }

    fn answer(&self, action: &str, asked: &Json) -> Json {
        *self.look().calls.entry(action.to_owned()).or_default() += 1;
        let number = |name: &str| asked[name].as_u64().unwrap_or(0);
        match action {
            "GetQueueUrl" => json!({ "QueueUrl": format!("{}/1/prod", self.url) }),
            "ReceiveMessage" => {
                let until = Instant::now() + Duration::from_secs(number("WaitTimeSeconds"));
                let hides = Duration::from_secs(number("VisibilityTimeout"));
                let most = usize::try_from(number("MaxNumberOfMessages")).unwrap_or(1);
                loop {
                    let found = self.look().receive(most, hides);
                    if !found.is_empty() || Instant::now() >= until {
                        return json!({ "Messages": found });
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            "DeleteMessageBatch" => {
                let entries = asked["Entries"].as_array().into_iter().flatten();
                let mut gone = Vec::new();
                for entry in entries {
                    let id = entry["ReceiptHandle"].as_str().and_then(|text| text.parse().ok());
                    self.look().bodies.remove(&id.unwrap_or(usize::MAX));
                    gone.push(json!({ "Id": entry["Id"] }));
                }
                json!({ "Successful": gone, "Failed": [] })
            }
            other => panic!("nobody here knows {other}"),
        }
    }
}
